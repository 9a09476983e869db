"""Takes the pictures of ``docs/console.md``: ``./dev run python -m tests.console.pictures``. It takes two minutes.

Three nodes of real processes with some traffic, seen by Chromium. Look at the pictures before you commit them. If your
disk is nearly full, so says the first page: set ``TMPDIR`` to another.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import sync_playwright

from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.cli.local.cluster import LocalCluster
from tidelog.console.access import access_of

from .conftest import Console
from .test_browser import CHROMIUM, Page

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"
DESK: Final = {"color_scheme": "light", "viewport": {"width": 1280, "height": 830}}
PHONE: Final = {"color_scheme": "dark", "viewport": {"width": 360, "height": 640}}
COLOURS: Final = 128
CHART_S: Final = 40
"""How long charts are watched before the picture."""


@contextmanager
def traffic(cluster: LocalCluster) -> Iterator[None]:
    """Orders that a group reads, a little more slowly than they come."""
    over = threading.Event()

    def produce() -> None:
        rng = random.Random(1)
        with Producer(cluster.bootstrap, linger_ms=20) as producer:
            number = 0
            while not over.wait(0.01):
                number += 1
                order = {"id": number, "item": rng.choice(("anchor", "rope", "sail")), "price": rng.randrange(1, 900)}
                producer.send("orders", json.dumps(order).encode(), f"customer-{rng.randrange(40)}".encode())

    def consume() -> None:
        with Consumer(cluster.bootstrap, group_id="shipping", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            while not over.is_set():
                consumer.poll(0.5)

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def take(console: Console) -> None:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        desk, phone = (Page(browser, console, **look) for look in (DESK, PHONE))
        for name, page, address, seconds in (
            ("cluster", desk, "/", CHART_S),
            ("group", desk, "/groups/shipping", CHART_S),
            ("messages", desk, "/topics/orders/messages?value=sail", 1),
            ("plan", desk, "/plan?growth_a_year=0.5", 1),
            ("phone", phone, "/topics/orders", 1),
        ):
            page.go(address)
            page.tab.wait_for_timeout(1_000 * seconds)
            if name == "plan":
                page.tab.get_by_text("Of a node").scroll_into_view_if_needed()
                page.tab.mouse.wheel(0, 420)
                page.tab.wait_for_timeout(1_000)
            path = PICTURES / f"console-{name}.png"
            page.tab.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        assert desk.complaints + phone.complaints == []
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        cluster = LocalCluster.create(Path(place) / "cluster", nodes=3)
        try:
            cluster.start()
            cluster.wait_ready(timeout_s=120)
            with Admin(cluster.bootstrap) as admin:
                admin.create_topics([NewTopic("orders", 6, 3)])
            console = Console(cluster.bootstrap, access_of({}), {"version": "0.1.0", "drills": False})
            with traffic(cluster):
                take(console)
            console.close()
        finally:
            for node in cluster.nodes:
                cluster.kill(node)
