"""A reader of a run: asks every node for the read index, all the time, whoever leads.

What it is told must not be older than anything that was committed anywhere when it asked.
"""

from kelek.native.reads import WAIT_APPLIED, WAIT_CONFIRMED
from kelek.protocols.zmqraft.read_codec import decode_read_answer, encode_read_index
from kelek.tests.sim.sim_check import Checker
from kelek.tests.sim.sim_client import ClientEnd, Home
from kelek.tests.sim.sim_net import Frames, Network
from kelek.tests.sim.sim_node import CLUSTER, Node
from kelek.tests.sim.sim_world import Process

PAUSE_US_MAX = 12_000
ASKED_MAX = 20_000  # Remembered: those that a dead leader took are never answered.


class ReaderProcess(Process):
    """Connections of its own to all nodes, without the client machine: it follows nobody."""

    def __init__(self, network: Network, checker: Checker, nodes: dict[str, Node]) -> None:
        super().__init__(network.world, "reader")
        self.checker = checker
        self.stopped = False
        self.home = Home(network, {node.url: node for node in nodes.values()}, self)
        self._ends = {url: ClientEnd(self.home, url) for url in self.home.nodes}
        self._asked: dict[bytes, int] = {}  # What was committed when it asked.
        self._count = 0
        self._next_us = 0
        self.wake_after(0)

    def on_wake(self) -> None:
        inbox, self.inbox = self.inbox, []
        for kind, url, frames in inbox:
            if kind == "frames":
                self._on_answer(url, frames)
        if not self.stopped:
            if self.world.now_us >= self._next_us:
                self._next_us = self.world.now_us + self.world.between(200, PAUSE_US_MAX)
                self._ask()
            self.wake_after(self._next_us - self.world.now_us)

    def _ask(self) -> None:
        self._count += 1
        id_ = self._count.to_bytes(8)
        wait = self.world.random.choice([WAIT_APPLIED, WAIT_CONFIRMED])
        self._asked[id_] = self.checker.committed.last_index
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        for end in self._ends.values():
            end.send(encode_read_index(id_, CLUSTER.encode(), wait))

    def _on_answer(self, url: str, frames: Frames) -> None:
        id_, answer = decode_read_answer(frames)
        if isinstance(answer, int) and answer and id_ in self._asked:
            self.world.counters["reads"] += 1
            self.checker.on_read(url, self._asked[id_], answer)
