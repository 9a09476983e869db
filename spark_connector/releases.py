"""Which releases of Spark the source runs on, and the source that stands in for it on older ones.

Those lack classes that the source is made of (``ReadLimit``, ``SupportsTriggerAvailableNow``), so that importing it
fails. Spark then says nothing but that there is no source of this name (DATA_SOURCE_NOT_FOUND).
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

OLDEST: Final = (4, 2)
"""The first release with all that the source needs of Spark's Python data source API."""


def is_too_old(version: str) -> bool:
    """Whether this release of pyspark, such as ``4.1.0.dev3``, comes before :data:`OLDEST`."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST


class TooOld(DataSource):
    """Refuses whatever Spark asks of it."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        os.environ["SPARK_HIDE_TRACEBACK"] = (
            "1"  # as in tidelog.spark_connector.worker_errors: the first line says it all
        )
        raise RuntimeError(
            f"Tidelog expects Spark {'.'.join(map(str, OLDEST))} or later, found pyspark {pyspark.__version__}: run "
            "pip install 'tidelog[spark]' for this Python, and have cluster and pyspark of the same release"
        )

    schema = reader = writer = _refuse
    streamReader = streamWriter = _refuse  # noqa: N815
