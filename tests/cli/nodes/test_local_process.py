"""A pid is never taken for the process that once had it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tidelog.cli.local import process as local_process
from tidelog.cli.local.process import ProcessMark


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    code = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def test_a_process_is_known_by_its_mark(sleeper: subprocess.Popen[bytes]) -> None:
    mark = local_process.mark_of(sleeper.pid)
    assert mark is not None
    assert local_process.alive(mark)
    use = local_process.use_of(mark)
    assert use is not None
    assert 1e6 < use.memory_bytes < 1e9
    assert use.memory_peak_bytes == -1 or use.memory_peak_bytes >= use.memory_bytes / 2
    assert local_process.send_signal(mark, signal.SIGKILL)
    sleeper.wait()
    assert not local_process.alive(mark)
    assert not local_process.send_signal(mark, signal.SIGKILL)
    assert local_process.use_of(mark) is None


def test_a_stranger_with_the_same_pid_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    stranger = ProcessMark(sleeper.pid, "12345@another boot")
    assert not local_process.alive(stranger)
    assert not local_process.send_signal(stranger, signal.SIGKILL)
    assert local_process.use_of(stranger) is None
    assert sleeper.poll() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads of a process are told by its kernel")
def test_a_process_whose_first_thread_has_ended_is_alive_until_the_last_one_has() -> None:
    """A killed node was taken for gone while its ports were not free yet."""
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print(flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            deadline = time.monotonic() + 20
            while (stat := local_process.stat_of(process.pid)) is not None and stat[0] != "Z":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            mark = local_process.mark_of(process.pid)
            assert mark is not None
            assert local_process.send_signal(mark, signal.SIGKILL)
            while local_process.alive(mark):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        deadline = time.monotonic() + 20
        while local_process.mark_of(process.pid) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.wait()


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:01", 1), ("01:02:03", 3723), ("2-00:00:01", 172_801), ("0:01.50", 1.5)]
)
def test_the_clock_of_ps_is_read(text: str, seconds: float) -> None:
    assert local_process._clock_s(text) == seconds
