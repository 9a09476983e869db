"""Metrics pushed by one node's clients, and their page for Prometheus. Pure.

A series has one label, the client id: nothing else about a client is shown. Several instances with one id, and several
points of one metric (such as one per broker or partition), become one number: the sum of counters, the maximum of
gauges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from tidelog.proto.kafka.otlp import Figure

VALUES_MAX: Final = 500_000
"""Maximum values of all clients together; further ones are dropped and counted."""
NAMES_MAX: Final = 2_000
"""Maximum metric names; values of further ones are dropped and counted."""
_OWN_PREFIX: Final = "org.apache.kafka."
_PREFIX: Final = "kafka_client_"
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_]")
LINES_A_STEP: Final = 1_000


class Pushed:
    """What one client instance has pushed so far."""

    __slots__ = ("client_id", "counters", "gauges")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, float] = {}


class _Family:
    """``uses``: how many instances have it."""

    __slots__ = ("is_counter", "name", "uses")

    def __init__(self, name: str, is_counter: bool) -> None:
        self.name = name
        self.is_counter = is_counter
        self.uses = 0


class ClientFigures:
    """See the module. Everything runs on the event loop."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        """By the name in Prometheus."""
        self._instances: dict[Pushed, None] = {}
        self._ended: dict[str, dict[str, float]] = {}
        """Client id → counters of its past instances, while it has other instances, so that a sum never falls."""
        self._of_id: dict[str, int] = {}
        self.values = 0
        self.dropped = 0

    def begin(self, client_id: str) -> Pushed:
        """Register a new instance that has pushed nothing yet."""
        found = Pushed(client_id)
        self._instances[found] = None
        self._of_id[client_id] = self._of_id.get(client_id, 0) + 1
        return found

    def clear(self, pushed: Pushed) -> None:
        """Restart an instance, because it is asked for other metrics."""
        for name in (*pushed.counters, *pushed.gauges):
            self._leave(name)
        pushed.counters.clear()
        pushed.gauges.clear()

    def end(self, pushed: Pushed) -> None:
        """Remove an instance. Its counters stay in its client id's sum while that has other instances."""
        del self._instances[pushed]
        client_id = pushed.client_id
        self._of_id[client_id] -= 1
        if self._of_id[client_id]:
            ended = self._ended.setdefault(client_id, {})
            for name, value in pushed.counters.items():
                if name in ended or self._enter(name):
                    ended[name] = ended.get(name, 0.0) + value
        else:
            del self._of_id[client_id]
            for name in self._ended.pop(client_id, ()):
                self._leave(name)
        self.clear(pushed)

    def take(self, pushed: Pushed, found: dict[str, tuple[bool, bool, float]]) -> None:
        """Store what an instance pushed: name → whether it is a counter, whether it is a delta, the value."""
        for name, (sums, delta, value) in found.items():
            exported = self._name(name, sums)
            if exported is None:
                self.dropped += 1
                continue
            values = pushed.counters if sums else pushed.gauges
            if exported not in values and not self._enter(exported):
                self.dropped += 1
                self._forget_unused(exported)
            elif delta:
                values[exported] = values.get(exported, 0.0) + value
            else:
                values[exported] = value

    def _enter(self, exported: str) -> bool:
        if self.values >= VALUES_MAX:
            return False
        self.values += 1
        self._families[exported].uses += 1
        return True

    def _leave(self, exported: str) -> None:
        self.values -= 1
        self._families[exported].uses -= 1
        self._forget_unused(exported)

    def _forget_unused(self, exported: str) -> None:
        if not self._families[exported].uses:
            del self._families[exported]

    def _name(self, name: str, is_counter: bool) -> str | None:
        """Return the name for Prometheus; ``None`` if there are too many, or a metric of the other kind has it."""
        exported = exported_name(name, is_counter)
        family = self._families.get(exported)
        if family is None:
            if len(self._families) >= NAMES_MAX:
                return None
            family = self._families[exported] = _Family(name, is_counter)
        return exported if family.is_counter == is_counter else None

    # --- The page -------------------------------------------------------------------------------------

    def page(self) -> Iterator[bytes]:
        """Yield the page for Prometheus in steps; anything may change between them."""
        sums: dict[str, dict[str, float]] = {}
        for client_id, ended in self._ended.items():
            for name, value in ended.items():
                sums.setdefault(name, {})[client_id] = value
        labels = {client_id: _quoted(client_id) for client_id in self._of_id}
        seen = 0
        for pushed in list(self._instances):
            for name, value in pushed.counters.items():
                of_name = sums.setdefault(name, {})
                of_name[pushed.client_id] = of_name.get(pushed.client_id, 0.0) + value
            for name, value in pushed.gauges.items():
                of_name = sums.setdefault(name, {})
                of_name[pushed.client_id] = max(of_name.get(pushed.client_id, value), value)
            seen += 1 + len(pushed.counters) + len(pushed.gauges)
            if seen >= LINES_A_STEP:
                seen = 0
                yield b""
        kinds = {name: (family.name, family.is_counter) for name, family in self._families.items()}
        for name in sorted(sums.keys() & kinds.keys()):
            meant, is_counter = kinds[name]
            lines = [f"# HELP {name} {_escaped(meant)}\n# TYPE {name} {'counter' if is_counter else 'gauge'}\n"]
            for client_id, value in sums[name].items():
                lines.append(f'{name}{{client_id="{labels[client_id]}"}} {value!r}\n')
                if len(lines) >= LINES_A_STEP:
                    yield "".join(lines).encode()
                    lines.clear()
            yield "".join(lines).encode()


def reduced(found: dict[str, tuple[bool, bool, float]], figure: Figure) -> None:
    """Combine a point with others of the same metric in one push."""
    before = found.get(figure.name)
    value = figure.value
    if before is not None and before[0] == figure.sums:
        value = before[2] + value if figure.sums else max(before[2], value)
    found[figure.name] = figure.sums, figure.delta, value


@lru_cache(maxsize=2 * NAMES_MAX)
def exported_name(name: str, is_counter: bool) -> str:
    """Return a metric's name for Prometheus: ``org.apache.kafka.producer.connection.count`` becomes
    ``kafka_client_producer_connection_count``. No metric of a node begins like this."""
    safe = _PREFIX + _UNSAFE.sub("_", name.removeprefix(_OWN_PREFIX))
    return safe + "_total" if is_counter and not safe.endswith("_total") else safe


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
