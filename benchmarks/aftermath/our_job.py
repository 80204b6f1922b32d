"""The same script as TridentSparkSubmitOperator starts it: `our_job.py FOLDER`."""

import sys

import airflow_trident_script as trident
from pyspark.sql import SparkSession

from benchmarks.aftermath.accidents import At, Place, spark_rows

folder = sys.argv[1]
place = Place.taken(folder)
place.reached(At.BEGIN)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
lines = spark.read.text(trident.inputs(spark, "lines"))
place.reached(At.DECIDED)
spark_rows(lines, place).write.parquet(trident.output(spark, "rows"))
place.reached(At.WRITTEN)
spark.stop()
