"""Mutants of the listeners' bounds: with a bound taken out, the test that is named beside it must fail.

The simulation has no sockets, so these are shown by tests instead of seeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants import Session, bound, session_of
from tidelog.chaos.simulated.mutants.mutant import Mutant

BOUNDS = (
    bound(
        "tags-without-bound",
        "proto.kafka.wire",
        "    if count > TAGS_MAX:\n",
        "    if False:\n",
        "kafka/test_request_bounds.py::test_a_structure_has_at_most_so_many_tagged_fields",
    ),
    bound(
        "tags-cost-nothing",
        "proto.kafka.wire",
        "    budget.take(count)\n    return count, position\n",
        "    return count, position\n",
        "kafka/test_request_bounds.py::test_the_tagged_fields_of_all_structures_count_together",
    ),
    bound(
        "items-cost-nothing",
        "proto.kafka.message_reader",
        "        budget.take(count)\n",
        "",
        "kafka/wire/test_messages.py::test_a_request_may_not_become_more_objects_than_the_bound",
    ),
    bound(
        "fetch-partitions-without-bound",
        "proto.kafka.fetch_codec",
        "        if len(parts) + count > PARTITIONS_MAX:\n",
        "        if False:\n",
        "kafka/test_request_bounds.py::test_the_partitions_of_all_topics_of_a_fetch_count_together",
    ),
    bound(
        "fetch-sessions-remember-without-bound",
        "broker.kafka.fetch_sessions",
        " or self.partitions + size > PARTITIONS_CACHED_MAX",
        "",
        "kafka/test_fetch_sessions.py::test_all_sessions_together_have_at_most_so_many_partitions",
    ),
    bound(
        "fetch-sessions-are-anybodys",
        "broker.kafka.fetch_sessions",
        "found is not None and found.principal == principal",
        "found is not None",
        "kafka/test_fetch_sessions.py::test_a_session_is_found_by_its_own_principal_only",
    ),
    bound(
        "fetch-sessions-keep-lost-rights",
        "broker.kafka.fetch_sessions",
        "        if stamp is not None and stamp == self._stamp:\n",
        "        if self._stamp is not None:\n",
        "kafka/test_fetch_sessions.py::test_rights_are_judged_again_when_they_or_the_topics_change",
    ),
    bound(
        "fetch-sessions-miss-what-moves-while-they-answer",
        "replication.serving.consumer_fetch",
        "            part.cut = True\n            return\n",
        "            return\n",
        "replication/test_standing.py::test_what_moves_while_an_answer_is_made_is_looked_at_next",
    ),
    bound(
        "large-changes-in-one-turn",
        "metadata_quorum.proposals",
        "                is_first = False\n",
        "",
        "controller/test_proposals.py::test_a_large_change_is_proposed_an_entry_in_each_turn",
    ),
    bound(
        "entries-of-an-earlier-leadership-count",
        "metadata_quorum.proposals",
        "        self._under_way.clear()\n",
        "",
        "controller/test_proposals.py::test_what_is_not_proposed_when_leadership_ends_never_takes_effect",
    ),
    bound(
        "decisions-miss-what-is-on-its-way",
        "metadata_quorum.controller.controller",
        "        while self._appended:\n            self.catch_up()\n",
        "",
        "controller/test_proposals.py::test_a_decision_knows_everything_that_is_on_its_way",
    ),
    bound(
        "first-request-of-any-size",
        "broker.kafka.wire.incoming",
        "        if size > self._first_bytes_max and not self.proven:\n",
        "        if False:\n",
        "kafka/test_connection_bounds.py::test_a_large_first_request_is_refused_at_its_length",
    ),
    bound(
        "first-request-at-any-time",
        "broker.kafka.connection",
        "        self._read_on()\n        self._look_for_first()\n",
        "        self._read_on()\n",
        "kafka/test_connection_bounds.py::test_a_connection_without_a_first_request_is_closed_and_one_with_it_stays",
    ),
    bound(
        "any-number-of-connections-of-an-address",
        "broker.connection_quotas",
        "        if count >= most:\n",
        "        if False:\n",
        "kafka/test_connection_bounds.py::test_an_address_has_so_many_connections",
    ),
    bound(
        "a-named-address-has-as-many-connections-as-others",
        "broker.connection_quotas",
        "        most = self._overrides.get(address, self._most)\n",
        "        most = self._most\n",
        "kafka/test_connection_bounds.py::test_an_address_that_is_named_has_its_own_number",
    ),
    bound(
        "closed-connections-count-on",
        "broker.kafka.server",
        "        self._services.quotas.give(host)\n",
        "",
        "kafka/test_connection_bounds.py::test_an_address_has_so_many_connections",
    ),
    bound(
        "connections-as-fast-as-they-come",
        "broker.kafka.server",
        "            if pause_s := quotas.pause_s(self._loop.time()):\n",
        "            if pause_s := 0.0:\n",
        "kafka/test_connection_bounds.py::test_connections_beyond_their_rate_wait_and_are_served",
    ),
    bound(
        "an-address-connects-at-any-rate",
        "broker.kafka.server",
        "            if hold_ms:\n",
        "            if False:\n",
        "kafka/test_connection_bounds.py::test_an_address_over_its_quota_is_held_and_not_served",
    ),
    bound(
        "calls-of-strangers-are-read",
        "proto.transport.grpc_serving",
        "            caller = self._caller(context)\n            given: Any = await context.read()\n",
        "            given: Any = await context.read()\n            caller = self._caller(context)\n",
        "proto/transport/test_grpc_limits.py::test_the_messages_of_strangers_are_left_unread",
    ),
    bound(
        "messages-of-logins-are-read",
        "proto.transport.grpc_serving",
        "                    if not (data := _metadata(context, LOGIN)):\n",
        "                    await context.read()\n                    if not (data := _metadata(context, LOGIN)):\n",
        "proto/transport/test_grpc_limits.py::test_a_login_rides_in_metadata_and_its_message_is_left_unread",
    ),
    bound(
        "any-metadata-of-strangers",
        "proto.transport.grpc_wire",
        "LOGIN_METADATA_MAX: Final = 48 * 1024\n",
        "LOGIN_METADATA_MAX: Final = 480 * 1024\n",
        "proto/transport/test_grpc_limits.py::test_the_metadata_of_strangers_is_bounded",
    ),
    bound(
        "any-number-of-logins-of-a-connection",
        "proto.transport.grpc_serving",
        " or counts[connection] >= each:",
        ":",
        "proto/transport/test_grpc_limits.py::test_logins_under_way_are_bounded",
    ),
    bound(
        "packed-messages-are-unpacked",
        "proto.transport.grpc_serving",
        '            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: few bytes may not become many\n',
        "",
        "proto/transport/test_grpc_limits.py::test_a_packed_message_is_refused",
    ),
    bound(
        "a-path-that-is-no-text-ends-a-listener",
        "proto.transport.grpc_serving",
        "        self._again = asyncio.get_running_loop().create_task(self._bind_again(), name=BINDING_AGAIN)\n",
        "",
        "proto/transport/test_grpc_limits.py::test_a_path_that_is_no_text_ends_a_listener_for_a_moment_only",
    ),
    bound(
        "strangers-shake-hands-for-streams-over-tcp",
        "proto.transport.tcp_streams",
        "            if not self._expects_any() or len",
        "            if len",
        "proto/transport/test_tcp_streams.py::test_a_connection_that_no_stream_waits_for_is_closed_at_once",
    ),
    bound(
        "handshakes-on-the-event-loop",
        "broker.kafka.handshakes",
        "                step = self._loop.run_in_executor(self._threads, found.do_handshake)\n",
        "                found.do_handshake()\n                return\n",
        "broker/node/test_http_tls.py::test_a_handshake_with_a_large_key_does_not_hold_the_loop",
    ),
    bound(
        "any-number-of-batches-in-a-request",
        "replication.serving.producing",
        "                batches = split_batches(data, most=left)\n",
        "                batches = split_batches(data)\n",
        "replication/test_manager.py::test_a_request_has_at_most_so_many_batches_over_all_partitions",
    ),
    bound(
        "batches-of-torn-records-cost-nothing",
        "replication.serving.producing",
        "                left -= corrupt.batches\n",
        "",
        "replication/test_manager.py::test_a_request_has_at_most_so_many_batches_over_all_partitions",
    ),
    bound(
        "the-guard-looks-at-any-number-of-batches",
        "broker.access.guard",
        "            if left < 0 or view",
        "            if view",
        "security/access/test_access_on_a_cluster.py::"
        "test_records_do_not_hold_the_loop_whether_their_sender_may_write_them_or_not",
    ),
    bound(
        "the-guard-walks-on-behind-what-is-no-batch",
        "broker.access.guard",
        "            if length < HEADER_SIZE - LENGTH_OVERHEAD:\n                break\n",
        "            length = max(length, 0)\n",
        "security/access/test_access_on_a_cluster.py::test_records_on_a_stream_do_not_hold_the_loop",
    ),
    bound(
        "records-of-transactions-need-no-right",
        "broker.access.guard",
        "    return transactional_id is None and _any_transactional(records)\n",
        "    return False\n",
        "security/access/test_access_on_a_cluster.py::test_records_of_a_transaction_that_nobody_names_are_refused",
    ),
    bound(
        "a-name-said-twice-ends-the-node",
        "broker.access.rules",
        "    between = (next(rest, None) if",
        "    between = (next(rest) if",
        "security/access/test_permissions.py::test_items_that_are_named_twice_may_be_served_once",
    ),
    bound(
        "any-number-of-items-in-a-call",
        "proto.calls.convert",
        "    if len(data) > items_max and _items_left(message, items_max) < 0:",
        "    if False:",
        "proto/transport/test_grpc_limits.py::test_a_clients_request_has_at_most_so_many_items",
    ),
    bound(
        "items-of-inner-lists-cost-nothing",
        "proto.calls.convert",
        "                left = _items_left(each, left)\n",
        "                pass\n",
        "proto/test_convert.py::test_the_items_of_all_lists_count_together",
    ),
    bound(
        "any-number-of-items-in-a-brokers-call",
        "proto.transport.grpc_serving",
        " if of_clients else limits.controller_items_max\n",
        " if of_clients else 1 << 62\n",
        "proto/transport/test_grpc_limits.py::test_a_brokers_request_to_a_controller_has_at_most_so_many_items",
    ),
    bound(
        "any-number-of-raft-messages",
        "proto.transport.raft_messages",
        "    if len(messages) > MESSAGES_MAX:\n",
        "    if False:\n",
        "proto/logs/test_raft_messages.py::test_a_frame_is_bounded_before_its_messages_become_objects",
    ),
    bound(
        "controllers-of-any-cluster-are-heard",
        "metadata_quorum.raft.transport",
        '            ("cluster", mine.cluster_id, hello.cluster_id),\n',
        "",
        "quorum/test_quorum.py::test_a_stream_that_does_not_belong_is_refused",
    ),
    bound(
        "streams-to-another-controller-are-heard",
        "metadata_quorum.raft.transport",
        '            ("a stream to node", mine.node_id, hello.peer_id),\n',
        "",
        "quorum/test_quorum.py::test_a_stream_that_does_not_belong_is_refused",
    ),
    bound(
        "any-node-is-heard-as-a-controller",
        "metadata_quorum.raft.transport",
        "        if hello.node_id not in self._links:\n",
        "        if False:\n",
        "quorum/test_quorum.py::test_a_stream_that_does_not_belong_is_refused",
    ),
    bound(
        "any-hello-is-read",
        "proto.transport.raft_messages",
        "    if len(data) > HELLO_BYTES_MAX:\n",
        "    if False:\n",
        "proto/logs/test_raft_messages.py::test_a_hello_that_names_a_crowd_is_not_read",
    ),
    bound(
        "clients-call-as-nodes-do",
        "proto.transport.grpc_serving",
        "        small = of_clients and",
        "        small = False and",
        "proto/transport/test_grpc_limits.py::test_a_clients_call_is_smaller_than_a_nodes",
    ),
    bound(
        "fetches-from-any-number-of-partitions",
        "proto.transport.frames",
        "        if count > FETCH_PARTITIONS_MAX:\n",
        "        if False:\n",
        "broker/handlers/test_data_streams.py::test_one_fetches_from_at_most_so_many_partitions",
    ),
    bound(
        "transactions-are-decided-while-they-are-held",
        "transactions.shard_state",
        "        return not self.hold and len(",
        "        return len(",
        "transactions/test_holding.py::test_nothing_is_begun_decided_or_prepared_while_it_lasts",
    ),
    bound(
        "a-hold-is-settled-before-the-markers-are-written",
        "transactions.holding",
        " or shard.sendings)",
        ")",
        "transactions/test_holding.py::test_it_is_settled_once_what_was_decided_is_complete",
    ),
    bound(
        "a-hold-that-lapsed-counts",
        "transactions.holding",
        "        unbroken = shard.hold == hold_id\n",
        "        unbroken = True\n",
        "transactions/test_holding.py::test_nothing_times_out_meanwhile_and_a_hold_that_nobody_prolongs_ends",
    ),
    bound(
        "a-cut-takes-holds-of-deposed-coordinators",
        "client.backup.cut",
        "    if missing:\n",
        "    if False:\n",
        "backup/test_files.py::test_the_hold_is_that_of_every_partitions_present_leader",
    ),
    bound(
        "a-cut-reads-ends-before-groups",
        "client.backup.cut",
        "    groups = await _committed(cluster, leaders)\n"
        "    topics = tuple(topic for topic in before if not topic.is_internal)\n"
        "    ends = await _ends(cluster, topics, leaders)\n",
        "    topics = tuple(topic for topic in before if not topic.is_internal)\n"
        "    ends = await _ends(cluster, topics, leaders)\n"
        "    groups = await _committed(cluster, leaders)\n",
        "backup/test_cut_order.py::test_what_groups_have_committed_lies_below_the_ends",
    ),
    bound(
        "a-promotion-waits-for-no-coordinator",
        "client.links.managing",
        "    await _seal_groups(admin, definition, chosen_topics)\n",
        "",
        "links/test_promoted.py::test_a_promotion_waits_for_every_broker_that_may_coordinate_a_group",
    ),
    bound(
        "a-partition-is-sealed-before-all-is-in-sync",
        "client.links.managing",
        "[at].offset) >= end:\n",
        "[at].offset) >= 0:\n",
        "links/test_promoted.py::test_a_sealed_partition_has_everything_in_sync_that_its_leader_took",
    ),
    bound(
        "a-link-does-not-ask-where-leader-epochs-end",
        "client.links.following",
        "        if not position or epoch < 0:\n            return\n",
        "        return\n",
        "links/test_diverged.py::test_a_link_takes_nothing_from_a_leader_that_lacks_what_is_here",
    ),
    bound(
        "a-linked-topic-takes-anybodys-records",
        "replication.partition.partition",
        "        if self.state.config.link_name and origin is Origin.CLIENT:\n",
        "        if False:\n",
        "links/test_promoted.py::test_a_linked_topic_takes_no_producers_records_until_it_is_promoted",
    ),
    bound(
        "a-links-records-go-anywhere",
        "replication.serving.importing",
        " or (request.link and request.records and end != request.log_end_offset)",
        "",
        "links/test_promoted.py::test_a_leader_takes_a_links_records_right_at_its_logs_end",
    ),
    bound(
        "a-restore-compares-no-headers",
        "client.backup.verifying",
        "    if found.headers_sha256 != part.headers_sha256 and",
        "    if False and",
        "backup/test_files.py::test_crcs_and_a_hash_of_the_headers_find_any_flipped_byte",
    ),
    bound(
        "imported-records-keep-foreign-epochs",
        "replication.partition.partition",
        "takes_gaps=True, leader_epoch=leading.epoch)",
        "takes_gaps=True)",
        "replication/test_fencing.py::test_imported_records_get_the_epoch_under_which_they_are_taken",
    ),
    bound(
        "any-link-may-fill-a-topic",
        "model.settings.topic_config",
        "        if link == self.link_name and (not link or self.link_state == LINK_ACTIVE):\n",
        "        if not link or self.link_state == LINK_ACTIVE:\n",
        "links/test_links.py::test_a_topic_takes_the_records_of_its_own_link_alone",
    ),
    bound(
        "a-backup-forgets-whose-records-it-has",
        "client.backup.copying",
        "        self.producer_id_max = max(self.producer_id_max, batch.producer_id)\n",
        "",
        "backup/test_files.py::test_whatever_is_open_at_the_end_is_aborted_there",
    ),
    bound(
        "a-backup-leaves-transactions-open",
        "client.backup.copying",
        "        found.append(marker)\n",
        "",
        "backup/test_files.py::test_whatever_is_open_at_the_end_is_aborted_there",
    ),
    bound(
        "any-number-of-access-control-entries",
        "metadata_quorum.controller.acl_changes",
        "            if len(image.acls) + len(made) >= ENTRIES_MAX:\n",
        "            if False:\n",
        "controller/access/test_acls.py::test_the_entries_of_a_cluster_are_bounded",
    ),
    bound(
        "any-number-of-users",
        "metadata_quorum.controller.scram_changes",
        "            if credentials > CREDENTIALS_MAX:\n",
        "            if False:\n",
        "controller/access/test_users.py::test_the_credentials_of_a_cluster_are_bounded",
    ),
    bound(
        "any-number-of-entities-with-quotas",
        "metadata_quorum.controller.quota_changes",
        "            if entities > ENTITIES_MAX:\n",
        "            if False:\n",
        "controller/quotas/test_quotas.py::test_requests_and_entities_are_bounded",
    ),
    bound(
        "any-number-of-delegation-tokens",
        "metadata_quorum.controller.token_changes",
        "        if len(image.delegation_tokens) >= TOKENS_MAX:\n",
        "        if False:\n",
        "controller/access/test_delegation_tokens.py::test_tokens_are_bounded",
    ),
    bound(
        "any-number-of-decisions-is-remembered",
        "security.authorizer",
        "            if len(self._cached) >= CACHED_MAX:\n",
        "            if False:\n",
        "security/access/test_authorizer.py::test_decisions_that_are_remembered_are_bounded",
    ),
    bound(
        "any-number-of-callers-is-remembered",
        "broker.access.access",
        "        if len(self._callers) >= CALLERS_MAX:\n",
        "        if False:\n",
        "security/access/test_node_guard.py::test_callers_that_are_remembered_are_bounded",
    ),
    bound(
        "any-number-of-logins-is-under-way",
        "broker.handlers.logins",
        "        if len(self._exchanges) > EXCHANGES_MAX:\n",
        "        if False:\n",
        "security/logins/test_login_fuzz.py::test_logins_that_a_node_keeps_are_bounded",
    ),
    bound(
        "any-number-of-logins-is-kept",
        "broker.handlers.logins",
        "            if len(self._sessions) > SESSIONS_MAX:\n",
        "            if False:\n",
        "security/logins/test_login_fuzz.py::test_logins_that_a_node_keeps_are_bounded",
    ),
    bound(
        "partitions-are-made-at-any-rate",
        "metadata_quorum.controller.mutation_quotas",
        "            self.throttle_ms = lacking_ms\n            return False\n",
        "            self.throttle_ms = lacking_ms\n",
        "controller/quotas/test_mutation_quotas.py::test_a_client_that_knows_the_error_is_refused_once_nothing_is_left",
    ),
    bound(
        "controllers-are-not-asked",
        "metadata_quorum.controller.features",
        "(image.controllers)))",
        "({})))",
        "controller/test_features.py::test_a_level_that_a_controller_does_not_know_is_refused",
    ),
    bound(
        "silent-controllers-agree",
        "metadata_quorum.controller.features",
        "    if missing:\n",
        "    if False:\n",
        "controller/test_features.py::test_a_controller_that_said_nothing_stands_in_the_way",
    ),
    bound(
        "records-of-any-level-are-written",
        "metadata_quorum.controller.controller",
        "        if fault is None:\n            return decision\n",
        "        return decision\n",
        "controller/test_features.py::test_a_record_waits_for_its_level",
    ),
    bound(
        "levels-go-down-below-what-was-written",
        "metadata_quorum.controller.features",
        "    if name == METADATA_VERSION and level < image.level_used:\n",
        "    if False:\n",
        "controller/test_features.py::test_a_level_whose_records_were_written_stays",
    ),
    bound(
        "live-brokers-are-forgotten",
        "metadata_quorum.controller.broker_changes",
        "        if not found.fenced:\n            text",
        "        if False:\n            text",
        "controller/test_unregistering.py::test_a_live_broker_is_refused_with_the_way_out",
    ),
    bound(
        "new-nodes-finalise-by-themselves",
        "metadata_quorum.controller.features",
        "    if METADATA_VERSION in image.features:\n        return []\n",
        "",
        "controller/test_features.py::test_a_cluster_that_is_there_keeps_its_levels",
    ),
    bound(
        "pushes-of-metrics-come-at-any-rate",
        "broker.client_metrics.telemetry",
        "        if not early and pushed is not None and now_ms - pushed < self.wanted.interval_ms:\n",
        "        if False:\n",
        "client_metrics/test_telemetry.py::test_a_push_comes_once_an_interval_and_the_first_at_once",
    ),
    bound(
        "any-number-of-clients-push",
        "broker.client_metrics.telemetry",
        "            while len(self._instances) >= CLIENTS_MAX:\n",
        "            while False:\n",
        "client_metrics/test_telemetry.py::test_clients_names_and_figures_are_bounded",
    ),
    bound(
        "any-number-of-figures-is-kept",
        "broker.client_metrics.figures",
        "        if self.values >= VALUES_MAX:\n",
        "        if False:\n",
        "client_metrics/test_telemetry.py::test_clients_names_and_figures_are_bounded",
    ),
    bound(
        "pushes-unfold-without-end",
        "broker.client_metrics.telemetry",
        "push.metrics, bytes_max=bytes_max)",
        "push.metrics)",
        "client_metrics/test_telemetry.py::test_what_cannot_be_read_is_refused",
    ),
    bound(
        "changes-are-made-unaudited",
        "broker.access.unaudited",
        "            if not room:\n",
        "            if False:\n",
        "security/access/test_audit_on_full.py::test_changes_under_way_have_their_room",
    ),
    bound(
        "what-is-under-way-has-no-room-in-the-audit-log",
        "security.audit",
        "self._kept[AuditKind.CHANGE] + self._reserved\n",
        "self._kept[AuditKind.CHANGE]\n",
        "security/access/test_audit_on_full.py::test_room_is_kept_until_the_outcome_is_known",
    ),
    bound(
        "an-http-request-of-any-number-of-lines",
        "broker.node.http",
        "            if lines > LINES_MAX:\n",
        "            if False:\n",
        "broker/node/test_http.py::test_a_request_has_at_most_so_many_lines",
    ),
    bound(
        "http-requests-take-no-turns",
        "broker.node.http",
        "                await asyncio.sleep(0)  #",
        "                #",
        "broker/node/test_http.py::test_requests_that_come_at_once_take_turns_with_others",
    ),
    bound(
        "http-newcomers-are-sent-away",
        "broker.node.http",
        "            oldest = next(iter(self._tasks))\n",
        "            writer.close()\n            return\n",
        "broker/node/test_http.py::test_health_is_answered_while_others_hold_half_a_request",
    ),
    bound(
        "partitions-are-given-though-another-member-has-them",
        "groups.consumer.reconciling",
        "            if owners.get((topic_id, partition), member_id) == member_id:\n",
        "            if True:\n",
        "groups/test_consumer_groups.py::test_a_partition_is_given_on_only_once_its_member_has_given_it_up",
    ),
    bound(
        "members-are-believed-to-have-given-up",
        "groups.consumer.reconciling",
        "    if revoked and _holds(owned, revoked):\n",
        "    if False:\n",
        "groups/test_consumer_groups.py::test_a_partition_is_given_on_only_once_its_member_has_given_it_up",
    ),
    bound(
        "heartbeats-are-answered-before-the-log-has-the-change",
        "groups.consumer.heartbeating",
        "        if not consumer.busy:\n            pending.tell",
        "        pending.tell(ErrorCode.NONE)\n        if not consumer.busy:\n            pending.tell",
        "groups/test_consumer_groups.py::test_nothing_is_answered_before_it_is_committed",
    ),
    bound(
        "what-the-log-refused-stays-in-memory",
        "groups.consumer.heartbeating",
        "        change.undo()\n",
        "",
        "groups/test_consumer_groups.py::test_a_refused_change_is_taken_back_and_the_next_one_rests_on_what_is_stored",
    ),
    bound(
        "any-earlier-epoch-is-good",
        "groups.consumer.asking",
        "        said == current.previous_epoch\n        and said < known\n",
        "        said < known\n",
        "groups/test_consumer_groups.py::test_an_epoch_older_than_the_one_before_is_fenced",
    ),
    bound(
        "the-epoch-rises-while-partitions-are-given-up",
        "groups.consumer.reconciling",
        "        return replace(now, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked)\n",
        "        now = replace(now, epoch=target_epoch)\n"
        "        return replace(now, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending=revoked)\n",
        "groups/test_consumer_groups.py::test_from_one_revocation_to_the_next_the_epoch_stays",
    ),
    bound(
        "found-move-is-finished-unsynced",
        "storage.log.log_moves",
        "            self._make_durable(directories)\n",
        "            pass\n",
        "storage/test_log_moves.py::test_names_that_a_killed_process_gave_are_on_disk_before_a_start_goes_by_them",
    ),
)


HARMLESS = (
    bound(
        "harmless",
        "broker.connection_quotas",
        "        if count >= most:\n",
        "        if most <= count:\n",
        "kafka/test_connection_bounds.py::test_an_address_has_so_many_connections",
    ),
    bound(
        "harmless-outside-of-functions",
        "proto.kafka.wire",
        "TAGS_MAX: Final = 64\n",
        "TAGS_MAX: Final = 2**6\nNEW: Final = 0\n",
        "kafka/test_request_bounds.py::test_a_structure_has_at_most_so_many_tagged_fields",
    ),
    bound(
        "unfit",
        "broker.connection_quotas",
        "        if count is most:\n",
        "",
        "kafka/test_connection_bounds.py::test_an_address_has_so_many_connections",
    ),
)
VERDICTS = ("1 tests passed", " passed in ", "occurs 0 times")


@pytest.fixture(scope="module")
def mutants(request: pytest.FixtureRequest) -> Iterator[Session]:
    yield from session_of([*BOUNDS, *HARMLESS], request)


@pytest.mark.parametrize("one", BOUNDS, ids=lambda one: one.id)
def test_a_test_fails_without_the_bound(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)


@pytest.mark.parametrize(("one", "words"), [*zip(HARMLESS, VERDICTS, strict=True)], ids=[one.id for one in HARMLESS])
def test_what_does_no_harm_is_not_caught(one: Mutant, words: str, mutants: Session) -> None:
    """Mutants are caught for what they break, not for how they are run."""
    failed, text = mutants.verdict(one)
    assert not failed, text
    assert words in text
