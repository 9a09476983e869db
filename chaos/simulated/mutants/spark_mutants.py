"""Patches of a query's way from source to sink: of the ledger, of the connector, of what the model of Spark does
with them. Each takes away one rule of :mod:`tidelog.chaos.checkers.spark` or :mod:`tidelog.chaos.checkers.sinks`."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Edit, Mutant
from tidelog.chaos.simulated.mutants.sink_mutants import ORPHANS_KEPT

_LEDGER: Final = "tidelog.transactions.ledger"
_DECIDING: Final = "tidelog.transactions.sinks.deciding"
_SOURCE: Final = "tidelog.spark_connector.source"
_CLIENTS: Final = "tidelog.chaos.workloads.spark"

mutant: Final = partial(Mutant, scenario="spark")

MUTANTS: Final = (
    mutant(
        id="spark-decision-not-durable",
        rule="kept",
        what="CommitBatch is answered before the decision is stored: the decision dies with the coordinator.",
        module=_DECIDING,
        old="        pending = PendingAppend((asker,), written)\n",
        new="        shard.answer(asker.waiter, asker.tell(ErrorCode.NONE))\n"
        "        pending = PendingAppend((), written)\n",
    ),
    mutant(
        id="spark-fencing-looked-at-before-the-decision",
        rule="decided",
        what="A fenced job learns that it is fenced although its batch is decided: a driver that resumes cannot know "
        "that all is well.",
        module=_LEDGER,
        old="        if batch <= self.last_batch:\n            return JobStanding.DECIDED\n",
        new="        if job in self.fenced:\n            return JobStanding.FENCED\n"
        "        if batch <= self.last_batch:\n            return JobStanding.DECIDED\n",
        more=(
            Edit(
                _LEDGER,
                "        fenced = {other: its for other, its in others.items() if its > batch}\n",
                "        fenced = dict(others)\n",
            ),
        ),
    ),
    mutant(
        id="spark-attempt-named-without-the-job",
        rule="once",
        what="Attempts are named by batch and number alone, and each job numbers from 0: a late attempt shares its "
        "transaction with the one that redoes its work.",
        module="tidelog.model.sinks",
        old='        return f"{sink_key(self.sink)}/{self.batch}/{self.job}/{self.attempt}"\n',
        new='        return f"{sink_key(self.sink)}/{self.batch}/any/{self.attempt}"\n',
        more=(
            Edit(
                _LEDGER,
                "        return self.standing(attempt.batch, attempt.job) is JobStanding.CURRENT\n",
                "        return self.standing(attempt.batch, self.job) is JobStanding.CURRENT\n",
            ),
        ),
    ),
    mutant(
        id="spark-job-named-by-its-batch",
        rule="no progress",
        what="A batch that is run again has the same job: nothing fences the attempts of the first run.",
        module="tidelog.client.sinks",
        old="        return cls(sink, batch, fresh_name(rng)).checked()\n",
        new='        return cls(sink, batch, f"run-of-{batch}").checked()\n',
    ),
    mutant(
        id="spark-job-minted-in-commit",
        rule="no progress",
        what="Commit runs in a process of its own, and creates a job there that is not the tasks' job.",
        module=_CLIENTS,
        old="        work.asked(job)\n",
        new="        job = ledger.new_job(job.batch)\n"
        "        messages = [\n"
        "            SinkMessage(*job, one.attempt, one.producer_id, one.producer_epoch, one.rows)\n"
        "            for one in messages\n"
        "        ]\n"
        "        work.asked(job)\n",
    ),
    mutant(
        id="spark-loser-not-aborted",
        rule="no progress",
        what="Nothing aborts a prepared attempt that lost, neither the decision, nor a coordinator that finds it, nor "
        "its timeout: nobody reads past it.",
        module=_LEDGER,
        old="            and not self.ledger.keeps(entry.attempt)\n",
        new="            and not self.ledger.keeps(entry.attempt)\n"
        '            and entry.value.state.value != "Prepared"\n',
        more=ORPHANS_KEPT,
    ),
    mutant(
        id="spark-loser-accepted",
        rule="each once",
        what="Two attempts at a task report that they are done, and the driver commits both.",
        module=_CLIENTS,
        old="    return [first[number] for number in sorted(first)]\n",
        new="    return [message for _, message in arrived]\n",
    ),
    mutant(
        id="spark-range-ends-at-the-high-watermark",
        rule="decided ranges",
        what="A batch's range goes up to the high watermark, although it is undecided whether open transactions below "
        "will count.",
        module="tidelog.spark_connector.cluster_offsets",
        old="admin.list_offsets(specs, read_committed=True)",
        new="admin.list_offsets(specs, read_committed=False)",
    ),
    mutant(
        id="spark-range-read-uncommitted",
        rule="same rows",
        what="Tasks read aborted records too.",
        module="tidelog.client.consumer.range_consumer",
        old='    "isolation_level": "read_committed",\n',
        new='    "isolation_level": "read_uncommitted",\n',
    ),
    mutant(
        id="spark-offset-log-after-the-batch",
        rule="each once",
        what="A batch's range is written to the offset log after the batch: a driver that dies in between leaves "
        "none, and the next one plans another range under the same number.",
        module=_CLIENTS,
        old="            await self._write(checkpoint.offsets, batch, json.dumps(end))\n"
        "            self._work.planned(self.sink, end)\n",
        new="            late = json.dumps(end)\n",
        more=(
            Edit(
                _CLIENTS,
                "        end = json.loads(checkpoint.offsets[batch])\n",
                "        else:\n            late = checkpoint.offsets[batch]\n        end = json.loads(late)\n",
            ),
            Edit(
                _CLIENTS,
                '        await self._point("decided")\n',
                '        await self._point("decided")\n        checkpoint.offsets[batch] = late\n',
            ),
        ),
    ),
    mutant(
        id="spark-first-batch-begins-anew",
        rule="each once",
        what='When the first batch of a query that starts at "latest" runs again, it starts at the log\'s current end.',
        module=_SOURCE,
        old="        if begin.initial and until.begin is not None:\n",
        new="        if begin.initial and until.begin is None:\n",
    ),
)
