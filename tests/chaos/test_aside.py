"""A blocking program beside a loop: one of the two works at a time, and a killed one ends where it is."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from tests.virtual_time import in_virtual_time
from tidelog.chaos.workloads.aside import Aside, Died


@in_virtual_time
async def test_a_program_waits_in_the_time_of_the_loop() -> None:
    aside: Aside[str] = Aside()
    loop = asyncio.get_running_loop()
    began = loop.time()

    def program() -> str:
        aside.ask(lambda: asyncio.sleep(3_600))
        with pytest.raises(KeyError):
            aside.ask(lambda: os.environ["NO SUCH NAME"])
        return threading.current_thread().name

    assert await aside.run(program) != threading.current_thread().name
    assert loop.time() - began == 3_600


@in_virtual_time
async def test_what_it_raises_is_raised() -> None:
    def program() -> None:
        raise KeyError("three")

    with pytest.raises(KeyError, match="three"):
        await Aside[None]().run(program)


@in_virtual_time
async def test_a_killed_program_does_nothing_more() -> None:
    aside: Aside[None] = Aside()
    done: list[str] = []

    def program() -> None:
        try:
            aside.ask(lambda: asyncio.sleep(10))
        finally:
            done.append("unwinding")
            aside.ask(lambda: done.append("asked on its way out"))

    task = asyncio.ensure_future(aside.run(program))
    await asyncio.sleep(1)
    aside.kill()
    assert done == ["unwinding"]
    with pytest.raises(Died):
        await task
    aside.kill()
