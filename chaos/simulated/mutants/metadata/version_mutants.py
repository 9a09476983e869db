"""Patches of what lets two releases form one cluster. Each breaks a promise of ``docs/operations.md`` (Upgrade)."""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog.chaos.simulated.mutants.mutant import Mutant

_CONTROLLER: Final = "tidelog.metadata_quorum.controller.controller"
_CONTROLLER_NODE: Final = "tidelog.metadata_quorum.controller_node"
_FEATURES: Final = "tidelog.metadata_quorum.controller.features"
_JOURNAL: Final = "tidelog.metadata_quorum.raft.journal"
_LOG_DIRS: Final = "tidelog.broker.handlers.log_dirs"
_TOPICS: Final = "tidelog.metadata_quorum.controller.topic_changes"

mutant: Final = partial(Mutant, scenario="versions")

MUTANTS: Final = (
    mutant(
        id="record-below-its-level",
        rule="a record is written only under a level that has it",
        what="The controller writes any record that a request asks for, whether or not all nodes can read it.",
        module=_CONTROLLER,
        old="        fault = gate_fault(self.draft, decision.records)\n",
        new="        fault = None\n",
    ),
    mutant(
        id="registration-below-its-level",
        rule="a record is written only under a level that has it",
        what="Controller registrations enter the log although its level has no record for them.",
        module=_FEATURES,
        old=" != record and gate_fault(image, (record,)) is None\n",
        new=" != record\n",
    ),
    mutant(
        id="request-below-its-level",
        rule="a request is done only under a level that allows going on from it",
        what="Replicas move between disks although a node of release 0.1 may take over these disks.",
        module=_LOG_DIRS,
        old="        if fault is not None:\n            return AlterReplicaLogDirsResponse((), ErrorCode.UNSUPP",
        new="        if fault == 0:\n            return AlterReplicaLogDirsResponse((), ErrorCode.UNSUPP",
    ),
    mutant(
        id="brokers-not-asked",
        rule="a level is taken only if every node knows it",
        what="A level is raised if the controllers support it, whether or not the brokers do.",
        module=_FEATURES,
        old="        if not low <= level <= high:\n            hint =",
        new='        if kind == "controller" and not low <= level <= high:\n            hint =',
    ),
    mutant(
        id="silent-controllers-agree",
        rule="a level is taken only if every node knows it",
        what="A level is raised although a controller has not said that it supports it: a stopped one of release 0.1 "
        "whose broker was unregistered.",
        module=_FEATURES,
        old="    if missing:\n",
        new="    if missing == 0:\n",
    ),
    mutant(
        id="unregistered-brokers-are-asked",
        rule="a level is taken only if every node knows it",
        what="An unregistered broker still counts among those that must support a level.",
        module="tidelog.metadata_quorum.image.change",
        old="                    self._brokers.drop(record.node_id)\n",
        new="",
    ),
    mutant(
        id="formats-left-too-early",
        rule="the formats of release 0.1 stay until the level is taken",
        what="A controller abandons the formats of release 0.1 at the first entry that it receives.",
        module=_CONTROLLER_NODE,
        old="        if DIRECTORIES_VOTE.is_open(image.features):\n",
        new="        if image.features:\n",
    ),
    mutant(
        id="topic-id-that-nobody-said",
        rule="a field that release 0.1 does not send means what it meant there",
        what="The controller takes the missing topic id of a release 0.1 client for the topic's id.",
        module=_TOPICS,
        old="        if not topic.topic_id:\n",
        new="        if topic.topic_id == ZERO_TOPIC_ID:\n",
    ),
)
