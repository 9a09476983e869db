"""Lives of one client, one after the other: killed or made to stand still now and then, as processes are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog.aio import Consumer
from tidelog.chaos.live.client_network import ClientNetwork
from tidelog.chaos.live.history_file import HistoryFile
from tidelog.proto.grpc_transport import GrpcNetwork

UNDISTURBED_S: Final = (5.0, 25.0)
"""From one disturbance of a client to the next."""
STILL_S: Final = (0.5, 3.0, 9.0, 14.0)
"""How long it stands still: longer than a session, and than a transaction may be open, too."""
AWAY_S: Final = (0.1, 0.5, 3.0)
_DISTURBANCES: Final = ("kill", "still", "none")


class Lives:
    """``live``: one life over the network that it is given; returns when it has ended by itself or was told to stop.
    What it raises ends all of them."""

    def __init__(
        self,
        name: str,
        live: Callable[[ClientNetwork], Coroutine[Any, Any, None]],
        history: HistoryFile,
        rng: random.Random,
    ) -> None:
        self._name = name
        self._live = live
        self._history = history
        self._rng = rng
        self._calm = asyncio.Event()
        self._stopping = False

    def calm(self) -> None:
        """Disturb it no more; what it stands in it goes on from."""
        self._calm.set()

    def stop(self) -> None:
        """Begin no other life."""
        self._stopping = True
        self.calm()

    async def run(self) -> None:
        """Live until told to stop."""
        while not self._stopping:
            network = ClientNetwork(GrpcNetwork())
            life = asyncio.ensure_future(self._live(network))
            try:
                while not life.done() and not self._calm.is_set():
                    await self._disturb(life, network)
                await asyncio.wait([life])
            finally:
                if not life.done():
                    await _kill(life, network)
            if not life.cancelled():
                life.result()
            await self._rest(self._rng.choice(AWAY_S))

    async def _disturb(self, life: asyncio.Future[None], network: ClientNetwork) -> None:
        rng = self._rng
        calm = asyncio.ensure_future(self._calm.wait())
        first: list[asyncio.Future[Any]] = [life, calm]
        await asyncio.wait(first, timeout=rng.uniform(*UNDISTURBED_S), return_when=asyncio.FIRST_COMPLETED)
        calm.cancel()
        what = rng.choice(_DISTURBANCES)
        if life.done() or self._calm.is_set() or what == "none":
            return
        self._history.note(f"{self._name}: {what}")
        if what == "kill":
            await _kill(life, network)
        else:
            network.hold()
            await self._rest(rng.choice(STILL_S))
            network.resume()

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._calm.wait(), seconds)
        except TimeoutError:
            return


async def _kill(life: asyncio.Future[None], network: ClientNetwork) -> None:
    network.die()
    life.cancel()
    await asyncio.wait([life])


async def abandon(consumer: Consumer) -> None:
    """End a consumer as the death of its process does: it says good-bye to nobody."""
    consumer._core.closing = True
    await consumer._core.close()
