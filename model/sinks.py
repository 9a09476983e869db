"""The names of a sink's transactions. The name alone identifies the sink, and so its coordinator.

One record batch decides all transactions of a *sink* (an external program that writes in numbered batches, each by a
*job* of many *attempts*). So they all live in the partition of ``__transaction_state`` that the sink's name hashes to,
not their own ids: a transactional id of the form ``__sink/<sink>/<batch>/<job>/<attempt>``, the sink's name
percent-encoded, has the sink's name as *coordinator key*. Only the coordinator creates such ids; no producer may
request one.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

SINK_PREFIX: Final = "__sink/"
"""Prefix reserved for sinks' transactional ids."""
SINK_NAME_BYTES_MAX: Final = 255
SINK_PART_LENGTH_MAX: Final = 64
BATCH_MAX: Final = 2**63 - 1
NO_BATCH: Final = -1

_PART: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{SINK_PART_LENGTH_MAX}}}")


class SinkAttempt(NamedTuple):
    """One transaction of a sink: ``batch`` from 0 on, ``job`` one run of that batch, ``attempt`` one writer in it."""

    sink: str
    batch: int
    job: str
    attempt: str

    @property
    def transactional_id(self) -> str:
        return f"{sink_key(self.sink)}/{self.batch}/{self.job}/{self.attempt}"


def sink_key(sink: str) -> str:
    """Return the key of a sink's coordinator, which is looked up like a transactional id."""
    return SINK_PREFIX + quote(sink, safe="")


def is_sinks(transactional_id: str) -> bool:
    """Return whether the id has the form reserved for sinks."""
    return transactional_id.startswith(SINK_PREFIX)


def sink_attempt(transactional_id: str) -> SinkAttempt | None:
    """Return the sink that owns this transaction; None for any other id."""
    if not is_sinks(transactional_id):
        return None
    match transactional_id.removeprefix(SINK_PREFIX).split("/"):
        case [sink, batch, job, attempt] if batch.isascii() and batch.isdigit() and len(batch) <= 19:
            return SinkAttempt(unquote(sink), int(batch), job, attempt)
        case _:
            return None


def coordinator_key(transactional_id: str) -> str:
    """Return the name to hash for an id's partition of ``__transaction_state``."""
    if not is_sinks(transactional_id):
        return transactional_id
    return unquote(transactional_id.removeprefix(SINK_PREFIX).split("/", 1)[0])


def sink_fault(sink: str) -> str | None:
    """Return why no sink can have this name, or None."""
    if not sink:
        return "expected a sink's name, found an empty one"
    size = len(sink.encode("utf-8", "surrogatepass"))
    if size > SINK_NAME_BYTES_MAX:
        return f"expected a sink's name of at most {SINK_NAME_BYTES_MAX} bytes, found {size}"
    if any("\ud800" <= letter <= "\udfff" for letter in sink):
        return f"expected a sink's name in Unicode, found {sink!r}"
    return None


def job_fault(batch: int, job: str) -> str | None:
    """Return why the job is invalid, or None."""
    if not 0 <= batch <= BATCH_MAX:
        return f"expected a batch from 0 on, found {batch}"
    return part_fault("job", job)


def part_fault(what: str, part: str) -> str | None:
    """Return why ``part`` cannot name a job or an attempt, or None."""
    if _PART.fullmatch(part):
        return None
    return f"{what}: expected 1 to {SINK_PART_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -, found {part[:100]!r}"
