"""Our frozen dataclasses behave as those of the standard library, but for the speed with which they are made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.model.classes import frozen


def _classes(dataclass: Callable[..., Any]) -> tuple[Any, Any, Any]:
    @dataclass(frozen=True, slots=True)
    class Plain:
        number: int
        text: str = "none"
        many: list[int] = dataclasses.field(default_factory=list)
        unseen: int = dataclasses.field(default=7, repr=False, compare=False)
        made: int = dataclasses.field(default=3, init=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        late: int = 5

    @dataclass(frozen=True, slots=True)
    class Child(Base):
        first: int

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("expected 0 or more")

        def __hash__(self) -> int:
            return 12

    for each in (Plain, Base, Child):  # the two functions' names would differ otherwise
        each.__qualname__ = each.__name__
    return Plain, Base, Child


OURS = _classes(frozen.dataclass)
THEIRS = _classes(dataclasses.dataclass)


@frozen.dataclass(frozen=True, slots=True)
class Sent:
    name: str
    parts: tuple[int, ...] = ()


@frozen.dataclass(frozen=True, slots=True)
class Nothing:
    pass


def _outcome(act: Callable[[Any, Any, Any], object], classes: tuple[Any, Any, Any]) -> tuple[str, str]:
    try:
        return "returned", repr(act(*classes))
    except (TypeError, ValueError, dataclasses.FrozenInstanceError) as error:
        return type(error).__name__, str(error).rpartition(".")[2]


ACTS: list[Callable[[Any, Any, Any], object]] = [
    lambda plain, base, child: plain(1),
    lambda plain, base, child: plain(1, "a", [2], 9),
    lambda plain, base, child: plain(),
    lambda plain, base, child: plain(1, made=4),
    lambda plain, base, child: plain(1, surplus=4),
    lambda plain, base, child: plain(1).many is plain(1).many,
    lambda plain, base, child: (plain(1) == plain(1), plain(1) == plain(2), plain(1) == 1),
    lambda plain, base, child: plain(1, unseen=1) == plain(1, unseen=2),
    lambda plain, base, child: hash(plain(1)),  # a list is not hashable
    lambda plain, base, child: hash(base(late=1)) == hash(base(late=1)),
    lambda plain, base, child: hash(child(1)),
    lambda plain, base, child: base() == child(1),
    lambda plain, base, child: child(1, late=2),
    lambda plain, base, child: child(1, 2),
    lambda plain, base, child: child(-1),
    lambda plain, base, child: setattr(plain(1), "number", 2),
    lambda plain, base, child: delattr(plain(1), "number"),
    lambda plain, base, child: dataclasses.replace(plain(1), text="b"),
    lambda plain, base, child: dataclasses.asdict(child(1)),
    lambda plain, base, child: (plain.__match_args__, base.__match_args__, child.__match_args__),
    lambda plain, base, child: (plain.__slots__, base.__slots__, child.__slots__),
    lambda plain, base, child: [each.name for each in dataclasses.fields(child)],
    lambda plain, base, child: copy.deepcopy(plain(1, many=[3])),
    lambda plain, base, child: plain.__init__.__annotations__,
]


@pytest.mark.parametrize("act", ACTS)
def test_they_do_what_the_standard_ones_do(act: Callable[[Any, Any, Any], object]) -> None:
    assert _outcome(act, OURS) == _outcome(act, THEIRS)


def test_they_can_be_pickled_and_are_keys() -> None:
    sent = Sent("a", (1, 2))
    assert pickle.loads(pickle.dumps(sent)) == sent
    assert {sent: 1}[Sent("a", (1, 2))] == 1
    assert {Nothing()} == {Nothing()}


def test_an_unknown_field_cannot_be_set() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):  # the standard library raises a TypeError about super()
        setattr(Sent("a"), "unknown", 1)  # noqa: B010


def test_other_forms_are_the_standard_ones() -> None:
    @frozen.dataclass(slots=True)
    class Changing:
        number: int = 1

    changing = Changing()
    changing.number = 2
    assert changing == Changing(2)
    with pytest.raises(TypeError, match="non-default argument 'second' follows default argument"):

        @frozen.dataclass(frozen=True, slots=True)
        class Misordered:
            first: int = 1
            second: int  # type: ignore[misc]
