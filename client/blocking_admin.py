"""The admin client in plain blocking form: ``tidelog.Admin``."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

from tidelog.client import background
from tidelog.client.admin import AsyncAdmin
from tidelog.client.admin_config import AdminSettings
from tidelog.client.admin_group_types import GroupDescription, GroupListing, GroupState
from tidelog.client.admin_reassignments import OngoingReassignment
from tidelog.client.admin_sinks import SinkDescription, SinkListing
from tidelog.client.admin_transaction_types import (
    AbortTransactionSpec,
    FencedProducer,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from tidelog.client.admin_types import ListedOffset, NewTopic, OffsetSpec, TopicDescription, TopicListing
from tidelog.client.background import BackgroundLoop
from tidelog.client.errors import ClientClosedError
from tidelog.client.group_types import OffsetAndMetadata
from tidelog.client.sinks import SinkJob, SinkOutcome
from tidelog.model.clock import Clock
from tidelog.model.ids import NodeId, TopicPartition
from tidelog.proto.api import (
    ConfigChange,
    ConfigResource,
    CreatedTopic,
    DescribeClusterResponse,
    DescribedConfig,
    LogDir,
)
from tidelog.proto.network import Network
from tidelog.proto.sink_api import SinkWinner

A = TypeVar("A", bound="Admin")
R = TypeVar("R")


class Admin:
    """Administers a cluster.

        with Admin("localhost:9092") as admin:
            admin.create_topics([NewTopic("orders", num_partitions=6, replication_factor=3)])

    May be used by several threads at once. Every call takes a ``timeout`` in seconds (default
    ``default_api_timeout_ms``), within which it retries what is retriable. A call about several things
    raises the error of the first that failed; the error's notes name the others, its ``failures`` have each
    of them by name. What each method raises is said at :class:`tidelog.client.admin.AsyncAdmin`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        _network: Network | None = None,
        _background: BackgroundLoop | None = None,
        _clock: Clock | None = None,
        _rng: random.Random | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._inner = AsyncAdmin(bootstrap_servers, _network=_network, _clock=_clock, _rng=_rng, **settings)
        self._closed = False
        self._owns_background = _background is None
        self._background = _background or background.acquire()
        self._background.run(self._inner.start())

    def close(self) -> None:
        """Stop. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._background.run(self._inner.close())
        finally:
            if self._owns_background:
                background.release(self._background)

    def __enter__(self: A) -> A:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._closed:
            work.close()
            raise ClientClosedError("this admin client is closed")
        return self._background.run(work)

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> list[CreatedTopic]:
        """Make topics."""
        return self._run(self._inner.create_topics(topics, validate_only=validate_only, timeout=timeout))

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete topics with all their records."""
        self._run(self._inner.delete_topics(names, timeout=timeout))

    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Mapping[int, Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Grow topics to a new total of partitions. Keys will map to other partitions from then on."""
        self._run(
            self._inner.create_partitions(counts, assignments=assignments, validate_only=validate_only, timeout=timeout)
        )

    def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> list[TopicListing]:
        """All topics by name; those of the system only with ``internal``."""
        return self._run(self._inner.list_topics(internal=internal, timeout=timeout))

    def describe_topics(self, names: Iterable[str], *, timeout: float | None = None) -> list[TopicDescription]:
        """Leaders, replicas and ISR per partition, in the order of ``names``."""
        return self._run(self._inner.describe_topics(names, timeout=timeout))

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset (-1: all up to the high watermark); return the new starts."""
        return self._run(self._inner.delete_records(offsets, timeout=timeout))

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """Look up offsets: earliest, latest, by time. -1 where no record qualifies."""
        return self._run(self._inner.list_offsets(specs, read_committed=read_committed, timeout=timeout))

    def describe_configs(
        self, resources: Iterable[ConfigResource], *, timeout: float | None = None
    ) -> dict[ConfigResource, dict[str, DescribedConfig]]:
        """The settings of topics and brokers with where each comes from."""
        return self._run(self._inner.describe_configs(resources, timeout=timeout))

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None] | Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change settings, leaving those not named alone; ``None`` takes one back to its default."""
        self._run(self._inner.alter_configs(changes, validate_only=validate_only, timeout=timeout))

    def alter_topic_configs(
        self, topic: str, changes: Mapping[str, str | None], *, timeout: float | None = None
    ) -> None:
        """:meth:`alter_configs` of one topic."""
        self._run(self._inner.alter_topic_configs(topic, changes, timeout=timeout))

    def describe_cluster(self, *, timeout: float | None = None) -> DescribeClusterResponse:
        """Brokers (live or not), the active controller, the quorum's voters, feature levels."""
        return self._run(self._inner.describe_cluster(timeout=timeout))

    def describe_features(self, *, timeout: float | None = None) -> dict[str, int]:
        """The finalised feature levels."""
        return self._run(self._inner.describe_features(timeout=timeout))

    def update_features(
        self, levels: Mapping[str, int], *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Finalise feature levels."""
        self._run(self._inner.update_features(levels, validate_only=validate_only, timeout=timeout))

    def describe_log_dirs(
        self, nodes: Iterable[int] = (), *, timeout: float | None = None
    ) -> dict[NodeId, tuple[LogDir, ...]]:
        """The log directories of these (or all live) brokers, their sizes and what lies in them."""
        return self._run(self._inner.describe_log_dirs(nodes, timeout=timeout))

    # --- groups ---------------------------------------------------------------------------------------

    def list_groups(
        self,
        *,
        states: Iterable[GroupState | str] = (),
        types: Iterable[str] = (),
        protocol_types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """The groups of the cluster by name; only of these states, types and protocol types, if any are given."""
        found = self._inner.list_groups(states=states, types=types, protocol_types=protocol_types, timeout=timeout)
        return self._run(found)

    def list_consumer_groups(
        self, *, states: Iterable[GroupState | str] = (), types: Iterable[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        """:meth:`list_groups` of consumers, and of committed offsets alone."""
        return self._run(self._inner.list_consumer_groups(states=states, types=types, timeout=timeout))

    def describe_classic_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """State, coordinator and members of groups of any protocol type."""
        return self._run(self._inner.describe_classic_groups(group_ids, timeout=timeout))

    def describe_consumer_groups(
        self, group_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """State, coordinator, members and what is assigned to them."""
        return self._run(self._inner.describe_consumer_groups(group_ids, timeout=timeout))

    def delete_consumer_groups(self, group_ids: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete groups with their committed offsets. One that cannot be deleted does not keep the others."""
        self._run(self._inner.delete_consumer_groups(group_ids, timeout=timeout))

    @overload
    def list_consumer_group_offsets(
        self,
        groups: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    @overload
    def list_consumer_group_offsets(
        self,
        groups: Mapping[str, Iterable[TopicPartition] | None],
        partitions: None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]: ...

    def list_consumer_group_offsets(
        self,
        groups: str | Mapping[str, Iterable[TopicPartition] | None],
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata] | dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """What a group has committed, of these or all partitions; of several groups with a mapping of each to
        its partitions (``None``: all). A partition without a committed offset is not in the answer."""
        ask = self._inner.list_consumer_group_offsets
        if isinstance(groups, str):
            return self._run(ask(groups, partitions, require_stable=require_stable, timeout=timeout))
        return self._run(ask(groups, require_stable=require_stable, timeout=timeout))

    def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets for a group that has no members."""
        self._run(self._inner.alter_consumer_group_offsets(group_id, offsets, timeout=timeout))

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Forget a group's committed offsets of these partitions."""
        self._run(self._inner.delete_consumer_group_offsets(group_id, partitions, timeout=timeout))

    def remove_members_from_consumer_group(
        self,
        group_id: str,
        group_instance_ids: Iterable[str] | None = None,
        *,
        reason: str = "",
        timeout: float | None = None,
    ) -> None:
        """Remove static members by their ``group_instance_id``, or with ``None`` all members."""
        work = self._inner.remove_members_from_consumer_group
        self._run(work(group_id, group_instance_ids, reason=reason, timeout=timeout))

    # --- transactions ---------------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Iterable[TransactionState | str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids in use, by name; only those in these states, of these producer ids, with a transaction
        open for longer than ``duration_ms``, if any are given."""
        found = self._inner.list_transactions(
            states=states, producer_ids=producer_ids, duration_ms=duration_ms, timeout=timeout
        )
        return self._run(found)

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Coordinator, state, identity, and what is open."""
        return self._run(self._inner.describe_transactions(transactional_ids, timeout=timeout))

    def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, FencedProducer]:
        """Take these ids away from the producers that have them; what they left open is aborted first."""
        return self._run(self._inner.fence_producers(transactional_ids, timeout=timeout))

    def force_terminate_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Abort what a transactional id has open, also if it is prepared, and fence its producer."""
        self._run(self._inner.force_terminate_transaction(transactional_id, timeout=timeout))

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that each partition's leader knows of, by id."""
        return self._run(self._inner.describe_producers(partitions, timeout=timeout))

    def abort_transaction(self, spec: AbortTransactionSpec, *, timeout: float | None = None) -> None:
        """Write an abort marker into one partition, past the coordinator: only for a transaction that hangs."""
        self._run(self._inner.abort_transaction(spec, timeout=timeout))

    # --- sinks ----------------------------------------------------------------------------------------

    def list_sinks(self, *, timeout: float | None = None) -> list[SinkListing]:
        """The sinks that have ledgers, by name."""
        return self._run(self._inner.list_sinks(timeout=timeout))

    def describe_sinks(self, sinks: Iterable[str], *, timeout: float | None = None) -> dict[str, SinkDescription]:
        """Their ledgers and their transactions."""
        return self._run(self._inner.describe_sinks(sinks, timeout=timeout))

    def commit_sink_batch(
        self, job: SinkJob, winners: Sequence[SinkWinner], *, timeout: float | None = None
    ) -> SinkOutcome:
        """Decide a batch: these transactions of the job are committed, all others of the sink aborted."""
        return self._run(self._inner.commit_sink_batch(job, winners, timeout=timeout))

    def abort_sink_job(self, job: SinkJob, *, timeout: float | None = None) -> SinkOutcome:
        """Abort all that a job has written, and keep it from writing more; nothing where its batch is decided."""
        return self._run(self._inner.abort_sink_job(job, timeout=timeout))

    def delete_sink(self, sink: str, *, timeout: float | None = None) -> None:
        """Forget a ledger, for good."""
        self._run(self._inner.delete_sink(sink, timeout=timeout))

    # --- replicas and leaders ---------------------------------------------------------------------------

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Move partitions to other brokers, the preferred leader first; ``None`` cancels what is under way."""
        work = self._inner.alter_partition_reassignments(
            reassignments, allow_replication_factor_change=allow_replication_factor_change, timeout=timeout
        )
        self._run(work)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """The partitions whose replicas are being moved; of all, or of those named."""
        return self._run(self._inner.list_partition_reassignments(partitions, timeout=timeout))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False, timeout: float | None = None
    ) -> dict[TopicPartition, bool]:
        """Let the preferred replicas lead, of all partitions or of those named; True for each that was elected.
        ``unclean``: instead, give partitions without a leader any live one, whatever it lacks."""
        return self._run(self._inner.elect_leaders(partitions, unclean=unclean, timeout=timeout))

    def metrics(self) -> dict[str, int]:
        """Counters by Kafka's metric names."""
        return self._inner.metrics()
