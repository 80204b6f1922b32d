"""The application that ``airflow trident doctor`` submits: one task on the executors. Arguments: order and result
file."""

from __future__ import annotations

import os
import sys


def main(order_path: str, result_path: str) -> int:
    """Returns 0 with what was found in the result file, or 1 with the error.

    :param order_path: a file in the staging folder. Do driver and executors see it?
    """
    from dataclasses import asdict

    from pyspark.sql import SparkSession

    from airflow_trident.engine.spark.driver_orders import answer, read_order
    from airflow_trident.engine.spark.engine import tried
    from airflow_trident.engine.spark.errors import to_json, translate
    from airflow_trident.engine.spark.sessions.session import GivenSession
    from airflow_trident.io.paths import is_object_uri

    session = SparkSession.builder.getOrCreate()
    try:
        read_order(order_path, "the doctor's order")
        path = "/" if is_object_uri(order_path) else order_path
        answer(result_path, asdict(tried(GivenSession(session), path)))
    except BaseException as error:  # noqa: BLE001 - the waiting process must get any error
        answer(result_path, {"error": to_json(translate(error, "Spark application"))})
        return 1
    else:
        return 0
    finally:
        session.stop()


if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path, where our modules would hide others of the same names
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]
    sys.exit(main(sys.argv[1], sys.argv[2]))
