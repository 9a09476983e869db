"""A plugin of pytest: of the tests that were collected, each mutant's own run with it, in a process for each mutant.

The process is a fork of this one, which has imported what the tests need. So the mutant's module is there already, and
the code of its functions is exchanged: every module that has imported such a function has the changed one. Whatever
lies outside of functions cannot be exchanged; such a mutant gets a new process.
"""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import pytest

from tests.mutants import OPTIONS, PIPE, ROOT, TIMEOUT_S, Verdict
from tidelog.chaos.simulated.mutants.hook import MutantError, MutantFinder, install, mutated_source
from tidelog.chaos.simulated.mutants.mutant import Mutant

ONE: Final = "TIDELOG_MUTANT"
"""Environment variable: the only mutant of this process, pickled, in hexadecimal."""

AT_ONCE: Final = 4
"""Forks at a time: what a mutant breaks, its test often waits for."""

_reports: Final[list[pytest.TestReport]] = []
_finders: Final[list[MutantFinder]] = []

if ONE in os.environ:  # before any conftest.py is imported
    _finders.append(install(pickle.loads(bytes.fromhex(os.environ[ONE]))))


def pytest_sessionfinish() -> None:
    for finder in _finders:
        assert finder.never_loaded == []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _reports.append(report)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if ONE in os.environ or session.testsfailed:
        return None
    pipe = Connection(int(os.environ[PIPE]))
    wanted: list[Mutant] = pipe.recv()
    wanted.reverse()
    places = list(range(AT_ONCE))
    running: dict[int, tuple[Mutant, int, float]] = {}
    while wanted or running:
        while wanted and places:
            mutant, place = wanted.pop(), places.pop()
            running[_forked(session, mutant, place)] = mutant, place, time.monotonic() + TIMEOUT_S
        if pipe.poll(0.01):  # nobody waits for verdicts any longer
            for pid in running:
                os.killpg(pid, signal.SIGKILL)
            break
        for pid, (mutant, place, deadline) in list(running.items()):
            late = time.monotonic() > deadline
            if late:
                os.killpg(pid, signal.SIGKILL)
            if os.waitpid(pid, 0 if late else os.WNOHANG)[0]:
                del running[pid]
                places.append(place)
                pipe.send((mutant.id, _verdict(session, mutant, f"after {TIMEOUT_S} s" if late else "when it ended")))
    return True


def _file(session: pytest.Session, mutant: Mutant) -> Path:
    return Path(session.config.option.basetemp).parent / f"{mutant.id}.verdict"


def _verdict(session: pytest.Session, mutant: Mutant, when: str) -> Verdict:
    file = _file(session, mutant)
    if not file.exists():
        return Verdict(False, f"the process of mutant {mutant.id} had no verdict {when}")
    verdict: Verdict = pickle.loads(file.read_bytes())
    return verdict


def _forked(session: pytest.Session, mutant: Mutant, place: int) -> int:
    if pid := os.fork():
        return pid
    try:
        os.setpgid(0, 0)
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        os.environ["PYTEST_XDIST_WORKER"] = f"gw{worker * AT_ONCE + place}"  # each has ports of its own
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workers * AT_ONCE)
        directory: Any = session.config
        directory._tmp_path_factory._given_basetemp = _file(session, mutant).with_suffix(".tests")
        _file(session, mutant).write_bytes(pickle.dumps(_judged(session, mutant)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _judged(session: pytest.Session, mutant: Mutant) -> Verdict:
    wanted = f"tests/{mutant.scenario}"
    items = [item for item in session.items if item.nodeid.startswith(wanted)]
    items = [item for item in items if item.nodeid[len(wanted) :][:1] in ("", "[", ":")]
    if not items:
        return Verdict(False, f"there is no test {wanted}")
    try:
        codes = _exchanges(mutant) if mutant.module in sys.modules else {}
    except NotExchangeable:
        return _in_a_new_process(mutant, wanted)
    except MutantError as trouble:
        return Verdict(False, str(trouble))
    return _tested(session, mutant, codes, items)


def _in_a_new_process(mutant: Mutant, wanted: str) -> Verdict:
    done = subprocess.run(
        [*OPTIONS, "-x", wanted],
        cwd=ROOT,
        env=os.environ | {ONE: pickle.dumps(mutant).hex()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return Verdict(done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr)


def _tested(
    session: pytest.Session, mutant: Mutant, codes: dict[FunctionType, CodeType], items: Sequence[pytest.Item]
) -> Verdict:
    for function, code in codes.items():
        function.__code__ = code
    finder = None if codes else install(mutant)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed := [report for report in _reports if report.failed]:
            session._setupstate.teardown_exact(None)  # servers that a fixture has started
            return Verdict(failed[0].when == "call", f"in its {failed[0].when}: {failed[0].longrepr}")
    unseen = f", and {mutant.module} was not imported" if finder and finder.never_loaded else ""
    return Verdict(False, f"{len(items)} tests passed with mutant {mutant.id}{unseen}")


class NotExchangeable(Exception):
    """A mutant changes something else than the code of functions."""


def _exchanges(mutant: Mutant) -> dict[FunctionType, CodeType]:
    """The functions that the mutant changes, each with its new code."""
    if mutant.more:
        raise NotExchangeable
    module = sys.modules[mutant.module]
    file = inspect.getsourcefile(module)
    assert file is not None
    source = Path(file).read_text(encoding="utf-8")
    changed = mutated_source(mutant, mutant.module, source, file)
    found = {}
    for before, after in _differing(compile(source, file, "exec"), compile(changed, file, "exec")):
        function = _function(module, before)
        if function.__code__.co_freevars != after.co_freevars:
            raise NotExchangeable
        found[function] = after
    if not found:
        raise NotExchangeable
    return found


def _differing(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions of a module or class that differ, before and after."""
    if _content(before, deep=False) != _content(after, deep=False):
        raise NotExchangeable
    for one, other in zip(_inner(before), _inner(after), strict=True):
        if not one.co_flags & inspect.CO_OPTIMIZED:  # a class
            yield from _differing(one, other)
        elif _content(one, deep=True) != _content(other, deep=True):
            yield one, other


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _content(code: CodeType, *, deep: bool) -> tuple[Any, ...]:
    """Everything but its place in the file."""
    constants = [
        repr(each) if not isinstance(each, CodeType) else _content(each, deep=True) if deep else each.co_name
        for each in code.co_consts
    ]
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_exceptiontable, names, arguments, constants)


def _function(module: ModuleType, code: CodeType) -> FunctionType:
    """The function of a module that has this code."""
    found: object = module
    for name in code.co_qualname.split("."):
        found = inspect.getattr_static(found, name, None)
    match found:
        case property():
            found = found.fget
        case staticmethod() | classmethod():
            found = found.__func__
        case cached_property():
            found = found.func
    found = inspect.unwrap(found) if callable(found) else found
    if not isinstance(found, FunctionType) or found.__code__ != code:
        raise NotExchangeable
    return found
