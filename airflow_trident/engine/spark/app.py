"""The application that spark-submit starts: runs one job and writes its result. Arguments: job file, result file."""

from __future__ import annotations

import os
import pickle
import sys


def main(job_path: str, result_path: str) -> int:
    """Returns 0 with the manifest in the result file, or 1 with the error. Also 0 if the order is not for this driver:
    then nothing was done.

    :param job_path: the pickled `engine.engine.Job` of each transaction, written by `SubmitEngine`.
    """
    from pyspark.sql import SparkSession

    from airflow_trident.engine.spark.driver_orders import answer
    from airflow_trident.engine.spark.engine import SparkEngine
    from airflow_trident.engine.spark.errors import to_json, translate
    from airflow_trident.engine.spark.order_takers import content_for_driver
    from airflow_trident.engine.spark.sessions.session import GivenSession, send_to_executors
    from airflow_trident.staging.answers import as_answer
    from airflow_trident.staging.area import StagingArea

    session = SparkSession.builder.getOrCreate()
    try:
        send_to_executors(session)
        content = content_for_driver(job_path, "the order of a job")
        if content is None:
            return 0
        jobs = pickle.loads(content)  # noqa: S301 - only this user can have written it
        engine = SparkEngine(GivenSession(session))
        manifest = engine.run(jobs[0]) if len(jobs) == 1 else engine.run_group(jobs)
        last = jobs[-1]
        reply = as_answer(StagingArea(last.staging_root), manifest, last.chunk_bytes)
    except BaseException as error:  # noqa: BLE001 - the waiting process must get any error
        answer(result_path, {"error": to_json(translate(error, "Spark application"))})
        return 1
    else:
        answer(result_path, reply)
        return 0
    finally:
        session.stop()


if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path, where our modules would hide others of the same names
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]
    sys.exit(main(sys.argv[1], sys.argv[2]))
