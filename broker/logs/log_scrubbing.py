"""Reads every segment once per ``log.scrub.interval.ms``, to find disk corruption before a reader does.

It examines one range at a time, slice by slice through ``run_blocking``, spread over the interval and never faster than
``log.scrub.io.max.bytes.per.second``. It pauses while the event loop is late. Its progress is stored with each log, so
that a restart continues there; a finished pass starts again. A segment in which a reader or follower met damage is
examined immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.broker.logs.io_pace import IoPace
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.replication.flushing import RunBlocking
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_examination import Examination
from tidelog.storage.log.log_manager import LogManager
from tidelog.storage.segments.examination import DamagedRange

LOOK_S: Final = 1.0
"""Pause between checks for suspected segments, and for work while there is none."""
STORE_S: Final = 30.0
"""How often to store the progress of the pass."""
LOGS_A_TURN: Final = 500
"""How many logs are looked at in one turn of the event loop."""
LATE_S: Final = 0.05
"""The event loop counts as busy if it is this late."""
PAUSES_MAX: Final = 20
"""How often in a row the scrub waits for a busy loop, so that a permanently busy node is scrubbed too."""


class _Stretch:
    """The range under examination. ``target``: the log's end when the pass started."""

    __slots__ = ("examination", "log", "target")

    def __init__(self, log: Log, target: int, examination: Examination) -> None:
        self.log = log
        self.target = target
        self.examination = examination


class LogScrubbing:
    """The task, and the source of its metrics. ``settings``: the configuration in force."""

    def __init__(self, settings: Callable[[], NodeConfig], logs: LogManager, run_blocking: RunBlocking) -> None:
        self._settings = settings
        self._logs = logs
        self._run_blocking = run_blocking
        self._queue: list[tuple[Log, int]] | None = None
        """The logs that the current pass has not finished, with their end offsets at its start; None between passes."""
        self._stretch: _Stretch | None = None
        self._before: Examination | None = None
        """The last range, of a log that is not finished."""
        self._rate = 1.0
        self._pace = IoPace(lambda: self._rate)
        self._stored_at = 0.0
        self._damaged: dict[Log, None] = {}
        self.bytes_read = 0
        self.passes = 0
        self.damage_found = 0
        """Damaged ranges, each counted when it was found."""

    async def run(self) -> None:
        """Work until cancelled."""
        now = asyncio.get_running_loop().time
        for log in self._logs.logs():
            if log.damage:  # found at the start
                self._damaged[log] = None
                self.damage_found += len(log.damage)
        pauses = 0
        while True:
            await self.examine_suspects()
            wait_s = self._pace.ahead_s
            if wait_s <= 0:
                works = not pauses and self._settings().log_scrub_interval_ms >= 0 and await self.go_on()
                wait_s = self._pace.ahead_s if works else LOOK_S
            due = now() + min(wait_s, LOOK_S)
            await asyncio.sleep(due - now())
            pauses = pauses + 1 if now() - due > LATE_S and pauses < PAUSES_MAX else 0

    async def examine_suspects(self) -> None:
        """Examine the segments in which somebody met damage."""
        for number, log in enumerate(self._logs.logs()):
            if number % LOGS_A_TURN == LOGS_A_TURN - 1:
                await asyncio.sleep(0)
            while not log.closed and (offset := log.take_suspect()) is not None:
                try:
                    examination = log.begin_examination(offset)
                    while examination is not None and await self._step(log, examination):
                        if examination.done:
                            if examination.next_offset > offset:
                                break
                            examination = log.begin_examination(examination.next_offset, examination)
                except LogDirFailed:
                    break

    async def go_on(self) -> bool:
        """Do the next slice of the pass. Returns False if there is nothing to do now, or the pass finished."""
        stretch = self._stretch = self._stretch or await self._begin_next()
        if stretch is None:
            return False
        log, examination = stretch.log, stretch.examination
        loop, before = asyncio.get_running_loop(), examination.bytes_read
        whole = await self._step(log, examination)
        if examination.done or not whole:
            self._stretch = None
            if whole:
                self._logs.note_scrubbed(log, examination.next_offset)
            if examination.next_offset < stretch.target and self._queue is not None:
                self._queue.append((log, stretch.target))
                self._before = examination
            if loop.time() - self._stored_at >= STORE_S:
                self._stored_at = loop.time()
                self._logs.store_scrub_offsets()
        self._pace.pay(examination.bytes_read - before)
        return True

    async def examine_all(self) -> None:
        """Read every segment now, as fast as possible, from the current position of the pass to its end."""
        while await self.go_on():
            pass

    @property
    def damaged(self) -> Mapping[Log, list[DamagedRange]]:
        """The logs in service with known damage, and that damage."""
        found = {log: [known for _, known in log.damage] for log in self._damaged if not log.closed}
        self._damaged = {log: None for log, damage in found.items() if damage}
        return {log: damage for log, damage in found.items() if damage}

    async def _begin_next(self) -> _Stretch | None:
        """Return the next range; None at the end of a pass, after recording it."""
        if self._queue is None:
            # Later appends belong to the next pass: otherwise a growing log would keep this one from finishing.
            logs = sorted(self._logs.logs(), key=lambda log: log.name, reverse=True)
            self._queue = [(log, log.log_end_offset) for log in logs]
        while self._queue:
            if len(self._queue) % LOGS_A_TURN == 0:
                await asyncio.sleep(0)
            log, target = self._queue.pop()
            if log.closed or (offset := max(self._logs.scrub_offset(log), log.log_start_offset)) >= target:
                continue
            try:
                examination = log.begin_examination(offset, self._before)
            except LogDirFailed:
                continue
            if examination is not None:
                self._rate = self._rate_now()
                return _Stretch(log, target, examination)
        self._queue = None
        self.passes += 1
        self._logs.begin_scrub_pass()
        return None

    def _rate_now(self) -> float:
        """Return the bytes per second needed to read all logs once per interval."""
        config = self._settings()
        rate = config.log_scrub_io_max_bytes_per_second
        if config.log_scrub_interval_ms <= 0:
            return rate
        size = sum(log.size_bytes for log in self._logs.logs())
        return min(rate, max(1.0, size * 1000 / config.log_scrub_interval_ms))

    async def _step(self, log: Log, examination: Examination) -> bool:
        """Do one slice; at the end, record what was found. Returns False if the log changed, or its disk failed."""
        before = examination.bytes_read
        try:
            await self._run_blocking(examination.step)
        except OSError as error:
            examination.close()
            if log.is_examined(examination):
                self._logs.fail(log, error)
            return False
        self.bytes_read += examination.bytes_read - before
        if not log.is_examined(examination):
            examination.close()
            return False
        if examination.done:
            new = log.finish_examination(examination) or ()
            self.damage_found += len(new)
            if new:
                self._damaged[log] = None
        return True
