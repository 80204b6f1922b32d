"""The process of one contender: `python -m benchmarks.contender NAME TASK.json`. It writes its results beside the task.

A task: `data` (folder), `parquet` (else text), `batches`, `state` (SQLite file), `checkpoint`, `staging`, `zookeeper`,
`root`, and the contender's own options.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(name: str, path: str, *more: str) -> None:
    task = {**json.loads(Path(path).read_text()), "path": path}
    if name in ("plain", "available_now", "submit_per_batch", "stateful", "loop"):
        from benchmarks import peers

        told = getattr(peers, name)(task)
    else:
        from benchmarks import ours

        told = getattr(ours, name)(task, *map(int, more))
    if told is not None:
        Path(path).with_name("told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
