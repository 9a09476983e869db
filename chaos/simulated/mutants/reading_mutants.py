"""Patches of filters and replays. Each takes away one rule that :mod:`tidelog.chaos.checkers.patterns.filters` or
:mod:`tidelog.chaos.checkers.patterns.replays` judges by."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_INDEX: Final = "tidelog.storage.segments.filter_index"

_filter: Final = partial(Mutant, scenario="filters")

_FILTERS: Final = (
    _filter(
        id="filter-block-knows-its-last-batch",
        rule="none lost",
        what="The mask of a block is that of its last batch alone.",
        module=_INDEX,
        old="        self._mask |= mask\n",
        new="        self._mask = mask\n",
    ),
    _filter(
        id="filter-believes-the-broker",
        rule="only what is wanted",
        what="The consumer hands out all that the broker sends, although batches come whole.",
        module="tidelog.client.consumer.core",
        old="                records = [record for record in records if wants(record.headers)]\n",
        new="                records = [record for record in records if wants]\n",
    ),
)

_replay: Final = partial(Mutant, module="tidelog.client.workers.replay", scenario="replays")

_REPLAYS: Final = (
    _replay(
        id="replay-place-runs-ahead",
        rule="each once",
        what="The first chunk of a partition commits its end as the place: a copy that is begun again skips the rest.",
        old="                copy.commit(waiting, {at: copy.place(min(batch.next_offset, end), end)})\n",
        new="                copy.commit(waiting, {at: copy.place(end, end)})\n",
    ),
    _replay(
        id="replay-reads-what-does-not-count",
        rule="what counts",
        what="Aborted records are copied too.",
        module="tidelog.client.consumer.range_consumer",
        old='    "isolation_level": "read_committed",\n',
        new='    "isolation_level": "read_uncommitted",\n',
    ),
)

MUTANTS: Final = (*_FILTERS, *_REPLAYS)
