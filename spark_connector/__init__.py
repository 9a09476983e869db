"""Tidelog in Apache Spark: the data source behind ``spark.readStream.format("tidelog")``. See docs/spark.md.

Importing this package imports neither pyspark nor pyarrow; its modules do.
"""
