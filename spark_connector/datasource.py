"""The data source that Spark finds under the name ``tidelog``.

Constructors do nothing: Spark creates and pickles these objects whenever it likes. It does so in several processes,
which need a reader, a writer or neither; so those are imported when Spark asks for one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidelog.spark_connector.columns import chosen, schema
from tidelog.spark_connector.options import OptionError, SourceOptions, check_general, include_headers
from tidelog.spark_connector.sink_columns import SinkColumns
from tidelog.spark_connector.sink_options import SinkOptions
from tidelog.spark_connector.worker_errors import told_in_a_line
from tidelog.spark_connector.worker_process import settle

if TYPE_CHECKING:
    from tidelog.spark_connector.sink import BatchSink, StreamSink
    from tidelog.spark_connector.source import BatchReader, StreamReader


class TidelogDataSource(DataSource):
    """``format("tidelog")`` after ``spark.read``, ``spark.readStream``, ``frame.write`` and ``frame.writeStream``."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    @told_in_a_line()
    def schema(self) -> StructType:
        check_general(self.options)
        return schema(include_headers(self.options))

    @told_in_a_line()
    def reader(self, schema: StructType) -> BatchReader:
        from tidelog.spark_connector.source import BatchReader

        settle("source")
        return BatchReader(self._with_columns(SourceOptions.of(self.options, streaming=False), schema))

    @told_in_a_line()
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from tidelog.spark_connector.source import StreamReader

        settle("source")
        return StreamReader(self._with_columns(SourceOptions.of(self.options, streaming=True), schema))

    @told_in_a_line()
    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        if overwrite:
            raise OptionError("Save mode Overwrite not allowed for Tidelog. Allowed save mode is Append.")
        from tidelog.spark_connector.sink import BatchSink

        settle("sink")
        options = SinkOptions.of(self.options, streaming=False)
        return BatchSink(options, SinkColumns.of(schema, options.topic))

    @told_in_a_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return a stream writer. ``overwrite``: each batch is the whole result (Complete); the writer appends it, as
        Spark's Kafka sink does."""
        from tidelog.spark_connector.sink import StreamSink

        settle("sink")
        options = SinkOptions.of(self.options, streaming=True)
        return StreamSink(options, SinkColumns.of(schema, options.topic))

    def _with_columns(self, options: SourceOptions, given: StructType) -> SourceOptions:
        columns = chosen(given, options.include_headers)
        if columns is None:
            there = schema(options.include_headers).simpleString()
            raise OptionError(
                "Tidelog source has a fixed schema and cannot be set with a custom one: expected some of the columns "
                f"of {there}, found {given.simpleString()}"
            )
        return replace(options, columns=columns)
