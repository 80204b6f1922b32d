"""The interface of a PySpark script that runs in a transaction: what to read, and where to write.

It travels with the script (``--py-files``) and needs only pyspark, from Python 3.9 and Spark 3.5 on::

    import airflow_trident_script as trident

    orders = spark.read.parquet(*trident.inputs(spark, "orders"))
    daily.write.parquet(trident.output(spark, "daily"))
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import quote

JOB = "spark.airflowTrident.job"
"""The setting that holds the path or URL of this run's job. Settings reach a driver anywhere; the environment does
not."""
_READ: dict[str, dict[str, Any]] = {}
_TAKEN = ".taken"
_NO_PATH = ("PATH_NOT_FOUND", "Path does not exist")
_NO_FILE_SYSTEM = ("No FileSystem for scheme", "ClassNotFoundException", "NoClassDefFoundError")


def inputs(spark: Any, name: str) -> list[str]:
    """The files of this batch, for a reader of Spark: ``spark.read.parquet(*inputs(spark, "orders"))``."""
    return list(_named(spark, "inputs", name))


def output(spark: Any, name: str) -> str:
    """The folder to write this output to, as Parquet, once: ``frame.write.parquet(output(spark, "daily"))``."""
    # An application that the cluster restarts gets its own folder: the first run may still be writing.
    attempt = spark.conf.get("spark.app.attempt.id", "1")
    run = f"{spark.sparkContext.applicationId}-{attempt}"
    return f"{_named(spark, 'outputs', name)}/{quote(run, safe='')}"


def transaction(spark: Any) -> dict[str, Any]:
    """This run's ``topology``, ``txid``, ``attempt``, and ``time_ms``, when the transaction was begun."""
    return dict(_job(spark)["transaction"])


def _named(spark: Any, kind: str, name: str) -> Any:
    entries = _job(spark)[kind]
    if name not in entries:
        raise LookupError(f"the topology's script has no {kind[:-1]} {name!r}: {', '.join(entries)}")
    return entries[name]


def _job(spark: Any) -> dict[str, Any]:
    path = spark.conf.get(JOB, None)
    if not path:
        raise RuntimeError(
            "this application is not run by a TridentSparkSubmitOperator: there is no " + JOB + ". For a trial, read "
            "and write paths of your own."
        )
    if path not in _READ:
        _note(spark, path)
        _READ[path] = json.loads(_text_at(spark, path))
    return _READ[path]


def _note(spark: Any, path: str) -> None:
    """Note beside the job which driver of a standalone cluster has it. Best effort.

    Only then is the job read. A newer attempt, which ends this driver, removes the job before it looks for the note: so
    it finds the note, or this driver finds no job.
    """
    driver = os.path.basename(os.getcwd())  # a worker runs it in a folder of that name
    if not driver.startswith("driver-"):
        return
    instance = uuid.uuid4().hex
    record = {"v": 1, "host": socket.gethostname(), "pid": os.getpid(), "instance": instance, "driver_id": driver}
    content = json.dumps(record).encode()
    with suppress(Exception):
        if "://" not in path:
            unfinished = f"{path}{_TAKEN}-{instance}"
            with open(unfinished, "xb") as file:
                file.write(content)
            os.replace(unfinished, f"{path}{_TAKEN}")
            return
        context = spark.sparkContext
        place = context._jvm.org.apache.hadoop.fs.Path(f"{path}{_TAKEN}")
        stream = place.getFileSystem(context._jsc.hadoopConfiguration()).create(place, True)
        stream.write(bytearray(content))
        stream.close()


def _text_at(spark: Any, path: str) -> str:
    """The content of a file that is as small as a list of names. Spark reads it where Python has no library for it."""
    if "://" not in path:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError as error:
            if not os.path.isdir(os.path.dirname(path)):
                raise  # the staging folder is not here
            raise _ended(path) from error
    try:
        return str(spark.read.text(path, wholetext=True).first()[0])
    except Exception as error:
        if any(phrase in str(error) for phrase in _NO_PATH):
            raise _ended(path) from error
        if not any(phrase in str(error) for phrase in _NO_FILE_SYSTEM):
            raise
        raise RuntimeError(
            f"this Spark has no file system for {path.split(':')[0]}://, where this transaction is staged. Start it "
            "with Hadoop's S3A, as by spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION (the version of the "
            "hadoop-client-api jar that it has), or stage in a folder that driver and executors share."
        ) from error


def _ended(path: str) -> RuntimeError:
    return RuntimeError(
        f"the job {path} of this run is gone: its task has ended, or a newer attempt of the transaction has begun. "
        "What this run writes counts nowhere, so it does nothing."
    )
