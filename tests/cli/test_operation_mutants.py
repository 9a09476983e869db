"""Mutants of what operators' commands refuse, and of the planner's rules: without the rule, the named test must fail.

The simulation runs no commands, so tests show these instead of seeds.
"""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

RULES = (
    bound(
        "unknown-brokers-are-drained",
        "cli.work.replicas.safe_moves",
        "    if unknown := sorted(set(gone) - found.brokers.keys() - held):\n",
        "    if unknown := []:\n",
        "cli/placement/test_safe_moves.py::test_whom_to_drain",
    ),
    bound(
        "live-brokers-are-drained-as-dead",
        "cli.work.replicas.safe_moves",
        "    if dead and (up := sorted(live.intersection(gone))):\n",
        "    if up := []:\n",
        "cli/placement/test_safe_moves.py::test_whom_to_drain",
    ),
    bound(
        "brokers-that-are-down-are-drained-unsaid",
        "cli.work.replicas.safe_moves",
        "    if down and not dead:\n",
        "    if False:\n",
        "cli/placement/test_safe_moves.py::test_whom_to_drain",
    ),
    bound(
        "partitions-without-leader-are-to-move",
        "cli.work.replicas.safe_moves",
        "    if headless := [at for at in wanted if found.placed[at].leader < 0]:\n",
        "    if headless := []:\n",
        "cli/placement/test_safe_moves.py::test_a_move_that_could_not_end_is_not_begun",
    ),
    bound(
        "moves-wait-for-more-in-sync-replicas-than-there-are",
        "cli.work.replicas.safe_moves",
        "        if len(after) < needed:\n",
        "        if False:\n",
        "cli/placement/test_safe_moves.py::test_a_move_that_could_not_end_is_not_begun",
    ),
    bound(
        "partitions-that-are-not-in-sync-are-rebalanced",
        "cli.work.replicas.safe_moves",
        " or not set(placed.replicas) <= set(placed.isr)",
        "",
        "cli/placement/test_safe_moves.py::test_what_a_rebalance_leaves_alone",
    ),
    bound(
        "brokers-with-replicas-are-forgotten",
        "cli.commands.placement.brokers",
        "        if held and not force:\n",
        "        if False:\n",
        "cli/placement/test_brokers.py::test_a_dead_broker_is_listed_refused_and_forgotten",
    ),
    bound(
        "moves-crowd-racks",
        "cli.work.replicas.spreading",
        "        return rack == here or crowd[rack] < crowd[here]\n",
        "        return True\n",
        "cli/placement/test_spreading.py::test_racks_come_before_bytes",
    ),
    bound(
        "crowded-racks-stay-crowded",
        "cli.work.replicas.spreading",
        "(parts, targets, _weight, fixed=fixed)\n    spread.mend_racks()\n",
        "(parts, targets, _weight, fixed=fixed)\n",
        "cli/placement/test_spreading.py::test_racks_come_before_bytes",
    ),
    bound(
        "moves-crowd-machines",
        "cli.work.replicas.spreading",
        "        return free and self._near(at, target, source) <= self._near(at, source)\n",
        "        return free\n",
        "cli/placement/test_spreading.py::test_a_plan_crowds_no_machine_that_it_can_spare",
    ),
    bound(
        "crowded-machines-stay-crowded",
        "cli.work.replicas.spreading",
        "            self._mend_machines(at)\n",
        "",
        "cli/placement/test_spreading.py::test_a_plan_crowds_no_machine_that_it_can_spare",
    ),
    bound(
        "replicas-share-a-machine-of-a-rack",
        "metadata_quorum.controller.placement",
        "            if broker.machine is None or broker.machine not in crowded:\n",
        "            if True:\n",
        "controller/test_failure_domains.py::test_new_topics_have_no_two_replicas_on_a_machine",
    ),
    bound(
        "a-rebalance-knows-no-tolerance",
        "cli.work.replicas.spreading",
        "    spread.even_out(math.floor(average * (1 - tolerance)), math.ceil(average * (1 + tolerance)))\n",
        "    spread.even_out(math.floor(average), math.ceil(average))\n",
        "cli/placement/test_spreading.py::test_nothing_moves_within_the_tolerance",
    ),
    bound(
        "links-loop",
        "client.links.keeping",
        "        elif cluster_id in chain_of(definition, settings):\n",
        "        elif False:\n",
        "links/test_links.py::test_loops_and_topics_of_others_are_refused",
    ),
    bound(
        "links-fill-topics-of-others",
        "client.links.keeping",
        "        elif name in there and there[name].link != definition.name:\n",
        "        elif False:\n",
        "links/test_links.py::test_loops_and_topics_of_others_are_refused",
    ),
    bound(
        "a-cluster-is-its-own-source",
        "client.links.linking",
        "    if ours == theirs.cluster_id:\n",
        "    if False:\n",
        "links/test_links_on_clusters.py::test_a_cluster_is_no_source_for_itself",
    ),
    bound(
        "a-restore-fills-any-cluster",
        "client.backup.restoring",
        '        if found:\n            raise BackupError(\n                f"expected an empty',
        '        if False:\n            raise BackupError(\n                f"expected an empty',
        "backup/test_refusals.py::test_topics_groups_and_records_of_others_are_in_the_way",
    ),
    bound(
        "a-restore-takes-topics-of-others",
        "client.backup.restoring",
        "            if known.topic_id.hex() != topic.topic_id or known.partition_count != len(topic.partitions):\n",
        "            if False:\n",
        "backup/test_refusals.py::test_topics_groups_and_records_of_others_are_in_the_way",
    ),
    bound(
        "a-restore-goes-on-behind-records-of-others",
        "client.backup.restoring",
        "            if end > part.end:\n",
        "            if False:\n",
        "backup/test_refusals.py::test_topics_groups_and_records_of_others_are_in_the_way",
    ),
    bound(
        "a-restore-overwrites-groups",
        "client.backup.restoring",
        "            if any(ours.get(at) != one.offset for at, one in offsets.items()):\n",
        "            if False:\n",
        "backup/test_refusals.py::test_topics_groups_and_records_of_others_are_in_the_way",
    ),
    bound(
        "brokers-read-backups-anywhere",
        "broker.logs.backup_places",
        "            if wanted.is_relative_to(directory):\n",
        "            if str(wanted).startswith(directory):\n",
        "backup/test_read_by_leaders.py::test_nothing_else_is_read",
    ),
    bound(
        "brokers-follow-links-out-of-backups",
        "broker.logs.backup_places",
        "os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_DIRECTORY | os.O_CLOEXEC",
        "backup/test_read_by_leaders.py::test_nothing_else_is_read",
    ),
    bound(
        "brokers-follow-links-from-backups-files",
        "broker.logs.backup_places",
        "flags | os.O_NOFOLLOW | os.O_NONBLOCK",
        "flags | os.O_NONBLOCK",
        "backup/test_read_by_leaders.py::test_nothing_else_is_read",
    ),
    bound(
        "brokers-read-another-backup",
        "broker.logs.backup_places",
        "        if found != wanted:\n",
        "        if False:\n",
        "backup/test_read_by_leaders.py::test_nothing_else_is_read",
    ),
    bound(
        "brokers-read-shortened-backups",
        "broker.logs.backup_places",
        "                if size == part.size:\n",
        "                if True:\n",
        "backup/test_read_by_leaders.py::test_nothing_else_is_read",
    ),
    bound(
        "readings-go-on-without-a-restore",
        "broker.logs.backup_reading",
        "            if self._clock.monotonic_ms() - reading.asked_ms > IDLE_MS:\n",
        "            if False:\n",
        "backup/test_read_by_leaders.py::test_it_ends_if_nobody_asks_any_more",
    ),
    bound(
        "any-number-of-backups-files-is-read",
        "broker.logs.backup_reading",
        "        async with self._room:\n",
        "        if True:\n",
        "backup/test_read_by_leaders.py::test_no_more_files_are_read_at_once_than_the_bound",
    ),
    bound(
        "manifests-without-bound",
        "broker.logs.backup_places",
        "        if len(content) > MANIFEST_BYTES_MAX:\n",
        "        if False:\n",
        "backup/test_read_by_leaders.py::test_a_manifest_beyond_the_bound_is_not_read",
    ),
    bound(
        "results-of-deleted-topics-count",
        "broker.logs.backup_reading",
        "            if result.done and result.log_end_offset == first.log_end_offset:\n",
        "            if result.done:\n",
        "backup/test_read_by_leaders.py::test_a_result_that_nobody_came_for_counts_only_for_the_same_log",
    ),
)


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
