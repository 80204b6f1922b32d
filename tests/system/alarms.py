"""The callback of a system test's deadline, in Airflow's plugins folder, from which the triggerer imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


async def told(context: dict[str, Any], folder: str) -> None:
    """Note which run is late, and when it was due."""
    run_id = context["dag_run"]["dag_run_id"]
    partial = Path(folder, f"late-{run_id}.partial")
    partial.write_text(json.dumps(context["deadline"]["deadline_time"], default=str))
    partial.rename(partial.with_suffix(".json"))
