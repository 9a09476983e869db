"""Transactions on one node: the coordinator for the partitions of ``__transaction_state`` that it leads, the markers
that it sends, and leaders' questions to other coordinators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.broker.coordinators.coordinator_log import ReplicatedCoordinatorLog
from tidelog.broker.coordinators.markers import TransactionMarkers
from tidelog.broker.coordinators.transaction_partitions import Coordinator, TransactionPartitions
from tidelog.broker.handlers.producer_ids import InitProducerId
from tidelog.broker.handlers.transactions import MarkerWriting, TransactionCalls
from tidelog.broker.metadata.metadata_view import MetadataView
from tidelog.broker.services import Calls
from tidelog.groups.coordinator import GroupCoordinator
from tidelog.metadata_quorum.image.image import MetadataImage
from tidelog.model.clock import Clock
from tidelog.model.ids import NodeId
from tidelog.model.names import TRANSACTION_STATE_TOPIC
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.proto.calls.transaction_api import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tidelog.proto.transport.network import CallContext, Connection
from tidelog.replication.manager import ReplicaManager
from tidelog.transactions.coordinator import TransactionCoordinator
from tidelog.transactions.producer_ids import ProducerIds
from tidelog.transactions.settings import TransactionSettings

_HERE: Final = CallContext("", "this node")


class Transactions:
    """See the module. Everything runs on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        replicas: ReplicaManager,
        view: MetadataView,
        connection: Callable[[NodeId], Connection | None],
        groups: GroupCoordinator,
        partitions: TransactionPartitions,
        producer_ids: ProducerIds,
        *,
        clock: Clock,
        on_fatal: Callable[[BaseException], None],
        newest_connection: Callable[[], int] = lambda: 0,
    ) -> None:
        """``partitions`` is completed here. ``newest_connection`` returns the number of the connection that this node
        accepted last."""
        self._config = config
        writing = MarkerWriting(groups, replicas)
        self.markers = TransactionMarkers(config.node_id, view, connection, writing.write, on_fatal)
        self.coordinator = TransactionCoordinator(
            transaction_settings(config),
            clock,
            ReplicatedCoordinatorLog(replicas, TRANSACTION_STATE_TOPIC),
            producer_ids.next,
            self.markers,
            groups.partition_for,
            on_fatal,
            newest_connection=newest_connection,
        )
        self.partitions = partitions
        partitions.coordinated_by(Coordinator(self.coordinator.partition_for, self._add_here))
        self._calls = TransactionCalls(self.coordinator, groups, replicas, view, writing, InitProducerId(producer_ids))
        self._partition_count = config.transaction_state_log_num_partitions
        replicas.watch_roles(TRANSACTION_STATE_TOPIC, self.coordinator)

    def calls(self) -> Calls:
        """The calls about transactions that a listener serves."""
        return self._calls.calls()

    def before_roles(self, image: MetadataImage) -> None:
        """Handle a new image whose roles are not taken up yet."""
        topic = image.topic(TRANSACTION_STATE_TOPIC)
        count = self._config.transaction_state_log_num_partitions if topic is None else len(topic.partitions)
        if count != self._partition_count:
            self._partition_count = count
            self.coordinator.set_partition_count(count)

    def after_roles(self) -> None:
        """Handle an image whose roles have been taken up."""
        self.markers.metadata_changed()

    async def stop(self) -> None:
        """Tell remaining waiters to look for another coordinator."""
        await self.coordinator.stop()
        self._close()

    def kill(self) -> None:
        """Drop everything without answering anybody."""
        self.coordinator.kill()
        self._close()

    def _close(self) -> None:
        self.markers.close()
        self.partitions.close()

    def _add_here(self, request: AddPartitionsToTxnRequest) -> Awaitable[AddPartitionsToTxnResponse]:
        return self._calls.add_partitions(request, _HERE)


def transaction_settings(config: NodeConfig) -> TransactionSettings:
    """Return a node's transaction settings."""
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        two_phase_commit_enable=config.transaction_two_phase_commit_enable,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        abort_timed_out_transaction_cleanup_interval_ms=(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        ),
        remove_expired_transaction_cleanup_interval_ms=(
            config.transaction_remove_expired_transaction_cleanup_interval_ms
        ),
        state_log_num_partitions=config.transaction_state_log_num_partitions,
        state_log_replication_factor=config.transaction_state_log_replication_factor,
        state_log_min_isr=config.transaction_state_log_min_isr,
        state_log_segment_bytes=config.transaction_state_log_segment_bytes,
        state_log_load_buffer_size=config.transaction_state_log_load_buffer_size,
        request_timeout_ms=config.request_timeout_ms,
        ids_max=config.transaction_coordinator_ids_max,
        appends_max=config.transaction_coordinator_appends_max,
        partitions_max=config.transaction_partitions_max,
        waiting_adds_max=config.transaction_coordinator_waiting_adds_max,
        add_wait_max_ms=config.transaction_coordinator_add_wait_max_ms,
        sink_timeout_ms=config.transaction_sink_timeout_ms,
        sink_prepared_timeout_ms=config.transaction_sink_prepared_timeout_ms,
        sinks_max=config.transaction_coordinator_sinks_max,
        sink_transactions_max=config.transaction_sink_transactions_max,
        sink_fenced_jobs_max=config.transaction_sink_fenced_jobs_max,
    )
