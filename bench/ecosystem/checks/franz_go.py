"""franz-go (Go) on a secured cluster: each kind of login, a group, transactions, and a user without rights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tidelog.bench.ecosystem import secured
from tidelog.bench.ecosystem.check import Check, expect, output, records
from tidelog.bench.ecosystem.installing import go_program
from tidelog.bench.ecosystem.secured import ALICE, MALLORY, PREFIX, Secured

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
RECORDS: Final = 1_000


def _run(root: Path) -> str:
    program = str(go_program("franz_go"))
    with secured.running(root) as found:
        for topic in ("input", "output"):
            found.cluster.create_topic(f"{PREFIX}-{topic}", 4, 3, {"min.insync.replicas": "2"})
        for mechanism in MECHANISMS:
            seen = _go(program, found, mechanism, ALICE)
            wanted = {"Produced": RECORDS, "Read": RECORDS, "Copied": RECORDS, "Members": 2, "Refused": ""}
            expect(mechanism, wanted, seen)
        texts = sorted(f"{PREFIX} {mechanism} {number}" for mechanism in MECHANISMS for number in range(RECORDS))
        for topic in ("input", "output"):
            there = records(found.cluster.bootstrap, f"{PREFIX}-{topic}", found.cluster.client_settings(ALICE))
            expect(f"values in {topic}", texts, sorted((record.value or b"").decode() for record in there))
        for user, secret, refusal in (
            (MALLORY, None, "TOPIC_AUTHORIZATION_FAILED"),
            (ALICE, "wrong", "SASL_AUTHENTICATION_FAILED"),
        ):
            said = _go(program, found, MECHANISMS[0], user, secret)["Refused"]
            expect(f"{user}, {refusal}", True, refusal in said or said)
    return (
        f"over TLS with {', '.join(MECHANISMS)}: {RECORDS} records produced, read once by a group of two, copied once "
        "by transactions of which every second was aborted first; without rights and with a wrong password: refused"
    )


def _go(program: str, found: Secured, mechanism: str, user: str, secret: str | None = None) -> dict[str, Any]:
    secret = secret or (found.token(user) if mechanism == "OAUTHBEARER" else found.passwords[user])
    todo = {
        "Bootstrap": found.cluster.kafka_bootstrap, "CA": str(found.authority), "Mechanism": mechanism, "User": user,
        "Secret": secret, "Input": f"{PREFIX}-input", "Output": f"{PREFIX}-output", "Name": f"{PREFIX} {mechanism}",
        "Records": RECORDS,
    }  # fmt: skip
    seen: dict[str, Any] = json.loads(output([program], given=json.dumps(todo)))
    return seen


CHECK: Final = Check("franz-go", "franz-go 1.21.5", _run)
