"""A drill's output for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from tidelog.chaos.drill.objectives import WORDS, Objective, limit_words, value_words
from tidelog.chaos.drill.run import HeldDrill
from tidelog.chaos.drill.stage import Moment
from tidelog.cli.terminal.output import print_rows

SHOWN_MAX = 10
"""Maximum number of client errors shown to people."""


class Voice:
    """Prints lines during a drill; to stderr with ``err``.

    If nobody reads any more (``| head``, a full disk), the first lost line raises, which ends the drill, and later ones
    are lost silently: the drill's acts must be undone all the same."""

    def __init__(self, *, err: bool) -> None:
        self._err = err
        self._lost = False

    def __call__(self, line: str) -> None:
        if self._lost:
            return
        try:
            click.echo(line, err=self._err)
        except OSError:
            self._lost = True
            raise


def say_plan(say: Callable[[str], None], steps: Sequence[str], objectives: Sequence[Objective]) -> None:
    """Print the plan and the objectives."""
    for number, step in enumerate(steps, 1):
        say(f"  {number}. {step}")
    say("objectives:")
    for objective in objectives:
        say(f"  {objective.words}")


def moment_line(moment: Moment) -> str:
    return f"{moment.at_s:7.2f} s  {moment.kind if moment.kind in ('fault', 'heal') else '':<5}  {moment.text}"


def print_held(held: HeldDrill) -> None:
    """Print the measures, the errors and the verdict."""
    limits = {one.objective.measure: one for one in held.judgements}
    rows = []
    for measure, words in WORDS.items():
        if measure in held.measures or measure in limits:
            one = limits.get(measure)
            rows.append(
                (
                    words,
                    value_words(measure, held.measures.get(measure)),
                    "" if one is None else limit_words(measure, one.objective.limit),
                    "" if one is None else "met" if one.met else "MISSED",
                )
            )
    click.echo()
    print_rows(("measured", "found", "objective", ""), rows)
    for trouble in held.evidence.troubles[:SHOWN_MAX]:
        click.echo(f"{trouble.who} was told after {trouble.at_s:.2f} s: {trouble.text}")
    if (more := held.evidence.errors - SHOWN_MAX) > 0:
        click.echo(f"and {more:,} more errors")
    for ailment in held.after:
        click.echo(f"not as it was before: {ailment}")
    missed = [WORDS[one.objective.measure] for one in held.judgements if not one.met]
    click.echo(f"MISSED: {'; '.join(missed)}" if missed else f"MET: {held.drill}, {len(held.judgements)} objectives")


def as_json(held: HeldDrill) -> dict[str, Any]:
    """Return everything, for programs. Times and measures that end in ``_s`` are seconds, times since the start of the
    drill."""
    return {
        "drill": held.drill,
        "met": held.met,
        "cluster_id": held.cluster_id,
        "topic": held.topic,
        "seconds": round(held.length_s, 3),
        "steps": list(held.steps),
        "objectives": [
            {
                "measure": one.objective.measure,
                "limit": one.objective.limit,
                "found": _rounded(one.found),
                "met": one.met,
            }
            for one in held.judgements
        ],
        "measures": {measure: _rounded(value) for measure, value in held.measures.items()},
        "timeline": [{**asdict(moment), "at_s": round(moment.at_s, 3)} for moment in held.moments],
        "errors": [
            {"at_s": round(one.at_s, 3), "client": one.who, "error": one.text} for one in held.evidence.troubles
        ],
        "unhealthy": held.after,
    }


def _rounded(value: float | int | None) -> float | int | None:
    return round(value, 4) if isinstance(value, float) else value
