"""How an error in one of Spark's Python processes reaches the user of the query.

Spark puts the whole traceback in front of it, through its own files and ours, and the exception that the user gets has
what happened somewhere at its end. For an error that says by itself what is wrong the traceback is left out, so that
the first line has it::

    [PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: …: minPartitions must be positive

What nobody foresaw keeps its traceback. If Spark has ended the conversation itself, because a query was stopped or a
task cancelled, there is nobody to tell, and :func:`leave` ends the process before Spark's own code prints what it makes
of a pipe that is gone.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import TaskContext

from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, SinkJobFencedError, TidelogError
from tidelog.spark_connector.losses import DataLoss
from tidelog.spark_connector.offsets import BadOffsets
from tidelog.spark_connector.options import OptionError
from tidelog.spark_connector.sink_columns import RowError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Looked at by ``pyspark.util.handle_worker_exception``, after which the process ends."""

log = logging.getLogger(__name__)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Around what Spark calls. It makes a difference in processes of Spark's own only: never in the driver's."""
    try:
        yield
    except (OptionError, RowError, BadOffsets, DataLoss, TidelogError) as error:
        if _is_sparks(sys.modules.get("__main__")):
            log.debug("%s", error, exc_info=True)
            os.environ[_HIDE] = "1"
        advice = _advice(error)
        if advice is None:
            raise
        raise type(error)(f"{error}. {advice}") from error
    except EOFError:
        leave()
        raise


def _advice(error: Exception) -> str | None:
    """Advice for errors of brokers that name only what happened."""
    if isinstance(error, SinkJobFencedError):
        return (
            "Probably two runs write to this sink at once: two drivers share a checkpoint, or two jobs an appId. "
            "Stop one of them, and start the other again"
        )
    if TaskContext.get() is not None and isinstance(error, (BrokerNotAvailableError, RequestTimedOutError)):
        return (
            f"A task on {socket.gethostname()} asked: every executor has to reach every broker at the address that it "
            "advertises (advertised.listeners)"
        )
    return None


def leave() -> None:
    """End the process if it is one of Spark's own, without a word: the JVM has hung up."""
    if _is_sparks(sys.modules.get("__main__")):
        os._exit(0)


def _is_sparks(main: object) -> bool:
    """Whether the process was started as a module of pyspark: a worker, or one that plans or commits."""
    return str(getattr(getattr(main, "__spec__", None), "name", "")).startswith("pyspark.")
