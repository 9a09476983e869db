"""This broker's log directories: their content, free space, and moves between them."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.metadata.dynamic_config import Settings
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.model.errors import ErrorCode
from tidelog.model.ids import TopicIdPartition, TopicPartition
from tidelog.proto.calls.api import (
    AlteredReplicaLogDir,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    LogDirReplica,
)
from tidelog.proto.transport.network import CallContext
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import DirectoryInfo, LogManager


class LogDirs:
    """Queries the log manager; a failed directory is listed with its error and nothing else."""

    def __init__(self, logs: LogManager, view: MetadataView, settings: Callable[[], Settings]) -> None:
        self._logs = logs
        self._view = view
        self._settings = settings

    def calls(self) -> Calls:
        return {DescribeLogDirsRequest: self.describe, AlterReplicaLogDirsRequest: self.alter}

    async def describe(self, _: DescribeLogDirsRequest, __: CallContext) -> DescribeLogDirsResponse:
        config = self._settings().node
        cordoned = bool(config.cordoned_log_dirs)
        return DescribeLogDirsResponse(tuple(_log_dir(info, cordoned) for info in self._logs.describe()))

    async def alter(self, request: AlterReplicaLogDirsRequest, _: CallContext) -> AlterReplicaLogDirsResponse:
        """Start moves. Answers once they have started."""
        fault = await self._view.gate_fault(type(request))
        if fault is not None:
            return AlterReplicaLogDirsResponse((), ErrorCode.UNSUPPORTED_VERSION, fault)
        return AlterReplicaLogDirsResponse(tuple(map(self._alter, request.replicas)))

    def _alter(self, item: AlterReplicaLogDir) -> AlteredReplicaLogDir:
        topic = self._view.image.topic(item.topic)
        if topic is None or item.partition not in topic.partitions:
            return AlteredReplicaLogDir(item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self._settings().node.cordoned_log_dirs:
            text = "expected a directory that is not cordoned, found all of this broker's cordoned (cordoned.log.dirs)"
            return AlteredReplicaLogDir(item.topic, item.partition, ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        key = TopicIdPartition(topic.topic_id, item.partition)
        refused = self._logs.move(key, TopicPartition(item.topic, item.partition), item.path)
        if refused is None:
            return AlteredReplicaLogDir(item.topic, item.partition, ErrorCode.NONE)
        return AlteredReplicaLogDir(item.topic, item.partition, refused.code, refused.message)


def _log_dir(info: DirectoryInfo, cordoned: bool) -> LogDir:
    replicas = [_replica(log) for log in info.logs]
    replicas += [_replica(move.copy, is_future=True, offset_lag=move.lag) for move in info.arriving]
    return LogDir(
        path=info.path,
        directory_id=info.directory_id,
        error=ErrorCode.NONE if info.failure is None else ErrorCode.KAFKA_STORAGE_ERROR,
        total_bytes=info.total_bytes,
        usable_bytes=info.free_bytes,
        replicas=tuple(sorted(replicas, key=lambda replica: (replica.topic, replica.partition))),
        is_cordoned=cordoned,
    )


def _replica(log: Log, *, is_future: bool = False, offset_lag: int = 0) -> LogDirReplica:
    return LogDirReplica(
        log.topic,
        log.partition,
        log.size_bytes,
        log.log_start_offset,
        log.log_end_offset,
        is_future,
        offset_lag,
    )
