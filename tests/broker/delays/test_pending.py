"""The order of deliveries: a random model of leaders that die, whose clocks differ, and of logs that grow meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tidelog.broker.coordinators.delays.pending import START, Mark, Pending, Step, due_of, key_of, offset_of
from tidelog.model.ids import Offset


def test_a_mark_is_what_its_text_says() -> None:
    mark = Mark(1_234, Offset(5), Offset(17))
    assert Mark.read(17, mark.text) == mark
    assert Mark.read(17, "") is None
    assert Mark.read(17, "1,x") is None


def test_a_key_holds_both_numbers() -> None:
    key = key_of(1_750_000_000_000, 2**62)
    assert (due_of(key), offset_of(key)) == (1_750_000_000_000, 2**62)


def test_what_is_forgotten_is_found_again() -> None:
    pending = Pending(START, Offset(0), entries_max=8)
    dues = [5, 3, 9, 1, 7, 2, 8, 6, 4, 0]
    pending.take(list(enumerate(dues)))
    pending.scanned = Offset(len(dues))
    assert len(pending) <= 8
    assert pending.first_live() == 0
    seen: list[int] = []
    while len(seen) < len(dues):
        step = pending.choose(100, 2)
        if step is None:
            assert pending.runs_dry
            again = Pending(pending.mark, Offset(0), entries_max=8)
            again.take(list(enumerate(dues)))
            again.scanned = pending.scanned
            pending = again
            continue
        pending.committed(step)
        seen += [dues[offset] for offset in step.offsets]
    assert seen == sorted(dues)
    assert pending.first_live() == len(dues)


def test_the_log_is_kept_from_the_first_undelivered_record_on() -> None:
    pending = Pending(START, Offset(0))
    pending.take([(0, 1), (1, 50), (2, 2)])
    pending.scanned = Offset(3)
    step = pending.choose(10, 9)
    assert step is not None
    assert pending.first_live() == 0, "not committed yet"
    pending.committed(step)
    assert pending.first_live() == 1


# --- The model ------------------------------------------------------------------------------------------


@dataclass
class Entry:
    due: int
    cancels: int | None = None
    committed: bool = True
    """Of an open transaction otherwise: nothing from here on is stable."""


@dataclass
class World:
    """A log, what is committed about it, and what readers of the target see."""

    log: list[Entry] = field(default_factory=list)
    mark: Mark = START
    start: int = 0
    """What stood before it has been deleted."""
    delivered: list[int] = field(default_factory=list)
    early: list[int] = field(default_factory=list)
    late_cancels: list[int] = field(default_factory=list)
    cancelled_at: dict[int, int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        return next((offset for offset, entry in enumerate(self.log) if not entry.committed), len(self.log))


class Leader:
    """What the mover does with :class:`Pending`, one act at a time."""

    def __init__(self, world: World, skew: int, entries_max: int, rules: Rules) -> None:
        self.world = world
        self.skew = skew
        self.entries_max = entries_max
        self.rules = rules
        self.pending = Pending(world.mark, Offset(world.start), entries_max)
        self.scan(world.stable if rules.reads_before_it_delivers else 0)

    def scan(self, end: int, most: int = 10**9, pending: Pending | None = None) -> None:
        pending = self.pending if pending is None else pending
        while pending.scanned < (until := min(end, pending.scanned + most, pending.scanned + 1 + end % 7)):
            read = [(offset, self.world.log[offset]) for offset in range(pending.scanned, until)]
            most -= len(read)
            pending.take([(offset, entry.due) for offset, entry in read if entry.cancels is None])
            for offset, entry in read:
                if entry.cancels is not None and entry.cancels < offset:
                    pending.cancel(entry.cancels)
            pending.scanned = Offset(until)

    def step(self, now: int, count_max: int) -> Step | None:
        world, pending = self.world, self.pending
        if pending.runs_dry:
            fresh = Pending(world.mark, Offset(world.start), self.entries_max)
            self.scan(pending.scanned, pending=fresh)
            fresh.moved(world.mark)
            self.pending = pending = fresh
            self.entries_max *= 2 if fresh.runs_dry else 1
        clock = now + self.skew
        if not self.rules.waits_for_its_clock:
            pending.mark, true_mark = pending.mark._replace(done_ms=0, done_offset=Offset(0)), pending.mark
            step = pending.choose(clock, count_max)
            pending.mark = true_mark
        else:
            step = pending.choose(clock, count_max)
        if step is not None:
            for offset in step.offsets:
                if world.log[offset].due > clock:
                    world.early.append(offset)
        return step

    def idle(self) -> None:
        """Nothing is due: what need not be read again is deleted."""
        step = self.pending.idle_step()
        if step is not None:
            self.commit(step)
        self.world.start = max(self.world.start, self.pending.first_live())

    def commit(self, step: Step) -> None:
        world = self.world
        world.delivered += step.offsets
        world.mark = self.rules.mark(world.mark, step.mark)
        self.pending.committed(step)


@dataclass(frozen=True)
class Rules:
    """Those that hold, and mutants of them."""

    reads_before_it_delivers: bool = True
    waits_for_its_clock: bool = True
    mark: Callable[[Mark, Mark], Mark] = lambda _, new: new


def play(seed: int, rules: Rules) -> str:
    """Play a schedule; return what is wrong, "" for nothing."""
    rng = random.Random(seed)
    world, now = World(), 1_000
    entries_max = rng.choice((4, 16, 10**6))
    leader = Leader(world, 0, entries_max, rules)
    wanted: set[int] = set()
    for _ in range(rng.randrange(40, 120)):
        now += rng.randrange(0, 6)
        match rng.choice(
            ("write", "write", "write", "cancel", "settle", "scan", "step", "step", "die", "late", "idle")
        ):
            case "write":
                # Of another leader's clock than the one that delivers; due at once, soon, or later.
                due = now + leader.skew + rng.choice((0, 0, 3, 10, 40))
                wanted.add(len(world.log))
                world.log.append(Entry(due))
            case "late":
                wanted.add(len(world.log))
                world.log.append(Entry(max(0, now + leader.skew - rng.randrange(0, 15)), committed=False))
            case "settle":
                for entry in world.log:
                    entry.committed = True
            case "cancel" if wanted:
                offset = rng.choice(sorted(wanted))
                world.cancelled_at.setdefault(offset, len(world.log))
                world.log.append(Entry(now, cancels=offset))
            case "scan":
                leader.scan(world.stable, rng.randrange(1, 9))
            case "step":
                if rules.reads_before_it_delivers:
                    leader.scan(world.stable)
                step = leader.step(now, rng.choice((1, 2, 5)))
                if step is None:
                    continue
                for offset in step.offsets:
                    if world.cancelled_at.get(offset, 10**9) < world.stable:
                        world.late_cancels.append(offset)
                died = rng.random()
                if died < 0.2:
                    leader = Leader(world, rng.randrange(-10, 11), entries_max, rules)
                elif died < 0.4:
                    leader.commit(step)
                    leader = Leader(world, rng.randrange(-10, 11), entries_max, rules)
                elif died < 0.5:
                    leader.pending.given_back(step)
                else:
                    leader.commit(step)
            case "idle":
                leader.idle()
            case "die":
                leader = Leader(world, rng.randrange(-10, 11), entries_max, rules)
    for entry in world.log:
        entry.committed = True
    for _ in range(10 * len(world.log) + 20):
        now += 20
        leader.scan(world.stable)
        step = leader.step(now, 5)
        if step is not None:
            leader.commit(step)
        elif not len(leader.pending) and leader.pending.horizon is None:
            break
    return judge(world, wanted)


def judge(world: World, wanted: set[int]) -> str:
    twice = {offset for offset, count in Counter(world.delivered).items() if count > 1}
    missing = wanted - set(world.delivered) - set(world.cancelled_at)
    if twice:
        return f"delivered twice: {sorted(twice)}"
    if missing:
        return f"lost: {sorted(missing)}"
    if world.early:
        return f"early: {world.early}"
    if world.late_cancels:
        return f"delivered although cancelled before: {world.late_cancels}"
    return ""


@pytest.mark.parametrize("part", range(5))
def test_each_record_comes_once_and_not_early_whatever_dies(part: int) -> None:
    for seed in range(part * 60, part * 60 + 60):
        assert play(seed, Rules()) == "", f"seed {seed}"


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        (Rules(reads_before_it_delivers=False), "cancelled"),
        (Rules(mark=lambda old, _: old), "twice"),
        (Rules(mark=lambda _, new: new._replace(position=Offset(10**6))), "lost"),
        (Rules(mark=lambda old, new: new._replace(position=old.position)), "twice"),
    ],
    ids=["delivers before it has read", "mark apart from deliveries", "no position", "position not moved"],
)
def test_the_model_finds_what_is_wrong(rules: Rules, wrong: str) -> None:
    assert any(wrong in play(seed, rules) for seed in range(200))


def test_nothing_is_delivered_while_the_clock_is_behind() -> None:
    pending = Pending(Mark(100, Offset(7), Offset(8)), Offset(0))
    pending.take([(8, 50)])
    pending.scanned = Offset(9)
    assert pending.choose(99, 10) is None
    step = pending.choose(100, 10)
    assert step is not None
    assert step.offsets == [8]
