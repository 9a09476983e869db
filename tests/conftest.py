"""Fixtures for the tests of every folder."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from tests.mutants import Session
    from tidelog.broker.node.broker_role import BrokerRole
    from tidelog.broker.node.node import Node

_LISTEN: Final = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def broker_of(node: Node) -> BrokerRole:
    """The broker of a node that has one."""
    assert node.broker is not None, f"expected node {node.config.node_id} to be a broker"
    return node.broker


@pytest.fixture(scope="session", autouse=True)
def no_profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands of tests go to the tests' clusters, whatever cluster the developer uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        for name in ("TIDELOG_PROFILE", "TIDELOG_COMMAND_CONFIG"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def mutants(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The mutants of a module's tests (:mod:`tests.mutants`)."""
    from tests.mutants import session_of

    yield from session_of(request)


@pytest.fixture
def interruptible() -> Callable[[Sequence[str]], list[str]]:
    """Makes of a command one that an interrupt reaches: who runs the tests in the background has SIGINT ignored, and
    so would the command. (``preexec_fn`` would fork this process, amid the calls of gRPC's threads: a child may hang.)
    """
    return lambda command: [sys.executable, "-S", "-c", _LISTEN, *command]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[Any]:
    """To tell of a failure, pytest parses source. Before CPython 3.11.8 and 3.12.2 (gh-106905), parsing fails with a
    SystemError if the collector runs amid it and ends an object that logs a traceback, which parses source as well;
    pytest would end all tests for it."""
    if call.excinfo is None:
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """The half a million objects of the collected tests stay until the end. Each full collection looked through them:
    it took a third of a second, and a short simulated run spent more than a third of its time on that."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    """See :mod:`tests.workers`; ``--dist`` with another value than ``load`` is xdist's own."""
    if config.option.dist != "load":
        return None
    from .workers import Groups

    return Groups(config, log)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that only this thread may ask a cluster."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
