"""A link between clusters of real processes that end by kill -9, promoted while producers write at the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.chaos.laboratory.linked_run import LinkedRun, linked_run


@pytest.mark.timeout(400)
def test_killed_leaders_and_a_killed_link_lose_and_double_nothing_below_the_promotion(tmp_path: Path) -> None:
    run = linked_run(tmp_path, 1)
    assert run.faults() == []
    assert len(run.kills) >= 4
    assert run.target


def test_what_a_link_must_not_do_is_found() -> None:
    sound = LinkedRun(
        acknowledged={(0, 0): b"a", (0, 1): b"b", (0, 2): b"c"},
        unknown={b"x"},
        promised={0: 2},
        promoted={0: 2},
        target=[((0, 0), b"a"), ((0, 1), b"b")],
    )
    assert sound.faults() == []

    def faults(**changes: object) -> list[str]:
        run = LinkedRun(sound.acknowledged, sound.unknown, [], sound.promised, sound.promoted, sound.target)
        for name, value in changes.items():
            setattr(run, name, value)
        return run.faults()

    assert "acknowledged at (0, 1)" in faults(target=[((0, 0), b"a")])[0]
    assert any("stands 2 times" in one for one in faults(target=[((0, 0), b"a"), ((0, 1), b"a")]))
    assert any("nobody sent" in one for one in faults(target=[((0, 0), b"a"), ((0, 1), b"z")]))
    assert "position 3 was promised" in faults(promised={0: 3})[0]
    assert any("beyond its promotion" in one for one in faults(target=[*sound.target, ((0, 2), b"c")]))
