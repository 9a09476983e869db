"""The capacity planner: inputs, the resulting plan, and what changes it. Makes no requests to a cluster."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Final

from tidelog.cli.work.planner.answer import as_object, volumes
from tidelog.cli.work.planner.demand import SEED_PEAK, Demand, DemandWrong, Machine, peak_of
from tidelog.cli.work.planner.model import plan, what_if
from tidelog.cli.work.planner.shipped import SHIPPED
from tidelog.console.routes import Call, Route
from tidelog.console.web.messages import Wrong

EXAMPLE: Final = {"records_a_day": 1e9, "peak_factor": round(SEED_PEAK, 2)}
"""The initial load of the page."""


def inputs(_: Call) -> dict[str, Any]:
    return {
        kind: [
            {
                "name": one.name,
                "default": EXAMPLE.get(one.name, one.default),
                "doc": one.metadata["doc"],
                "yes_no": isinstance(one.default, bool),
            }
            for one in fields(of)
        ]
        for kind, of in (("demand", Demand), ("machine", Machine))
    }


def planned(call: Call) -> dict[str, Any]:
    """Return the plan for the query's inputs, with defaults for the missing ones."""
    given: dict[str, Any] = {}
    curve = call.text("curve")
    try:
        for one in (*fields(Demand), *fields(Machine)):
            text = call.text(one.name)
            given[one.name] = _value(one.name, text, one.default) if text else EXAMPLE.get(one.name, one.default)
        if curve:
            given["records_a_day"], given["peak_factor"] = peak_of([float(item) for item in curve.split(",")])
        demand = Demand(**{one.name: given[one.name] for one in fields(Demand)})
        machine = Machine(**{one.name: given[one.name] for one in fields(Machine)})
        found = plan(demand, machine, SHIPPED)
        return as_object(found, SHIPPED, what_if(demand, machine, SHIPPED), volumes(demand, machine, SHIPPED))
    except DemandWrong as wrong:
        raise Wrong(str(wrong)) from None
    except ValueError as wrong:
        raise Wrong(f"curve: {wrong}") from None


def _value(name: str, text: str, default: object) -> Any:
    if isinstance(default, bool):
        return text == "yes"
    try:
        found = float(text)
    except ValueError:
        raise Wrong(f"{name}: expected a number, found {text[:40]!r}") from None
    if not math.isfinite(found) or abs(found) > 1e18:
        raise Wrong(f"{name}: expected a number, found {text[:40]!r}")
    if isinstance(default, int):
        if found != int(found):
            raise Wrong(f"{name}: expected a whole number, found {text[:40]!r}")
        return int(found)
    return found


ROUTES: Final = (Route("GET", "/api/plan-inputs", inputs), Route("GET", "/api/plan", planned))
