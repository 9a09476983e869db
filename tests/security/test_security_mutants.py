"""Mutants of the rules of logins, TLS and access, most of them somebody's CVE: with a rule taken out, the test that is
named beside it must fail."""

from __future__ import annotations

import pytest

from tests.mutants import Session, bound
from tidelog.chaos.simulated.mutants.mutant import Mutant

SCRAM, KAFKA, ACCESS = (
    "security/logins/test_scram.py::",
    "security/logins/test_sasl_kafka.py::",
    "security/access/test_access_on_a_cluster.py::",
)
FORGED = SCRAM + "test_a_message_that_does_not_fit_is_rejected_though_its_proof_is_right"

RULES = (
    bound(
        "the-nonce-ends-with-the-servers",  # CVE-2024-56128
        "security.scram",
        "        if nonce != self._nonce or",
        "        if not nonce.endswith(self._server_nonce) or",
        FORGED,
    ),
    bound(
        "any-channel-binding",
        "security.scram",
        " or _decoded(binding) != self._header:",
        ":",
        FORGED,
    ),
    bound(
        "scram-speaks-for-others",  # CVE-2017-12610
        "security.scram",
        "        if authorized and _name_in(authorized) != name:\n",
        "        if False:\n",
        SCRAM + "test_a_first_message_that_is_none_is_rejected",
    ),
    bound(
        "plain-speaks-for-others",  # CVE-2017-12610
        "security.sasl",
        '        if authorized not in ("", name):\n',
        "        if False:\n",
        SCRAM + "test_plain_that_is_none_is_rejected_at_once",
    ),
    bound(
        "users-of-any-iterations",
        "metadata_quorum.controller.scram_changes",
        "    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:\n",
        "    if False:\n",
        "controller/access/test_users.py",
    ),
    bound(
        "clients-compute-whatever-a-server-asks",
        "security.scram",
        "        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:\n",
        "        if False:\n",
        SCRAM + "test_a_client_does_not_answer_a_server_that_lies",
    ),
    bound(
        "a-refusal-tells-that-a-topic-is-there",
        "broker.access.resources",
        "    return NO_TOPIC if access.quiet.topic(DESCRIBE, topic.name) else NO_TOPIC_ID\n",
        "    return NO_TOPIC\n",
        ACCESS + "test_a_hidden_topic_is_unknown_by_its_id_on_a_stream",
    ),
    bound(
        "other-requests-are-read-before-a-login",
        "broker.kafka.login",
        "        if self._state is not _DONE:\n            return True\n        known = self._before\n"
        "        assert known is not None\n",
        "        if frame[1] in (SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE):\n            return True\n"
        "        if (known := self._before) is None:\n            return False\n",
        KAFKA + "test_before_a_login_nothing_else_is_served",
    ),
    bound(
        "frames-of-any-size-before-a-login",
        "broker.kafka.connection",
        "        most = host.limits.frame_bytes_max if self._login is None else self._login.receive_bytes_max\n",
        "        most = host.limits.frame_bytes_max\n",
        KAFKA + "test_frames_before_a_login_are_bounded",
    ),
    bound(
        "a-login-takes-as-long-as-it-likes",
        "broker.kafka.connection",
        "            if self._login is None and not self._incoming.proven:\n",
        "            if not self._incoming.proven:\n",
        KAFKA + "test_a_login_must_be_done_in_time",
    ),
    bound(
        "records-leave-by-sendfile-under-tls",
        "broker.kafka.wire.outgoing",
        "                elif isinstance(sock, TlsSocket):\n                    if isinstance(first, _BUFFERS):\n",
        "                elif isinstance(sock, TlsSocket) and not getattr(first, 'size', 0) >= SENDFILE_MIN:\n"
        "                    if isinstance(first, _BUFFERS):\n",
        "security/tls/test_tls_listeners.py::test_records_from_files_are_encrypted_too",
    ),
    bound(
        "certificates-of-any-name-are-taken-at-a-reload",
        "security.tls_store",
        "            self._check_same(identity)\n",
        "",
        "security/tls/test_tls_store.py::test_what_would_lock_clients_out_is_refused",
    ),
    bound(
        "any-node-speaks-as-any-other",
        "broker.access.nodes",
        "        if principal == expected:\n",
        "        if True:\n",
        "security/access/test_node_guard.py::test_a_nodes_principal_speaks_for_that_node_alone",
    ),
    bound(
        "one-address-takes-all-handshakes",
        "broker.kafka.fair_places",
        "        return self._free > 0 and self._held.get(address, 0) < self._each_max\n",
        "        return self._free > 0\n",
        "kafka/test_fair_places.py::test_half_are_for_one_address_and_the_rest_for_others",
    ),
)


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.id)
def test_a_test_fails_without_the_rule(one: Mutant, mutants: Session) -> None:
    mutants.fails(one)
