"""A node as a process: event loop, signals, exit code.

:func:`run` imports the node, so that a typo on the command line is reported immediately.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tidelog.broker.node.exposure import check_exposure
from tidelog.broker.node.supervisor import out_of_memory
from tidelog.model.settings.broker_config import NodeConfig
from tidelog.model.settings.node.replication_settings import TCP

if TYPE_CHECKING:
    from tidelog.broker.node.node import Node, NodeNetwork
    from tidelog.proto.logs.metadata_records import MetadataRecord
    from tidelog.proto.transport.grpc_wire import GrpcLimits

log = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
EXIT_FATAL: Final = 1
GC_THRESHOLDS: Final = (10_000, 5, 1_000)
"""With Python's default of 700 young objects, the collector would run every few frames. The first two bound a pause:
while thousands of replicas are made, all new objects survive, and a collection of the middle generation looks at up to
60,000 of them. All objects are looked at only after 50 million more than were freed."""
FATAL_EXIT_S: Final = 2.0
"""How long a failed node may take to leave its loop before the process exits."""


def run(
    config: NodeConfig,
    *,
    cluster_id: str | None = None,
    formats: bool = False,
    on_ready: Callable[[Node], None] | None = None,
    carrier: Callable[[NodeNetwork], NodeNetwork] | None = None,
    first_records: Sequence[MetadataRecord] = (),
) -> int:
    """Run a node until SIGTERM or SIGINT (controlled shutdown; a second signal ends it immediately).

    Unformatted directories are formatted for ``cluster_id``; ``None`` makes a new id if this node is the only
    controller, and is an error otherwise. Formatted ones must agree. ``formats``: a controller whose metadata log was
    lost gets a new one, and asks the others to admit it.
    ``on_ready`` is called on the event loop once the node is ready. ``carrier`` gets the node's network and returns
    what the node uses instead: a laboratory redirects its connections this way.

    Returns 0 after a signal, 1 after a failure of the node itself. Raises ``ConfigError``, ``OSError`` or
    :class:`~tidelog.broker.node.node.NodeRefused` with a one-line text for problems that the user can fix.
    """
    check_exposure(config)
    from tidelog.broker.kafka.server import serve_kafka
    from tidelog.broker.node.node import Node  # heavy, so only after the caller has checked the configuration
    from tidelog.model.clock import SystemClock
    from tidelog.proto.transport.grpc_transport import GrpcNetwork
    from tidelog.security.tls_store import NodeTls
    from tidelog.storage.disk.files import SystemFiles

    def build(on_fatal: Callable[[str, BaseException], None]) -> Node:
        tls = NodeTls(config)
        network = GrpcNetwork(grpc_limits(config), tls=tls.find, tcp_port=tcp_port(config))
        return Node(
            config,
            network=network if carrier is None else carrier(network),
            files=SystemFiles(),
            clock=SystemClock(),
            rng=random.Random(),
            cluster_id=cluster_id,
            formats=formats,
            on_fatal=on_fatal,
            threaded=True,
            serve_kafka=serve_kafka,
            tls=tls,
            first_records=first_records,
        )

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(build, on_ready))


async def _serve(
    build: Callable[[Callable[[str, BaseException], None]], Node], on_ready: Callable[[Node], None] | None
) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def on_fatal(what: str, error: BaseException) -> None:
        if out_of_memory(error):
            # A half-made change in memory must not reach the disk; an orderly stop would also need memory.
            _end_process()
        # Even a stuck loop must not keep a broken node alive.
        _end_process_after(FATAL_EXIT_S)
        if not stopped.done():
            stopped.set_result(EXIT_FATAL)

    def on_signal() -> None:
        if stopped.done():
            log.warning("second signal: stopping immediately")
            _end_process()
        stopped.set_result(EXIT_STOPPED)

    def on_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if (error := context.get("exception")) is not None and out_of_memory(error):
            node.fail("a callback raised", error)
        loop.default_exception_handler(context)

    node = build(on_fatal)
    loop.set_exception_handler(on_unhandled)
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
    """Return a node's limits for its peers, from its configuration."""
    from tidelog.proto.transport.grpc_wire import GrpcLimits

    return GrpcLimits(
        message_bytes_max=config.socket_request_max_bytes,
        connections_max=config.max_connections,
        connection_idle_ms=config.connections_max_idle_ms,
        under_way_max=config.max_requests_under_way,
        unanswered_requests_max=config.queued_max_requests,
    )


def tcp_port(config: NodeConfig) -> int | None:
    """Return where followers may connect their streams over TCP; None: nowhere."""
    return config.replication_transport_port if config.replication_transport == TCP else None


def _settle_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _end_process() -> NoReturn:
    logging.shutdown()
    os._exit(EXIT_FATAL)


def _end_process_after(seconds: float) -> None:
    import threading

    timer = threading.Timer(seconds, _end_process)
    timer.daemon = True
    timer.start()
