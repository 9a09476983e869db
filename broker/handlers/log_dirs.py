"""DescribeLogDirs: the log directories of this broker, what lies in them and how full they are."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode
from tidelog.proto.api import DescribeLogDirsRequest, DescribeLogDirsResponse, LogDir, LogDirReplica
from tidelog.proto.network import CallContext
from tidelog.storage.log_manager import DirectoryInfo, LogManager


class LogDirs:
    """Reads the log manager; a failed directory is listed with its error and nothing else."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    async def describe(self, _: DescribeLogDirsRequest, __: CallContext) -> DescribeLogDirsResponse:
        return DescribeLogDirsResponse(tuple(map(_log_dir, self._logs.describe())))


def _log_dir(info: DirectoryInfo) -> LogDir:
    return LogDir(
        path=info.path,
        directory_id=info.directory_id,
        error=ErrorCode.NONE if info.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
        total_bytes=info.total_bytes,
        usable_bytes=info.free_bytes,
        replicas=tuple(
            LogDirReplica(log.topic, log.partition, log.size_bytes, log.log_start_offset, log.log_end_offset)
            for log in sorted(info.logs, key=lambda log: log.name)
        ),
    )
