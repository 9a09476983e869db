"""Which releases of Spark the source runs on, and the placeholder source for older ones.

Older releases lack classes that the source needs (``ReadLimit``, ``SupportsTriggerAvailableNow``), so importing it
fails. Spark would then report only that there is no source of this name (DATA_SOURCE_NOT_FOUND).
"""

from __future__ import annotations

import os
import re
from typing import Final, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource

OLDEST: Final = (4, 2)
"""The first release with everything that the source needs from Spark's Python data source API."""


def is_too_old(version: str) -> bool:
    """Return whether this release of pyspark, such as ``4.1.0.dev3``, is older than :data:`OLDEST`."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST


class TooOld(DataSource):
    """A source that refuses every call from Spark."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        os.environ["SPARK_HIDE_TRACEBACK"] = (
            "1"  # as in tidelog.spark_connector.worker_errors: the first line says it all
        )
        raise RuntimeError(
            f"Tidelog expects Spark {'.'.join(map(str, OLDEST))} or later, found pyspark {pyspark.__version__}: run "
            "pip install 'tidelog[spark]' for this Python, and have cluster and pyspark of the same release"
        )

    schema = reader = writer = _refuse
    streamReader = streamWriter = _refuse  # noqa: N815
