"""A random schedule of proposals and faults for a :class:`QuorumWorld`; same seed, same schedule."""

from __future__ import annotations

import random
from collections.abc import Callable

from tidelog.chaos.quorum_world import QuorumWorld, Violation
from tidelog.metadata_quorum.quorum_types import QuorumLimits
from tidelog.metadata_quorum.raft_engine import RaftEngine
from tidelog.model.ids import NodeId


class FaultSchedule:
    """Runs one world through ``seconds`` of virtual time full of trouble, then lets it heal and checks it."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        seconds: float = 20.0,
        engine_class: Callable[..., RaftEngine] | None = None,
    ) -> None:
        self.seed = seed
        self._rng = random.Random(f"faults-{seed}")
        self._seconds = seconds
        limits = QuorumLimits(
            batch_bytes=self._rng.choice((300, 2_000, 20_000)),
            window_bytes=self._rng.choice((1_000, 8_000, 100_000)),
            retained_entries=self._rng.choice((1, 5, 50)),
            snapshot_part_bytes=self._rng.choice((50, 300)),
        )
        self.world = QuorumWorld(seed, voters, limits=limits, engine_class=engine_class)
        self.world.state_padding = self._rng.choice((0, 500, 2_000))
        self._proposed = 0
        self._acts: list[tuple[int, Callable[[], None]]] = [
            (40, self._propose),
            (6, self._compact),
            (4, self._kill),
            (3, self._crash_in_disk_call),
            (2, self._power_loss),
            (1, self._kill_all),
            (1, self._power_loss_all),
            (6, self._restart),
        ]
        if voters > 1:
            self._acts += [(4, self._disconnect), (5, self._stall), (2, self._isolate), (5, self._heal)]

    def run(self) -> QuorumWorld:
        """Raises :class:`Violation`, its text beginning with the seed; returns the world for statistics."""
        world = self.world
        try:
            world.start()
            end = world.now + self._seconds
            while world.now < end:
                self._rng.choices([act for _, act in self._acts], [weight for weight, _ in self._acts])[0]()
                world.run(self._rng.expovariate(1 / 0.05))
            world.settle()
        except Violation as violation:
            raise Violation(f"seed {self.seed}, {len(world.ids)} voters: {violation}") from violation
        return world

    def _any(self) -> NodeId:
        return self._rng.choice(self.world.ids)

    def _pair(self) -> tuple[NodeId, NodeId]:
        a, b = self._rng.sample(self.world.ids, 2)
        return a, b

    def _propose(self) -> None:
        leaders = [voter.node_id for voter in self.world.voters.values() if voter.leading]
        if not leaders:
            return
        node = self._rng.choice(leaders)
        for _ in range(self._rng.choice((1, 1, 3, 20, 200))):
            self._proposed += 1
            padding = b"." * self._rng.choice((0, 10, 200, 3000))
            self.world.propose(node, b"%d-%d-" % (self.seed, self._proposed) + padding)
            if not self.world.voters[node].leading:
                break

    def _compact(self) -> None:
        self.world.compact(self._any())

    def _kill(self) -> None:
        self.world.kill(self.world.leader if self.world.leader and self._rng.random() < 0.6 else self._any())

    def _crash_in_disk_call(self) -> None:
        self.world.crash_in(self._any(), self._rng.choice((1, 2, 3, 5, 10, 40)))

    def _power_loss(self) -> None:
        self.world.kill(self._any(), power_loss=True)

    def _kill_all(self) -> None:
        self.world.kill(*self.world.ids)

    def _power_loss_all(self) -> None:
        self.world.kill(*self.world.ids, power_loss=True)

    def _disconnect(self) -> None:
        self.world.disconnect(*self._pair(), block=self._rng.random() < 0.5)

    def _stall(self) -> None:
        self.world.stall(*self._pair())

    def _isolate(self) -> None:
        node = self.world.leader if self.world.leader and self._rng.random() < 0.6 else self._any()
        self.world.isolate(node, silent=self._rng.random() < 0.5)

    def _restart(self) -> None:
        self.world.start(*self._rng.sample(self.world.ids, self._rng.randint(1, len(self.world.ids))))

    def _heal(self) -> None:
        self.world.heal()
