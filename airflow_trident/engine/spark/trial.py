"""What a Spark says of itself and of its Python workers, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.errors import translate
from airflow_trident.engine.spark.sessions.session import Sessions
from airflow_trident.engine.spark.versions import mixes_runs, require_executors, to_arrow
from airflow_trident.staging.manifest import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

_SLOT = Slot(topology="doctor", incarnation="doctor", txid=0, attempt=0)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """`about`: the session, `workers`: Python and pyarrow of a worker, both in words. `pyarrow`: its major version.
    `sees`: does the worker see the file that it was asked for? `mixes`: see `versions.mixes_runs`."""

    about: str
    workers: str
    pyarrow: int
    sees: bool = True
    mixes: str = ""


def tried(sessions: Sessions, path: str = "/") -> TrialResult:
    """Opens a session and runs one task in it, which needs nothing of this package.

    :param path: a file that the worker may see.
    :raises SparkJobError: it cannot be reached.
    :raises ConfigurationError: it is of a release that is refused, its executors are of another one, or its workers
        have no pyarrow or another Python.
    """

    def versions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # inside, so it travels by value
        import os
        import platform

        import pyarrow
        import pyspark

        for _ in batches:
            found = [platform.python_version(), pyarrow.__version__, str(os.path.exists(path)), pyspark.__version__]
            yield pyarrow.RecordBatch.from_pydict({"found": found})

    attached = sessions.open(_SLOT, trial=True)
    try:
        one: Any = attached.session.range(0, 1, 1, 1)
        python, arrow, sees, spark = to_arrow(one.mapInArrow(versions, "found string")).column(0).to_pylist()
        require_executors(spark, attached.session.version)
    except Exception as error:
        raise translate(error, "a task on Spark's executors") from error
    finally:
        attached.release()
    return TrialResult(
        about=attached.about,
        workers=f"Python {python}, pyarrow {arrow}",
        pyarrow=int(arrow.partition(".")[0]),
        sees=sees == str(True),
        mixes="" if attached.local else mixes_runs(attached.session.version),
    )
