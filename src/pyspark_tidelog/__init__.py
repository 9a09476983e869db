"""By this name Spark finds the data source by itself: it imports every ``pyspark_*`` package that is installed
and registers its ``DefaultSource``. Nothing else is here; see ``tidelog.spark_connector``.

On a release of Spark that the source cannot run on, a source takes its place that says so."""

import pyspark

from tidelog.spark_connector import releases

if releases.is_too_old(pyspark.__version__):
    from tidelog.spark_connector.releases import TooOld as DefaultSource
else:
    from tidelog.spark_connector.datasource import TidelogDataSource as DefaultSource  # type: ignore[assignment]

__all__ = ["DefaultSource"]
