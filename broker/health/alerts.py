"""The table of rules as Prometheus's rules file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tidelog.broker.health.rule import Rule
from tidelog.broker.health.rules import RULES


def rules_file(rules: Sequence[Rule] = RULES) -> str:
    """A file for Prometheus's ``rule_files``: YAML, whose quoted texts are JSON's."""
    return "\n".join(_lines(rules)) + "\n"


def _lines(rules: Sequence[Rule]) -> Iterator[str]:
    yield "# Made by `tidelog metrics rules`."
    yield "groups:"
    yield "  - name: tidelog"
    yield "    rules:"
    for rule in rules:
        for alert in rule.alerts:
            yield f"      - alert: {alert.name}"
            yield f"        expr: {json.dumps(alert.expr)}"
            yield f"        for: {alert.for_}"
            yield "        labels:"
            yield f"          severity: {alert.severity.value}"
            yield f"          rule: {rule.name}"
            yield "        annotations:"
            yield f"          summary: {json.dumps(alert.shows)}"
            yield f"          why: {json.dumps(rule.why)}"
            yield f"          do: {json.dumps(rule.do)}"
