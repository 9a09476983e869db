"""The authorizer against Kafka's own class (tests/golden/README.md) and against rules that are obviously right."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.security import authorizer as authorizing
from tidelog.security.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    acl_fault,
)
from tidelog.security.authorizer import Judgement, Rule, StandardAuthorizer, Who

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "acls.txt"
ROOT, ALICE, BOB = "User:root", "User:a", "User:b"
HOSTS = ("10.0.0.1", "10.0.0.2")
NAMES = ("a", "ab", "abc", "abd", "b", "hardcode")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
OPERATIONS = [operation for operation in AclOperation if operation > AclOperation.ALL]
TOPIC, READ, DESCRIBE = ResourceType.TOPIC, AclOperation.READ, AclOperation.DESCRIBE
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY


def entry(text: str) -> AclBinding:
    kind, name, pattern, principal, host, operation, permission = text.split("|")
    return AclBinding(
        ResourceType(int(kind)),
        name,
        PatternType(int(pattern)),
        principal,
        host,
        AclOperation(int(operation)),
        PermissionType(int(permission)),
    )


def authorizer(*entries: AclBinding, open_: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer((ROOT,), allows_unnamed=open_)
    for number, each in enumerate(entries):
        made.add(bytes([number]), each)
    return made


def answers(made: StandardAuthorizer) -> Iterator[bool]:
    """What is asked, in the order of ``generate/acl_cases.py``."""
    for principal, host, operation, kind in itertools.product((ROOT, ALICE, BOB), HOSTS, OPERATIONS, TYPES):
        who = Who(principal, host)
        for name in NAMES:
            yield made.allows(who, operation, kind, name)
        yield made.allows_any(who, operation, kind)


def test_kafkas_authorizer_and_ours_decide_alike() -> None:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 240
    allowed = 0
    for case, answer in zip(lines[::2], lines[1::2], strict=True):
        open_, *entries = case.split("\t")
        made = authorizer(*map(entry, entries), open_=open_ == "1")
        found = list(answers(made))
        expected = [bit == "1" for bit in bin(int(answer, 16))[3:]]
        assert found == expected, case
        allowed += sum(found)
    assert allowed > 10_000, "cases that deny everything show nothing"


# --- A model that looks at every entry --------------------------------------------------------------

entries_of = st.builds(
    AclBinding,
    resource_type=st.sampled_from(TYPES[:2]),
    resource_name=st.sampled_from(("a", "ab", "abc", "*")),
    pattern_type=st.sampled_from((LITERAL, PREFIXED)),
    principal=st.sampled_from((ALICE, BOB, "User:*")),
    host=st.sampled_from((*HOSTS, "*")),
    operation=st.sampled_from(list(AclOperation)[1:]),
    permission=st.sampled_from((ALLOW, DENY)),
)


def modelled(entries: list[AclBinding], who: Who, operation: AclOperation, kind: ResourceType, name: str) -> bool:
    about = [
        each
        for each in entries
        if each.resource_type == kind
        and (
            name.startswith(each.resource_name) if each.pattern_type is PREFIXED else each.resource_name in (name, "*")
        )
    ]
    mine = [each for each in about if each.principal in (who.principal, "User:*") and each.host in (who.host, "*")]
    if any(each.permission is DENY and each.operation in (operation, AclOperation.ALL) for each in mine):
        return False
    implying = {
        DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
        AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
    }.get(operation, set())
    return any(each.permission is ALLOW and each.operation in {operation, AclOperation.ALL, *implying} for each in mine)


@settings(max_examples=300)
@given(st.lists(st.one_of(entries_of, st.integers(0, 20)), max_size=25))
def test_the_index_decides_as_a_look_at_every_entry_while_entries_come_and_go(
    steps: list[AclBinding | int],
) -> None:
    made = StandardAuthorizer((ROOT,))
    present: dict[bytes, AclBinding] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            made.remove(bytes([step]))
            present.pop(bytes([step]), None)
        else:
            made.add(bytes([number % 20]), step)
            present[bytes([number % 20])] = step
        for principal, operation, name in itertools.product((ALICE, BOB), (READ, DESCRIBE), ("a", "ab", "abcd", "x")):
            who = Who(principal, HOSTS[0])
            expected = modelled(list(present.values()), who, operation, TOPIC, name)
            assert made.allows(who, operation, TOPIC, name) == expected, (principal, operation, name)
    assert dict(made.acls()) == present


# --- Single rules -----------------------------------------------------------------------------------


def test_a_judgement_names_the_entry_that_decided() -> None:
    allows = AclBinding(TOPIC, "a", PREFIXED, ALICE, "*", READ, ALLOW)
    denies = AclBinding(TOPIC, "abc", LITERAL, "User:*", HOSTS[1], AclOperation.ALL, DENY)
    made = authorizer(allows, denies)
    who = Who(ALICE, HOSTS[0])
    assert made.judge(who, DESCRIBE, TOPIC, "abc") == Judgement(True, Rule.ACL, allows)
    assert made.judge(Who(ALICE, HOSTS[1]), DESCRIBE, TOPIC, "abc") == Judgement(False, Rule.ACL, denies)
    assert made.judge(who, AclOperation.WRITE, TOPIC, "abc") == Judgement(False, Rule.DEFAULT_DENY)
    assert made.judge(Who(ROOT, HOSTS[1]), READ, TOPIC, "abc") == Judgement(True, Rule.SUPER_USER)
    assert authorizer(open_=True).judge(who, READ, TOPIC, "q") == Judgement(True, Rule.DEFAULT_ALLOW)


def test_an_entry_for_everything_covers_names_that_begin_with_an_asterisk() -> None:
    """Kafka's class passes it over there, also where it denies."""
    group = ResourceType.GROUP
    made = authorizer(
        AclBinding(group, "*", LITERAL, "User:*", "*", READ, DENY),
        AclBinding(group, "*x", LITERAL, ALICE, "*", READ, ALLOW),
    )
    assert not made.allows(Who(ALICE, HOSTS[0]), READ, group, "*x")


def test_a_decision_is_not_remembered_beyond_a_change() -> None:
    made = authorizer(AclBinding(TOPIC, "a", LITERAL, ALICE, "*", READ, ALLOW))
    who = Who(ALICE, HOSTS[0])
    assert made.allows(who, READ, TOPIC, "a")
    assert made.allows_any(who, READ, TOPIC)
    before = made.version
    made.remove(bytes([0]))
    assert not made.allows(who, READ, TOPIC, "a")
    assert not made.allows_any(who, READ, TOPIC)
    assert made.version > before


def test_decisions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizing, "CACHED_MAX", 3)
    made = authorizer(entry(f"2|a|3|{ALICE}|*|3|3"))
    for _ in range(2):
        allowed = [made.allows(Who(ALICE, HOSTS[0]), READ, TOPIC, name) for name in NAMES]
        assert allowed == [name == "a" for name in NAMES]
        assert len(made._cached) <= 3


def test_operations_are_bits_by_their_numbers() -> None:
    made = authorizer(AclBinding(TOPIC, "a", LITERAL, ALICE, "*", READ, ALLOW))
    assert made.operations(Who(ALICE, HOSTS[0]), TOPIC, "a") == 1 << 3 | 1 << 8
    assert made.operations(Who(BOB, HOSTS[0]), TOPIC, "a") == 0
    assert made.operations(Who(ROOT, HOSTS[0]), ResourceType.CLUSTER, "kafka-cluster") == 0b1_1111_1010_0000


def test_ten_thousand_entries_decide_fast() -> None:
    made = StandardAuthorizer()
    for number in range(10_000):
        pattern = PREFIXED if number % 2 else LITERAL
        name = f"team-{number % 3000}"[: 6 + number % 5]
        made.add(number.to_bytes(2, "big"), AclBinding(TOPIC, name, pattern, f"User:{number % 500}", "*", READ, ALLOW))
    asked = [(Who(f"User:{number % 500}", HOSTS[0]), READ, TOPIC, f"team-{number}") for number in range(2_000)]
    best_s = min(_seconds(made, asked) for _ in range(5))
    assert best_s / len(asked) < 100e-6, "five times the bound of 20 us: this is no benchmark, but no scan either"


def _seconds(made: StandardAuthorizer, asked: list[tuple[Who, AclOperation, ResourceType, str]]) -> float:
    before = time.process_time()
    for who, operation, kind, name in asked:
        made.judge(who, operation, kind, name)
    return time.process_time() - before


# --- Filters and faults -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (AclFilter(), "a* ab ab* *"),
        (AclFilter(resource_name="ab"), "ab ab*"),
        (AclFilter(resource_name="ab", pattern_type=LITERAL), "ab"),
        (AclFilter(resource_name="ab", pattern_type=PREFIXED), "ab*"),
        (AclFilter(resource_name="ab", pattern_type=PatternType.MATCH), "a* ab ab* *"),
        (AclFilter(resource_name="ac", pattern_type=PatternType.MATCH), "a* *"),
        (AclFilter(resource_type=ResourceType.GROUP), ""),
        (AclFilter(principal=BOB), "ab*"),
        (AclFilter(host=HOSTS[0]), "a*"),
        (AclFilter(operation=READ), "a* ab ab* *"),
        (AclFilter(operation=DESCRIBE), ""),
        (AclFilter(permission=DENY), "*"),
    ],
)
def test_a_filter_matches_as_kafkas(wanted: AclFilter, names: str) -> None:
    entries = {
        "a*": AclBinding(TOPIC, "a", PREFIXED, ALICE, HOSTS[0], READ, ALLOW),
        "ab": AclBinding(TOPIC, "ab", LITERAL, ALICE, "*", READ, ALLOW),
        "ab*": AclBinding(TOPIC, "ab", PREFIXED, BOB, "*", READ, ALLOW),
        "*": AclBinding(TOPIC, "*", LITERAL, ALICE, "*", READ, DENY),
    }
    assert [name for name, each in entries.items() if wanted.matches(each)] == names.split()


@pytest.mark.parametrize(
    ("entry_", "said"),
    [
        (AclBinding(ResourceType.ANY, "a", LITERAL, ALICE, "*", READ, ALLOW), "resource type"),
        (AclBinding(TOPIC, "a", PatternType.MATCH, ALICE, "*", READ, ALLOW), "pattern type"),
        (AclBinding(TOPIC, "a", LITERAL, ALICE, "*", AclOperation.ANY, ALLOW), "operation"),
        (AclBinding(TOPIC, "a", LITERAL, ALICE, "*", READ, PermissionType.ANY), "permission"),
        (AclBinding(TOPIC, "", LITERAL, ALICE, "*", READ, ALLOW), "resource name"),
        (AclBinding(ResourceType.CLUSTER, "mine", LITERAL, ALICE, "*", READ, ALLOW), "kafka-cluster"),
        (AclBinding(TOPIC, "a", LITERAL, "alice", "*", READ, ALLOW), "User:alice"),
        (AclBinding(TOPIC, "a", LITERAL, ALICE, "", READ, ALLOW), "host"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(entry_: AclBinding, said: str) -> None:
    fault = acl_fault(entry_)
    assert fault is not None
    assert said in fault.message


def test_an_entry_is_shown_on_one_line() -> None:
    shown = str(AclBinding(TOPIC, "a", PREFIXED, ALICE, "*", READ, ALLOW))
    assert shown == "ALLOW User:a from *: READ on TOPIC:PREFIXED:a"
