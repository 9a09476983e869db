"""The table: every rule of health."""

from __future__ import annotations

from typing import Final

from tidelog.broker.health import client_rules, cluster_rules, node_rules
from tidelog.broker.health.facts import Facts
from tidelog.broker.health.rule import Report, Rule, check

RULES: Final[tuple[Rule, ...]] = (*cluster_rules.RULES, *node_rules.RULES, *client_rules.RULES)


def report(facts: Facts) -> Report:
    """Return the findings, the most severe first."""
    return check(RULES, facts)
