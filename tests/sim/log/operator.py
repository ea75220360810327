"""Changes of the members in a run, requested by an operator."""

from collections.abc import Callable, Mapping
from typing import Any

from kelek.protocols.zmqraft.wire.client_codec import encode_client_request
from kelek.protocols.zmqraft.wire.config_codec import (
    CONFIG_UPDATE_ANSWER,
    ConfigStatus,
    ConfigUpdate,
)
from kelek.protocols.zmqraft.wire.values import encode_members
from kelek.tests.sim.log.node import CLUSTER, UNIX_S, SimNode
from kelek.tests.sim.network import Connection, Frames, Network
from kelek.tests.sim.simulation import US_PER_MS, Process

REPEAT_US = 60 * US_PER_MS


class Operator(Process):
    """Requests other members: one change at a time, repeated at every possible leader."""

    def __init__(
        self, network: Network, nodes: Mapping[str, SimNode], leader: Callable[[], str | None]
    ) -> None:
        super().__init__(network.simulation, "operator")
        self.network = network
        self.nodes = nodes
        self.wish: ConfigUpdate | None = None
        self.done: dict[bytes, int] = {}  # Changes that were acknowledged, with their indexes.
        self._leader = leader
        self._ids = 0
        self._connections: dict[str, Connection] = {}

    def request(self, names: list[str]) -> None:
        """Requests these members. An earlier request may still succeed."""
        self._ids += 1
        seconds = UNIX_S + self.simulation.now_us // 1_000_000
        reqid = seconds.to_bytes(4, "big") + b"op" + self._ids.to_bytes(6, "big")
        members = tuple((name, self.nodes[name].url) for name in names)
        self.wish = ConfigUpdate(reqid, encode_members(members))
        self.wake_after(0)

    def on_wake(self) -> None:
        inbox, self.inbox = self.inbox, []
        for (frames,) in inbox:
            self._on_answer(frames)
        if self.wish is not None:
            name = self._leader() or self.simulation.random.choice(list(self.nodes))
            connection = self._connection(name)
            if connection is not None:
                connection.send(encode_client_request(self.wish, CLUSTER.encode()))
            self.wake_after(REPEAT_US)

    def _connection(self, name: str) -> Connection | None:
        found = self._connections.get(name)
        if (found is None or not found.open) and self.nodes[name].client_door.is_open():
            found = self.network.connect(self.name, self.nodes[name].client_door, self)
            self._connections[name] = found
        return found if found is not None and found.open else None

    def _on_answer(self, frames: Frames) -> None:
        reqid, answer = frames[0], CONFIG_UPDATE_ANSWER.decode(frames)
        if self.wish is None or reqid != self.wish.reqid:
            return
        if answer.status is ConfigStatus.ACCEPTED and answer.log_index is not None:
            self.done[reqid] = answer.log_index
            self.simulation.trace_event("the members were changed at", answer.log_index)
        elif answer.status not in (ConfigStatus.ERROR, ConfigStatus.BUSY):
            return
        self.simulation.counters[f"change {answer.name or answer.status.name}"] += 1
        self.wish = None

    # The end of a connection.

    def on_answer(self, connection: Connection, frames: Frames) -> None:
        self.post(frames)

    def on_closed(self, connection: Connection) -> None:
        self._connections = {
            name: other for name, other in self._connections.items() if other is not connection
        }


def choose(random: Any, names: list[str]) -> list[str]:
    """Chooses three or more: two members survive no fault."""
    return sorted(random.sample(names, random.randint(3, len(names))))
