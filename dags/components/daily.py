"""A script as teams have it: sums of orders by day and customer, and once more the big sums."""

import airflow_trident_script as trident
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.builder.appName("daily").getOrCreate()
fields = "at timestamp, customer string, cents long"
orders = spark.read.schema(fields).csv(trident.inputs(spark, "orders"), header=True)
day = sf.to_date("at").alias("day")
daily = orders.groupBy(day, "customer").agg(sf.sum("cents").alias("cents")).cache()
daily.write.parquet(trident.output(spark, "daily"))
daily.filter("cents >= 100").select("customer", "cents").write.parquet(trident.output(spark, "big"))
spark.stop()
