"""The processor time of an authorization decision among 10,000 entries."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.security.acls import WILDCARD, AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.security.authorizer import CACHED_MAX, StandardAuthorizer, Who

ENTRIES: Final = 10_000
USERS: Final = 300
TEAMS: Final = 500
ASKED: Final = CACHED_MAX * 3 // 4
AGAIN: Final = 200


def authorizer(_: Path) -> Mapping[str, float]:
    rng = random.Random(7)
    topics = [f"team-{number % TEAMS}-topic-{number}" for number in range(ENTRIES)]
    made = StandardAuthorizer()
    for number, topic in enumerate(topics):
        kind = PatternType.LITERAL if number % 4 else PatternType.PREFIXED
        name = topic if number % 4 else f"team-{number % TEAMS}-"
        operation = AclOperation.READ if number % 2 else AclOperation.WRITE
        user = f"User:{number % USERS}"
        entry = AclBinding(ResourceType.TOPIC, name, kind, user, WILDCARD, operation, PermissionType.ALLOW)
        made.add(number.to_bytes(16), entry)
    callers = [Who(f"User:{number}", "10.0.0.1") for number in range(USERS)]
    questions = [
        (rng.choice(callers), AclOperation.READ, ResourceType.TOPIC, topic) for topic in rng.choices(topics, k=ASKED)
    ]
    cold_us = _us_each(made, questions)
    few = questions[:AGAIN]
    return {"authorizer_cold": cold_us, "authorizer_cached": _us_each(made, few * AGAIN)}


def _us_each(made: StandardAuthorizer, questions: list[tuple[Who, AclOperation, ResourceType, str]]) -> float:
    begun = time.process_time()
    for who, operation, resource_type, name in questions:
        made.allows(who, operation, resource_type, name)
    return (time.process_time() - begun) / len(questions) * 1e6
