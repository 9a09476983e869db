"""The list of all routes: the door serves it, and tests iterate over it."""

from __future__ import annotations

from typing import Final

from tidelog.console.pages import cluster, drills, groups, messages, planning, security, sinks, topics, transactions
from tidelog.console.routes import Route

ROUTES: Final[tuple[Route, ...]] = (
    *cluster.ROUTES,
    *topics.ROUTES,
    *messages.ROUTES,
    *groups.ROUTES,
    *transactions.ROUTES,
    *sinks.ROUTES,
    *security.ROUTES,
    *drills.ROUTES,
    *planning.ROUTES,
)
