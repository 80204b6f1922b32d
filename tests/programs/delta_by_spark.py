"""Asks Spark with Delta's own jars, and prints the rows as JSON: name -> rows.

Arguments: a JSON file: name -> query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.fixtures.delta_spark import delta_settings
from tests.fixtures.spark import SMALL, soon


def main() -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    conf = {**SMALL, **delta_settings(), "spark.sql.session.timeZone": "UTC"}
    for name, value in (conf | {"spark.driver.extraJavaOptions": soon()}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    queries = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({name: spark.sql(text).toArrow().to_pylist() for name, text in queries.items()}, default=str))


if __name__ == "__main__":
    main()
