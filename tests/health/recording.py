"""Records what nodes export while a cluster of real processes loses nodes, and in a rolling restart.

``./dev run python -m tests.health.recording`` writes the files of ``recordings/`` anew; it takes eleven minutes. The
tests judge the alerts by them (``test_recorded_drills.py``).
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidelog import Producer
from tidelog.broker import metrics
from tidelog.broker.health.rules import RULES
from tidelog.cli.local.cluster import LocalCluster

EVERY_S: Final = 15
NAMES: Final = {name for rule in RULES for alert in rule.alerts for name in re.findall(r"\b[a-z]+_\w+", alert.expr)}
Act = Callable[[LocalCluster], object]
Scrape = dict[int, dict[str, str] | None]
"""Of each node, the values by series; ``None`` if it did not answer. Clocks are less the recorder's own."""
CLOCK: Final = metrics.CLOCK.exported


def kill(node: int) -> Act:
    return lambda cluster: cluster.kill(node)


def restart(node: int) -> Act:
    def act(cluster: LocalCluster) -> None:
        cluster.stop([node])
        cluster.start([node])
        cluster.wait_ready([node], timeout_s=120)

    return act


DRILLS: Final[dict[str, tuple[int, list[tuple[int, Act]]]]] = {
    "node-loss": (660, [(60, kill(2)), (480, kill(3))]),
    "rolling-restart": (480, [(60, restart(1)), (130, restart(2)), (200, restart(3))]),
}
"""How many seconds are recorded, and what is done when."""


def record(directory: Path, seconds: int, acts: Sequence[tuple[int, Act]]) -> list[Scrape]:
    """Three nodes with a producer, from the start of which the seconds count."""
    cluster = LocalCluster.create(directory, nodes=3)
    found: list[Scrape] = []
    over = threading.Event()
    threads = []
    try:
        cluster.start()
        cluster.wait_ready(timeout_s=120)
        began_s = time.monotonic()
        threads = [
            threading.Thread(target=_produce, args=(cluster.bootstrap, over)),
            threading.Thread(target=_act, args=(cluster, began_s, acts)),
        ]
        for thread in threads:
            thread.start()
        for number in range(seconds // EVERY_S + 1):
            time.sleep(max(0.0, began_s + number * EVERY_S - time.monotonic()))
            found.append({node: _scrape(cluster, node) for node in cluster.nodes})
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.remove()
    return found


def _produce(bootstrap: str, over: threading.Event) -> None:
    with Producer(bootstrap, delivery_timeout_ms=20_000, request_timeout_ms=5_000) as producer:
        while not over.wait(0.05):
            producer.send("recorded", b"x")


def _act(cluster: LocalCluster, began_s: float, acts: Sequence[tuple[int, Act]]) -> None:
    for at_s, act in acts:
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        act(cluster)


def _scrape(cluster: LocalCluster, node: int) -> dict[str, str] | None:
    try:
        _, body = cluster.node(node).get("/metrics", 5.0)
    except OSError:
        return None
    text = body.decode().replace(str(cluster.directory), "/data")
    lines = [line for line in text.splitlines() if re.split(r"[{ ]", line)[0] in NAMES]
    found = dict(line.rsplit(" ", 1) for line in lines if "_bucket" not in line)
    if CLOCK in found:
        found[CLOCK] = str(round(float(found[CLOCK]) - time.time(), 3))
    return found


def as_series(scrapes: Sequence[Scrape]) -> dict[str, str]:
    """The values of each series as promtool writes them: ``1+0x3`` for four times 1, ``_`` for none. A node that does
    not answer makes its series stale. Clocks go with promtool's, which begins at 0."""
    series: dict[str, str] = {}
    for node in sorted({node for scrape in scrapes for node in scrape}):
        for name in sorted({name for scrape in scrapes for name in scrape[node] or ()}):
            values = [(scrape[node] or {}).get(name) for scrape in scrapes]
            if name == CLOCK:
                values = [one and str(float(one) + EVERY_S * number) for number, one in enumerate(values)]
            labels = f'instance="{node}"' + (", " + name.partition("{")[2][:-1] if "{" in name else "")
            series[f"{name.partition('{')[0]}{{{labels}}}"] = _spelled(values)
    return series


def _spelled(values: Sequence[str | None]) -> str:
    parts: list[str] = []
    before: str | None = None
    for value in values:
        if value is None:
            parts.append("stale" if before is not None else "_")
        elif value == before and re.fullmatch(r".*x\d+", parts[-1]):
            head, _, times = parts[-1].rpartition("x")
            parts[-1] = f"{head}x{int(times) + 1}"
        else:
            parts.append(f"{value}+0x0")
        before = value
    return " ".join(parts)


if __name__ == "__main__":
    for name, (seconds, acts) in DRILLS.items():
        with tempfile.TemporaryDirectory() as place:
            series = as_series(record(Path(place) / "cluster", seconds, acts))
        path = Path(__file__).with_name("recordings") / f"{name}.json"
        path.write_text(json.dumps(series, indent=0) + "\n")
