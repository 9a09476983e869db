"""Names, help and ``repr`` for a user at a prompt."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import subprocess
import sys
from types import ModuleType

import pytest

import tidelog
import tidelog.aio
from tidelog.testing import AsyncCluster, Cluster

MODULES = [tidelog, tidelog.aio]
NAMED = [(module, name) for module in MODULES for name in module.__all__]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_dir_shows_what_is_public_and_nothing_else(module: ModuleType) -> None:
    shown = {name for name in dir(module) if not name.startswith("__")}
    assert shown == set(module.__all__) | ({"aio", "testing"} if module is tidelog else set())
    for name in shown:
        assert getattr(module, name) is not None


def test_dir_imports_nothing() -> None:
    code = "import sys, tidelog; before = set(sys.modules); dir(tidelog); print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("module", "name"), NAMED, ids=lambda value: getattr(value, "__name__", value))
def test_every_public_name_says_what_it_is(module: ModuleType, name: str) -> None:
    found = getattr(module, name)
    text = inspect.getdoc(found)
    assert text
    assert not text.startswith(f"{name}("), "a dataclass without a docstring shows its fields instead"
    if inspect.isclass(found):
        for method, value in vars(found).items():
            if inspect.isfunction(value) and not method.startswith("_"):
                assert inspect.getdoc(getattr(found, method)), f"{name}.{method}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("Producer", "linger_ms = 5\n"),
        ("Consumer", "isolation_level = 'read_uncommitted'\n"),
        ("Admin", "default_api_timeout_ms = 60000\n"),
    ],
)
def test_help_of_a_client_has_its_settings_and_none_of_our_own_arguments(
    module: ModuleType, name: str, setting: str
) -> None:
    text = pydoc.plain(pydoc.render_doc(getattr(module, name)))
    assert setting in text
    assert "_network" not in text
    # Python 3.13 breaks a long signature into lines.
    joined = "".join(line.removeprefix(" |").strip() for line in text.splitlines()).replace(",**", ", **")
    assert f"{name}(bootstrap_servers: 'str | Sequence[str]', **settings" in joined


OF_THEIR_OWN = {
    "Producer": {"start", "transaction"},
    "Cluster": {"start", "stop", "producer", "consumer", "admin", "sink_ledger", "sink_writer"},
}
"""Methods that the two forms explain in their own words, or whose arguments are of their own form."""


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [
        (tidelog.Admin, tidelog.aio.Admin),
        (tidelog.Consumer, tidelog.aio.Consumer),
        (tidelog.Producer, tidelog.aio.Producer),
        (tidelog.SinkLedger, tidelog.aio.SinkLedger),
        (tidelog.SinkWriter, tidelog.aio.SinkWriter),
        (Cluster, AsyncCluster),
    ],
)
def test_a_blocking_class_is_asked_and_explained_as_its_asyncio_form(blocking: type, asynchronous: type) -> None:
    methods = {m: f for m in dir(asynchronous) if inspect.isfunction(f := getattr(asynchronous, m)) and m[0] != "_"}
    assert len(methods) > 4
    for method in methods.keys() - OF_THEIR_OWN.get(blocking.__name__, {"start"}):
        made, original = getattr(blocking, method), methods[method]
        assert not inspect.iscoroutinefunction(made)
        assert inspect.signature(made) == inspect.signature(original), method
        assert inspect.getdoc(made) == inspect.getdoc(original), method


def test_clients_show_where_they_lead_and_how_they_stand() -> None:
    with Cluster(nodes=1) as cluster:
        cluster.create_topic("shown", partitions=2)
        at = cluster.bootstrap
        with cluster.producer(transactional_id="mover") as producer:
            assert repr(producer) == f"<tidelog.Producer {at}, transactional id 'mover', open>"
        assert repr(producer).endswith(", closed>")
        with cluster.producer() as producer:
            sent = producer.send_many("shown", [b"a", b"b"])
            sent.result(10)
            assert repr(sent) == "<BulkFuture 2 records for shown, done>"
        with cluster.consumer(group_id="a\nb") as consumer:
            assert repr(consumer) == f"<tidelog.Consumer {at}, group 'a\\nb', 0 partitions assigned, open>"
        with cluster.consumer() as consumer:
            consumer.assign([tidelog.TopicPartition("shown", 1)])
            assert repr(consumer) == f"<tidelog.Consumer {at}, 1 partition assigned, open>"
        with cluster.admin() as admin:
            assert repr(admin) == f"<tidelog.Admin {at}, open>"
        assert repr(admin) == f"<tidelog.Admin {at}, closed>"


def test_asyncio_clients_do_too() -> None:
    async def show() -> list[str]:
        kinds = (tidelog.aio.Producer, tidelog.aio.Consumer, tidelog.aio.Admin)
        return [repr(kind("one:1,[::1]:2")) for kind in kinds]

    assert asyncio.run(show()) == [
        "<tidelog.aio.Producer one:1,[::1]:2, open>",
        "<tidelog.aio.Consumer one:1,[::1]:2, 0 partitions assigned, open>",
        "<tidelog.aio.Admin one:1,[::1]:2, open>",
    ]
