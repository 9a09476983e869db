"""How an error in one of Spark's Python processes reaches the user of the query.

Spark puts the whole traceback in front of the message, through its own files and ours, so the user's exception has the
cause somewhere at its end. For errors with a self-explanatory message the traceback is left out, so that the first line
has the message::

    [PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: …: minPartitions must be positive

Unexpected errors keep their traceback. If Spark itself has closed the pipe, because a query was stopped or a task
cancelled, nobody reads an error, and :func:`leave` ends the process before Spark's own code prints a message about a
broken pipe.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import TaskContext

from tidelog.client.errors import BrokerNotAvailableError, RequestTimedOutError, SinkJobFencedError, TidelogError
from tidelog.spark_connector.losses import DataLoss
from tidelog.spark_connector.offsets import BadOffsets
from tidelog.spark_connector.options import OptionError
from tidelog.spark_connector.sink_columns import RowError
from tidelog.spark_connector.worker_process import is_sparks

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Read by ``pyspark.util.handle_worker_exception``, after which the process ends."""

log = logging.getLogger(__name__)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Wrap a method that Spark calls. It changes only Spark's own processes, never the driver's."""
    try:
        yield
    except (OptionError, RowError, BadOffsets, DataLoss, TidelogError) as error:
        if is_sparks():
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
    """Return advice for broker errors that say only what happened."""
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
    """End the process silently if it is one of Spark's own: the JVM has hung up."""
    if is_sparks():
        os._exit(0)
