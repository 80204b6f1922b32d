"""The script that SparkSubmitOperator starts: `stock_job.py FOLDER BATCH`."""

import sys

from pyspark.sql import SparkSession

from benchmarks.aftermath.accidents import At, Place, spark_rows

folder, batch = sys.argv[1:3]
place = Place.taken(folder)
place.reached(At.BEGIN)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
lines = spark.read.text(f"{folder}/in/{batch}.txt")
place.reached(At.DECIDED)
spark_rows(lines, place).write.mode("append").parquet(f"{folder}/out")
place.reached(At.WRITTEN)
spark.stop()
