"""Patches of retries and dead letters. Each takes away one rule that :mod:`tidelog.chaos.checkers.patterns.retries`
judges by."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_WORKERS: Final = "tidelog.client.workers.asynchronous"
_COPIES: Final = "tidelog.client.workers.dead_letters"
_SENT: Final = "                await producer.send_offsets_to_transaction(letters.offsets, member)\n"

mutant: Final = partial(Mutant, scenario="retries")

MUTANTS: Final = (
    mutant(
        id="retry-commit-after-the-copies",
        rule="each once",
        what="The commit that says that records are finished follows the transaction of their copies.",
        module=_WORKERS,
        old=_SENT + "        except TidelogError as error:\n",
        new="            await consumer.commit(letters.offsets)\n        except TidelogError as error:\n",
    ),
    mutant(
        id="retry-commit-before-the-copies",
        rule="none lost",
        what="Records are committed as finished before their copies are written.",
        module=_WORKERS,
        old="            async with self._producer.transaction() as producer:\n"
        "                for letter in letters.arguments:\n"
        "                    await producer.send(**letter)\n" + _SENT,
        new="            await consumer.commit(letters.offsets)\n"
        "            async with self._producer.transaction() as producer:\n"
        "                for letter in letters.arguments:\n"
        "                    await producer.send(**letter)\n",
    ),
    mutant(
        id="retry-member-is-not-named",
        rule="each once",
        what="The transaction does not say which member of the group it is of, so one that stood still while others "
        "took its partitions commits as well.",
        module=_WORKERS,
        old=_SENT,
        new="                stranger = type(member)(member.group_id)\n"
        "                await producer.send_offsets_to_transaction(letters.offsets, stranger)\n",
    ),
    mutant(
        id="retry-forgets-attempts",
        rule="at most so many attempts",
        what="A copy says that its handler raised once, however often it did.",
        module=_COPIES,
        old='        f"{RETRY_OWN}attempt": past.failures + 1,\n',
        new='        f"{RETRY_OWN}attempt": 1,\n',
    ),
    mutant(
        id="retry-names-the-last-place",
        rule="origin",
        what="A copy and a dead letter name where the handler had the record last, not where it was written first.",
        module=_COPIES,
        old="        return Past(\n"
        '            told["topic"].decode(),  # type: ignore[union-attr]\n'
        '            *(int(told[name] or b"") for name in ("partition", "offset", "timestamp", "attempt", '
        '"first-failed-at")),\n'
        "        )\n",
        new="        return Past(\n"
        "            record.topic, record.partition, record.offset, record.timestamp,\n"
        '            *(int(told[name] or b"") for name in ("attempt", "first-failed-at")),\n'
        "        )\n",
    ),
    mutant(
        id="retry-loses-headers",
        rule="unchanged",
        what="Copies have no headers but those that are added.",
        module=_COPIES,
        old="    return tuple((name, value) for name, value in record.headers if not name.startswith(added))\n",
        new="    return tuple((name, value) for name, value in record.headers if name.startswith(added) and False)\n",
    ),
)
