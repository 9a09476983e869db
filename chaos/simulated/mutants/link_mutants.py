"""Patches of links between clusters. Each takes away one rule of the decision "A link is a process of its own"."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_MANAGING: Final = "tidelog.client.links.managing"
_REVERSING: Final = "tidelog.client.links.reversing"

mutant: Final = partial(Mutant, scenario="links")

MUTANTS: Final = (
    mutant(
        id="link-keeps-producer-ids",
        rule="ids",
        what="Copied records keep their producer ids from the source: the target assigns the same ids, and takes its "
        "first producers' records for those.",
        module="tidelog.client.links.batches",
        old="        producer_id=batch.producer_id ^ mask,\n",
        new="        producer_id=batch.producer_id,\n",
    ),
    mutant(
        id="promotion-leaves-transactions-open",
        rule="transactions",
        what="A promotion does not abort open transactions: read_committed readers never get past them.",
        module=_MANAGING,
        old="    while found := await _open(admin, places):\n",
        new="    while found := []:\n",
    ),
    mutant(
        id="groups-beyond-the-end",
        rule="groups",
        what="A group's offset is copied before the records that precede it.",
        module="tidelog.client.links.group_offsets",
        old="OffsetAndMetadata(min(offset, ends[at]), -1,",
        new="OffsetAndMetadata(offset, -1,",
    ),
    mutant(
        id="drain-fences-nobody",
        rule="drain",
        what="The source's leaders accept records during a drain.",
        module="tidelog.replication.partition.partition",
        old="        if self.state.config.link_name and origin is Origin.CLIENT:\n",
        new="        if self.state.config.takes_link and origin is Origin.CLIENT:\n",
    ),
    mutant(
        id="drained-log-takes-empty-markers",
        rule="reverse",
        what="A fenced log accepts end markers of transactions that wrote nothing to it: it is no longer a prefix of "
        "the other log.",
        module="tidelog.replication.serving.marking",
        old="                if refusal is None and partition.state.config.link_name:\n",
        new="                if refusal is None and partition.state.config.takes_link:\n",
    ),
    mutant(
        id="drain-ignores-open-transactions",
        rule="drain",
        what="A drain does not wait for transactions that are open at the source: the promotion aborts what commits "
        "there.",
        module=_REVERSING,
        old="        if all(one.current_transaction_start_offset is None for some in known.values() for one in some):",
        new="        if known:",
    ),
    mutant(
        id="link-is-told-too-early",
        rule="positions",
        what="A leader tells a link that it has records before they are in sync: the next leader may lack them.",
        module="tidelog.replication.serving.importing",
        old="                error = await self._committed(at, leading.epoch, end)\n",
        new="                error = ErrorCode.NONE\n",
    ),
    mutant(
        id="promotion-waits-for-nobody",
        rule="promotion",
        what="A promotion does not wait until leaders and coordinators know of it: those that do not keep accepting "
        "the link's records and offsets.",
        module=_MANAGING,
        old="    await all_of(seal(admin, topic, at, name) for topic in chosen_topics for at in topic.places)\n"
        "    await _seal_groups(admin, definition, chosen_topics)\n",
        new="",
    ),
)
