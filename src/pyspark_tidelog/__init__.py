"""By this name Spark finds the data source by itself: it imports every ``pyspark_*`` package that is installed
and registers its ``DefaultSource``. Nothing else is here; see ``tidelog.spark_connector``."""

from tidelog.spark_connector.datasource import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
