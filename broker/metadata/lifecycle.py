"""Sends the requests that :mod:`tidelog.broker.metadata.lifecycle_state` decides on: registration, heartbeats,
controlled shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from tidelog.broker.metadata.controller_channel import ControllerChannel, ControllerUnavailable
from tidelog.broker.metadata.lifecycle_state import BrokerLifecycle, BrokerStanding
from tidelog.model.clock import Clock
from tidelog.model.ids import NO_NODE, BrokerEpoch, DirectoryId, Offset
from tidelog.proto.calls.controller_api import BrokerHeartbeatResponse, RegisterBrokerRequest, RegisterBrokerResponse

log = logging.getLogger(__name__)

EARLY_SHARE = 0.4
"""A heartbeat may be sent early by this share of its interval, if the node is sending something else anyway."""
SHUTDOWN_TIMEOUT_S = 5.0
"""Timeout of one shutdown request: it moves every leadership of this broker."""
SHUTDOWN_LOOK_MS = 200
"""How often a stopping broker checks whether the controller that it asked still leads."""
REGISTRATION_TIMEOUT_S = 10.0
"""Timeout of one registration: it may change every partition with a replica on this broker."""


class RegistrationRefused(Exception):
    """The controller refuses this node; the text says why and what to do."""


class LifecycleRunner:
    """Keeps a broker registered and sends its heartbeats.

    ``on_caught_up`` is called once, when the controller first says that the broker's metadata contains its
    registration; call :meth:`ready` after acting on it. ``on_standing`` is called on each change of standing. Both run
    on the event loop.
    ``answer_timeout_ms`` bounds one heartbeat, over all voters. It is well below the session timeout, so that a lost or
    slow one is repeated before the broker is fenced.
    """

    def __init__(
        self,
        lifecycle: BrokerLifecycle,
        channel: ControllerChannel,
        clock: Clock,
        log_dirs: Callable[[], Sequence[DirectoryId]],
        metadata_offset: Callable[[], Offset],
        on_caught_up: Callable[[], None],
        on_standing: Callable[[BrokerStanding], None],
        answer_timeout_ms: int,
    ) -> None:
        self._lifecycle = lifecycle
        self._channel = channel
        self._clock = clock
        self._log_dirs = log_dirs
        self._metadata_offset = metadata_offset
        self._on_caught_up = on_caught_up
        self._on_standing = on_standing
        self._answer_timeout_s = answer_timeout_ms / 1000
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._answered_ms = 0
        self._caught_up = False
        self._pausing = False
        self._asks_to_go = False
        self.started = False
        """Whether a refusal now stops the node, instead of being reported to the starter."""

    @property
    def standing(self) -> BrokerStanding:
        return self._lifecycle.standing

    @property
    def epoch(self) -> BrokerEpoch:
        """The current broker epoch, -1 while not registered."""
        return self._lifecycle.epoch

    def dir_failed(self, directory_ids: Sequence[DirectoryId]) -> None:
        """Report failed log directories with the next heartbeat, which is sent immediately."""
        known = self._lifecycle.offline_dirs
        self._lifecycle.offline_dirs = known + tuple(d for d in directory_ids if d not in known)
        self.hurry()

    def ready(self) -> None:
        """Ask to be unfenced now, because the broker has acted on its metadata."""
        self._lifecycle.ready = True
        self.hurry()

    def hurry(self) -> None:
        """Send the next request now, e.g. because the metadata has caught up."""
        self._lifecycle.hurry()
        self._wake.set()

    def sending(self) -> None:
        """Send the next heartbeat too if it is nearly due, because the node is awake and sending to other controllers.

        The cost of an idle node is its wake-ups, here and where the heartbeat arrives.
        """
        if self._pausing and self.standing is BrokerStanding.RUNNING:
            left_ms = self._lifecycle.due_ms() - self._clock.monotonic_ms()
            if left_ms <= self._lifecycle.interval_ms * EARLY_SHARE:
                self._wake.set()

    async def run(self) -> None:
        """Run until the node ends; raises :class:`RegistrationRefused` if the node had already started."""
        lifecycle = self._lifecycle
        while True:
            request = lifecycle.request(self._log_dirs(), self._metadata_offset())
            if request is None:
                break
            before = lifecycle.standing
            answer: RegisterBrokerResponse | BrokerHeartbeatResponse
            try:
                if isinstance(request, RegisterBrokerRequest):
                    answer = await self._channel.call(request, timeout_s=REGISTRATION_TIMEOUT_S, patient=True)
                elif request.want_shut_down:
                    self._asks_to_go = True
                    answer = await self._channel.call(request, timeout_s=SHUTDOWN_TIMEOUT_S, patient=True)
                else:
                    answer = await self._channel.call(request, timeout_s=self._answer_timeout_s)
            except ControllerUnavailable as error:
                lifecycle.unanswered(self._clock.monotonic_ms())
                log.debug("%s", error)
            else:
                self._take(answer)
            finally:
                self._asks_to_go = False
            self._tell(before)
            await self._pause()
        if lifecycle.standing is BrokerStanding.FAILED and self.started:
            raise RegistrationRefused(lifecycle.failure)
        # Stopped, or refused while starting, which the starter sees. The end of this task would count as a failure.
        await asyncio.Event().wait()

    async def shut_down(self, timeout_s: float, unreachable_s: float) -> bool:
        """Ask the controller to move the leaders away. Returns whether it agreed in time.

        Gives up earlier once no controller has answered for ``unreachable_s``: if all nodes stop at the same time, the
        last ones have no controller. A leading controller that was asked gets ``SHUTDOWN_TIMEOUT_S``: with thousands of
        partitions, it may take some seconds.
        """
        before = self._lifecycle.standing
        self._lifecycle.shut_down()
        self._wake.set()
        self._tell(before)
        self._answered_ms = self._clock.monotonic_ms()
        deadline_ms = self._answered_ms + int(timeout_s * 1000)
        while True:
            asked = self._asks_to_go and self._channel.leader != NO_NODE
            patience_s = SHUTDOWN_TIMEOUT_S if asked else unreachable_s
            give_up_ms = min(deadline_ms, self._answered_ms + int(patience_s * 1000))
            left_ms = min(give_up_ms - self._clock.monotonic_ms(), SHUTDOWN_LOOK_MS)
            if left_ms <= 0:
                return self._lifecycle.standing is BrokerStanding.STOPPED
            if await self.wait_for(BrokerStanding.STOPPED, timeout_s=left_ms / 1000):
                return True

    async def wait_for(self, *wanted: BrokerStanding, timeout_s: float | None) -> bool:
        """Wait until the standing is one of ``wanted``. Returns false on timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._lifecycle.standing not in wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _take(self, answer: RegisterBrokerResponse | BrokerHeartbeatResponse) -> None:
        now_ms = self._answered_ms = self._clock.monotonic_ms()
        if isinstance(answer, RegisterBrokerResponse):
            self._lifecycle.registered(answer, now_ms)
        else:
            self._lifecycle.beaten(answer, now_ms)
            if answer.is_caught_up and not self._caught_up:
                self._caught_up = True
                self._on_caught_up()

    def _tell(self, before: BrokerStanding) -> None:
        now = self._lifecycle.standing
        if now is not before:
            log.info("registration state: %s, epoch %d", now.value, self._lifecycle.epoch)
            self._changed.set()
            self._on_standing(now)

    async def _pause(self) -> None:
        left_ms = self._lifecycle.due_ms() - self._clock.monotonic_ms()
        if left_ms > 0 and self._lifecycle.standing not in (BrokerStanding.STOPPED, BrokerStanding.FAILED):
            self._pausing = True
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            finally:
                self._pausing = False
        self._wake.clear()
