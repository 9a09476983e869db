"""Indexes full segments of topics with ``filter.header``, one after the other, slice by slice through ``run_blocking``.

A segment that cannot be read is left out until the next start: its readers get everything.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tidelog.proto.records.corrupt_batch import CorruptBatch
from tidelog.replication.flushing import RunBlocking
from tidelog.storage.disk.log_errors import LogDirFailed
from tidelog.storage.log.filtered_log import FilterIndexing as Work
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_manager import LogManager

LOOK_S: Final = 1.0
"""Pause between searches for segments to index."""
LOGS_A_TURN: Final = 500
"""How many logs are looked at in one turn of the event loop."""

logger = logging.getLogger(__name__)


class FilterIndexing:
    """The task."""

    def __init__(self, logs: LogManager, run_blocking: RunBlocking) -> None:
        self._logs = logs
        self._run_blocking = run_blocking
        self._given_up: set[Log] = set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.index_all()
            await asyncio.sleep(LOOK_S)

    async def index_all(self) -> None:
        """Index every full segment that has no index yet."""
        self._given_up = {log for log in self._given_up if not log.closed}
        for number, log in enumerate(self._logs.logs()):
            if number % LOGS_A_TURN == LOGS_A_TURN - 1:
                await asyncio.sleep(0)
            if log.config.filter_header and log not in self._given_up:
                await self._index(log)

    async def _index(self, log: Log) -> None:
        work: Work | None = None
        try:
            while not log.closed and (work := log.begin_filter_index()) is not None:
                while work.content is None:
                    await self._run_blocking(work.step)
                if not log.finish_filter_index(work):
                    return
        except LogDirFailed:
            return
        except FileNotFoundError:
            return  # the segment was deleted, or compacted, meanwhile
        except (CorruptBatch, OSError) as error:
            logger.warning("%s: no index for filters: %s", log.name, error)
            self._given_up.add(log)
            if isinstance(error, CorruptBatch) and work is not None and not log.closed:
                log.suspect(work.segment.base_offset)
        finally:
            if work is not None:
                work.close()
