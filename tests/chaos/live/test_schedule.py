"""Schedules: always the same for one seed, every episode mended, stored and read again, refused if malformed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.chaos.laboratory.faults.nemesis import FIRST_S, MIXED, NEMESES, plan
from tidelog.chaos.laboratory.faults.schedule import ENDS, BadSchedule, Step, length_s, steps_of
from tidelog.chaos.laboratory.links.links import topology

PAIRS = {
    "kill": "start",
    "pause": "resume",
    "terminate": "start",
    "kill-all": "start-all",
    "impair": "heal",
    "disk-full": "disk-mend",
    "disk-slow": "disk-mend",
    "disk-fails": "disk-mend",
    "disk-stall": "disk-mend",
    "clock": "clock-mend",
    "elect": "assign-back",
    "reassign": "assign-back",
    "drain": "undrain",
    "kill-rack": "start-all",
}
ASKED_FOR = {"drain", "undrain", "kill-rack", "rotate"}
"""Acts of nemeses that do not come by themselves."""
WHOLE = {"roll", "damage", "rotate"}
"""Acts that are over when they are done; a node that is damaged is one that was killed, and is started again."""


@given(seed=st.integers(0, 10**6), seconds=st.floats(5, 120), name=st.sampled_from([MIXED, *NEMESES]))
@settings(max_examples=150, deadline=None)
def test_every_fault_of_a_plan_is_mended_within_its_time(seed: int, seconds: float, name: str) -> None:
    steps = plan(seed, seconds, [name])
    assert steps == plan(seed, seconds, [name])
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    assert length_s(steps) <= seconds + 0.01
    assert all(step.at_s >= FIRST_S for step in steps)
    wrong: dict[int, list[str]] = {}
    for step in steps:
        here = wrong.setdefault(step.episode, [])
        if step.act in ENDS:
            assert step.act in [PAIRS[act] for act in here]
            here[:] = [act for act in here if PAIRS[act] != step.act]
        elif step.act not in WHOLE:
            here.append(step.act)
    assert not any(wrong.values())


def test_seeds_differ() -> None:
    assert len({tuple(map(str, plan(seed, 60))) for seed in range(20)}) == 20


def test_the_mix_has_every_nemesis() -> None:
    acts = {step.act for seed in range(60) for step in plan(seed, 120)}
    kinds = {step.options["kind"] for seed in range(60) for step in plan(seed, 120) if step.act == "impair"}
    assert acts == {*PAIRS, *PAIRS.values(), *WHOLE} - ASKED_FOR
    assert kinds == {"cut", "hold", "refuse", "latency", "throttle", "loss", "reset", "limit", "slow-close"}


def test_a_nemesis_that_does_not_come_by_itself_may_be_asked_for_beside_the_mix() -> None:
    acts = {step.act for seed in range(10) for step in plan(seed, 120, [MIXED, "rotate"])}
    assert acts >= {"rotate", "kill", "impair"}


def test_a_drain_has_other_faults_beside_it() -> None:
    steps = plan(5, 60, ["drain"])
    begin, end = (next(step.at_s for step in steps if step.act == act) for act in ("drain", "undrain"))
    beside = [step for step in steps if begin < step.at_s < end]
    assert len({step.episode for step in beside}) > 1
    assert not {step.act for step in beside} & {"roll", "elect", "reassign"}
    assert {step.episode for step in steps if step.act == "drain"} == {
        step.episode for step in steps if step.act == "undrain"
    }


def test_each_impairment_of_a_plan_can_be_made() -> None:
    from tidelog.chaos.laboratory.links.links import REFUSE, Impairment

    for seed in range(40):
        for step in plan(seed, 60):
            if step.act == "impair":
                options = dict(step.options)
                assert topology(options.pop("topology"), 1, (1, 2, 3))
                impairment = Impairment(**options)
                assert impairment.kind == REFUSE or impairment.toxic()


def test_a_schedule_is_kept_and_read_again() -> None:
    steps = plan(7, 120)
    assert steps_of(json.loads(json.dumps([step.as_json() for step in steps]))) == steps


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"act": "explode"}, "an act of kill"),
        ({"target": "king"}, "a target of leader"),
        ({"target": "leader:x"}, "a number behind leader:"),
        ({"at": -1}, "a time of 0 or later"),
        ({"at": None}, "TypeError"),
        ({"options": 3}, "TypeError"),
    ],
)
def test_what_is_no_step_is_refused(change: dict[str, object], text: str) -> None:
    row = {**Step(1.0, 1, "kill", "leader:0").as_json(), **change}
    with pytest.raises(BadSchedule, match=text):
        steps_of([row])


def test_a_nemesis_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="expected nemeses of mixed, kill"):
        plan(1, 10, ["kil"])
