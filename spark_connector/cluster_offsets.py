"""Looks up a query's partitions and their first and last offsets in the cluster when Spark plans the query."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from tidelog.client.admin.blocking import Admin
from tidelog.client.admin.types import ListedOffset, OffsetSpec
from tidelog.client.errors import (
    BrokerNotAvailableError,
    RequestTimedOutError,
    TidelogError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tidelog.model.ids import TopicId, TopicPartition
from tidelog.spark_connector.offsets import SourceOffset
from tidelog.spark_connector.options import (
    EARLIEST,
    LATEST,
    Kind,
    Limit,
    OptionError,
    SourceOptions,
    admin_settings,
    named,
)

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Topic(NamedTuple):
    name: str
    topic_id: TopicId
    partitions: int


class ClusterOffsets:
    """Looks up offsets for one query; connects on first use. Not thread-safe. Close it after use.

    A request is retried up to ``fetchOffset.numRetries`` times in all if a topic is unknown or a leader's log ends
    before an offset already known: in both cases the broker may just be behind.
    """

    def __init__(
        self,
        options: SourceOptions,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._sleep = sleep
        self._now = now
        self._admin: Admin | None = None
        self._matched = True
        self._answered = False
        self._away_since: float | None = None
        self.away: dict[str, Any] | None = None
        """While no broker answers: for how many seconds, and why. For the progress of a stream."""

    def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def __enter__(self) -> ClusterOffsets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- lookups ------------------------------------------------------------------------------------

    def partitions(self, *, tolerant: bool = False) -> SourceOffset:
        """Return all partitions to read, each with offset 0, and the ids of their topics.

        ``tolerant``: leave out named topics that do not exist. Raises ``UnknownTopicOrPartitionError``, and the errors
        of :meth:`_ask`.
        """
        chosen = self._options.selection
        if chosen.pattern is not None:
            wanted = re.compile(chosen.pattern)
            every = self._ask(lambda admin: admin.list_topics())
            listed = [_Topic(one.name, one.topic_id, one.partition_count) for one in every if wanted.search(one.name)]
            if self._matched and not listed:
                log.warning(
                    "subscribePattern '%s' matches no topic of %s, out of %d: there is nothing to read",
                    chosen.pattern, self._options.bootstrap, len(every),
                )  # fmt: skip
            self._matched = bool(listed)
        else:
            listed = self._named(chosen.topics or tuple(dict.fromkeys(at.topic for at in chosen.partitions)), tolerant)
        found = {TopicPartition(topic.name, n): 0 for topic in listed for n in range(topic.partitions)}
        if chosen.partitions:
            absent = [at for at in chosen.partitions if at not in found]
            if absent and not tolerant:
                raise UnknownTopicOrPartitionError(f"{named(absent)}: assigned, but there is no such partition")
            found = {at: 0 for at in chosen.partitions if at in found}
        return SourceOffset(found, {topic.name: topic.topic_id.hex() for topic in listed})

    def _named(self, names: Sequence[str], tolerant: bool) -> list[_Topic]:
        """Return those of the topics that exist. Asks by name, because a cluster may have very many others."""
        for attempt in range(1, self._options.fetch_retries + 1):
            found = self._described(names)
            missing = [name for name in names if name not in found]
            if not missing or attempt == self._options.fetch_retries:
                break
            self._pause()
        if missing and not tolerant:
            raise UnknownTopicOrPartitionError(f"{', '.join(missing)}: this cluster has no such topic")
        return [found[name] for name in names if name in found]

    def _described(self, names: Sequence[str]) -> dict[str, _Topic]:
        def described(wanted: Sequence[str]) -> dict[str, _Topic]:
            found = self._ask(lambda admin: admin.describe_topics(wanted)) if wanted else []
            return {one.name: _Topic(one.name, one.topic_id, len(one.partitions)) for one in found}

        try:
            return described(names)
        except UnknownTopicOrPartitionError as error:
            return described([name for name in names if name not in error.failures])

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each."""
        found = self._listed({at: OffsetSpec.earliest() for at in partitions})
        return {at: one.offset for at, one in found.items()}

    def latest(self, partitions: Iterable[TopicPartition], known: SourceOffset | None = None) -> SourceOffset:
        """Return the last stable offset of each, before which every transaction is decided, and the leader that
        answered.

        An answer below ``known`` is asked for again, and finally returned as it is: data is lost. An answer from a
        leader older than the known one is never returned, because that leader was replaced and has not learned of it
        (``BrokerNotAvailableError``). ``known`` has only existing topics.
        """
        wanted = list(partitions)
        reached = {} if known is None else known.offsets
        epochs = {} if known is None else known.leader_epochs
        for attempt in range(1, self._options.fetch_retries + 1):
            found = self._listed({at: OffsetSpec.latest() for at in wanted})
            behind = [at for at in wanted if found[at].offset < reached.get(at, 0)]
            if not behind or attempt == self._options.fetch_retries:
                break
            log.warning("%s: the last stable offset lies before what is known; asking again", named(behind))
            self._pause()
        replaced = [at for at in behind if found[at].leader_epoch < epochs.get(at, -1)]
        if replaced:
            raise BrokerNotAvailableError(
                f"{named(replaced)}: the leader that answers was replaced and has not heard of it; it knows less than "
                "this query does"
            )
        return SourceOffset(
            {at: one.offset for at, one in found.items()},
            {},
            leader_epochs={a: o.leader_epoch for a, o in found.items()},
        )

    def after_bytes(self, parts: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        """Return where each partition's batches end that begin at an offset and take so many bytes of the log, at least
        one batch. Raises ``OptionError`` if the brokers cannot tell."""
        try:
            found = self._listed({at: OffsetSpec.after_bytes(start, size) for at, (start, size) in parts.items()})
        except UnsupportedVersionError as error:
            raise OptionError(
                f"maxBytesPerTrigger: expected brokers that look up offsets by bytes, found older ones ({error}). "
                "Upgrade them, or give maxOffsetsPerTrigger"
            ) from None
        return {at: one.offset for at, one in found.items()}

    def resolved(self, limit: Limit, there: SourceOffset, *, starting: bool) -> SourceOffset:
        """Return the offsets that a limit means for the partitions ``there``. Raises ``OptionError``."""
        wanted = dict(there.offsets)
        edge = "start" if starting else "end"
        if limit.kind is Kind.EARLIEST:
            wanted = dict.fromkeys(wanted, EARLIEST)
        elif limit.kind is Kind.LATEST:
            wanted = dict.fromkeys(wanted, LATEST)
        elif limit.kind is Kind.OFFSETS:
            if limit.by_partition.keys() != wanted.keys():
                raise OptionError(
                    f"Partitions specified for Tidelog {edge} offsets don't match what are assigned. Maybe topic "
                    "partitions are created or deleted while the query is running. Use -1 for latest, -2 for earliest. "
                    f"Specified: {named(limit.by_partition)} Assigned: {named(wanted)}"
                )
            wanted = dict(limit.by_partition)
        else:
            wanted = self._by_time(limit, wanted, edge)
        latest = self.latest(at for at, offset in wanted.items() if offset == LATEST)
        earliest = self.earliest(at for at, offset in wanted.items() if offset == EARLIEST)
        offsets = {**wanted, **latest.offsets, **earliest}
        return SourceOffset(offsets, there.topic_ids, leader_epochs=latest.leader_epochs)

    def _by_time(self, limit: Limit, there: Mapping[TopicPartition, int], edge: str) -> dict[TopicPartition, int]:
        times: Mapping[TopicPartition, int] = dict.fromkeys(there, limit.timestamp)
        if limit.kind is Kind.TIMESTAMPS:
            times = limit.by_partition
            if times.keys() != there.keys():
                raise OptionError(
                    f"Partitions specified for Tidelog timestamp based {edge} offsets don't match what are assigned. "
                    "Maybe topic partitions are created or deleted while the query is running, or you didn't specify "
                    f"all the partitions. Specified: {named(times)} Assigned: {named(there)}"
                )
        listed = self._listed({at: OffsetSpec.for_timestamp(time) for at, time in times.items()})
        found = {at: one.offset for at, one in listed.items()}
        without = [at for at, offset in found.items() if offset < 0]
        if without and edge == "start" and not self._options.latest_without_match:
            at = min(without)
            raise OptionError(f"No offset matched from request of topic-partition {at} and timestamp {times[at]}.")
        return found | dict.fromkeys(without, LATEST)

    # --- brokers that are away --------------------------------------------------------------------------

    def bear(self, error: BrokerNotAvailableError) -> None:
        """Tolerate that no broker has answered: log it, and remember it as :attr:`away`.

        Raises the error if no broker has ever answered (the address may be wrong), or none for longer than
        ``maxBrokerOutage``.
        """
        now = self._now()
        if self._away_since is None:
            self._away_since = now - self._api_timeout_s()  # the failed request took that long
        seconds = now - self._away_since
        bound = self._options.broker_outage_ms_max / 1_000
        if not self._answered:
            raise error
        if seconds > bound:
            raise BrokerNotAvailableError(
                f"{error}. That has been so for {seconds:.0f} s; the option maxBrokerOutage bears {bound:g} s. Start "
                "the query again when the brokers are back: it goes on from its checkpoint"
            ) from None
        self.away = {"seconds": round(seconds, 1), "reason": str(error)}
        log.warning("%s; the query waits, for at most %g s (maxBrokerOutage), %.0f s so far", error, bound, seconds)

    def patiently(self, call: Callable[[], T]) -> T:
        """Repeat a call until brokers answer it. Raises the errors of :meth:`bear`."""
        while True:
            try:
                found = call()
            except BrokerNotAvailableError as error:
                self.bear(error)
                self._pause()
            else:
                self.back()
                return found

    def back(self) -> None:
        """Forget the outage: brokers have answered everything."""
        self._away_since = self.away = None

    def _api_timeout_s(self) -> float:
        return int(self._options.client["default_api_timeout_ms"]) / 1_000

    # --- asking -------------------------------------------------------------------------------------

    def _listed(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, ListedOffset]:
        if not specs:
            return {}
        return self._ask(lambda admin: admin.list_offsets(specs, read_committed=True))

    def _ask(self, call: Callable[[Admin], T]) -> T:
        """Make a call. Raises a one-line ``BrokerNotAvailableError`` if no broker answers in time, or none that can."""
        if self._admin is None:
            self._admin = Admin(self._options.bootstrap, **admin_settings(self._options.client))
        try:
            found = call(self._admin)
        except (BrokerNotAvailableError, RequestTimedOutError) as error:
            servers, limit = self._options.bootstrap, self._options.client["default_api_timeout_ms"]
            raise BrokerNotAvailableError(f"no broker of {servers} answered within {limit} ms: {error}") from None
        except UnknownTopicOrPartitionError:
            raise
        except TidelogError as error:
            if not error.retriable:
                raise
            raise BrokerNotAvailableError(
                f"the brokers of {self._options.bootstrap} have no leader or coordinator that answers: {error}"
            ) from None
        self._answered = True
        return found

    def _pause(self) -> None:
        self._sleep(self._options.fetch_retry_interval_ms / 1_000)
