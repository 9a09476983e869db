"""A Python source for Spark that generates rows, and a Python sink that drops them: the bare cost of a trigger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StructField, StructType


class Constants(DataSource):
    """Each trigger has ``tasks`` tasks of ``rows`` equal rows of 100 bytes; both numbers are options."""

    @classmethod
    def name(cls) -> str:
        return "constants"

    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ConstantsReader(int(self.options["tasks"]), int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return DroppingWriter()


class ConstantsReader(DataSourceStreamReader):
    def __init__(self, tasks: int, rows: int) -> None:
        self._tasks = tasks
        self._rows = rows
        self._end = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self._end += 1
        return {"offset": self._end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"x" * 100] * self._rows, pa.binary())})


class DroppingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass
