"""A node as a process: event loop, signals, exit code.

Imports of the node are inside :func:`run`, so that a command line with a typo is answered at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.model.broker_config import NodeConfig

if TYPE_CHECKING:
    from tidelog.broker.node import Node, NodeNetwork
    from tidelog.proto.grpc_transport import GrpcLimits

log = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
EXIT_FATAL: Final = 1
GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Python's 700 young objects make the collector run with every few frames."""
FATAL_EXIT_S: Final = 2.0
"""How long a node that failed may take to leave its loop before the process ends itself."""


def run(
    config: NodeConfig,
    *,
    cluster_id: str | None = None,
    on_ready: Callable[[Node], None] | None = None,
    carrier: Callable[[NodeNetwork], NodeNetwork] | None = None,
) -> int:
    """Run a node until SIGTERM or SIGINT (a controlled shutdown; a second one ends it at once).

    Directories that are not formatted are formatted for ``cluster_id``; ``None`` makes a new id where
    this node is the only controller, and is an error otherwise. Formatted ones must agree.
    ``on_ready`` is called on the event loop once the node serves. ``carrier`` is handed the node's network and
    returns what the node uses instead: a laboratory leads its connections elsewhere by it.

    Returns 0 after a signal, 1 after a failure of the node itself. Raises ``ConfigError``, ``OSError``
    or :class:`~tidelog.broker.node.NodeRefused` with a text of one line for what the user can mend.
    """
    from tidelog.broker.kafka.server import serve_kafka
    from tidelog.broker.node import Node  # heavy: after the caller has judged the configuration
    from tidelog.model.clock import SystemClock
    from tidelog.proto.grpc_transport import GrpcNetwork
    from tidelog.storage.files import SystemFiles

    def build(on_fatal: Callable[[str, BaseException], None]) -> Node:
        network = GrpcNetwork(grpc_limits(config))
        return Node(
            config,
            network=network if carrier is None else carrier(network),
            files=SystemFiles(),
            clock=SystemClock(),
            rng=random.Random(),
            cluster_id=cluster_id,
            on_fatal=on_fatal,
            threaded=True,
            serve_kafka=serve_kafka,
        )

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(build, on_ready))


async def _serve(
    build: Callable[[Callable[[str, BaseException], None]], Node], on_ready: Callable[[Node], None] | None
) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def on_fatal(what: str, error: BaseException) -> None:
        # Even a loop that no longer turns must not keep a broken node alive.
        _end_process_after(FATAL_EXIT_S)
        if not stopped.done():
            stopped.set_result(EXIT_FATAL)

    def on_signal() -> None:
        if stopped.done():
            log.warning("second signal: ending at once")
            logging.shutdown()
            os._exit(EXIT_FATAL)
        stopped.set_result(EXIT_STOPPED)

    node = build(on_fatal)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    starting = loop.create_task(node.start())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        await node.kill()
        return stopped.result()
    if (error := starting.exception()) is not None:
        await node.kill()
        raise error
    _settle_collector()
    if on_ready is not None:
        on_ready(node)
    else:
        for scheme, address in (("tidelog", node.client_address), ("kafka", node.kafka_address)):
            if address is not None:
                print(f"{scheme}://{address}", flush=True)  # noqa: T201  what a launcher waits for
    code = await stopped
    if code == EXIT_STOPPED:
        log.info("stopping")
        await node.stop()
    else:
        await node.kill()
    return code


def grpc_limits(config: NodeConfig) -> GrpcLimits:
    """What a node takes from its peers, as its configuration says."""
    from tidelog.proto.grpc_transport import GrpcLimits

    return GrpcLimits(
        message_bytes_max=config.socket_request_max_bytes,
        connections_max=config.max_connections,
        connection_idle_ms=config.connections_max_idle_ms,
        under_way_max=config.max_requests_under_way,
        unanswered_requests_max=config.queued_max_requests,
    )


def _settle_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]


def _end_process_after(seconds: float) -> None:
    import threading

    def end() -> None:
        logging.shutdown()
        os._exit(EXIT_FATAL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
