"""A reader of a run: it asks every node for the read index, entries and log info."""

from collections.abc import Callable
from typing import NamedTuple

from kelek.native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED
from kelek.protocols.host.read_queue import HELD_MS_MAX
from kelek.protocols.zmqraft.wire.client_codec import (
    ENTRIES_ANSWER,
    LOG_INFO_ANSWER,
    EntriesAnswer,
    EntriesStatus,
    Form,
    RequestEntries,
    RequestLogInfo,
    encode_client_request,
)
from kelek.protocols.zmqraft.wire.entry import block_log_entries, decode_entries
from kelek.protocols.zmqraft.wire.extensions import ENTRIES_PACKED_ANSWER, ENTRIES_PACKED_REQUEST
from kelek.protocols.zmqraft.wire.read_codec import READ_ANSWER, READ_REQUEST, RequestRead
from kelek.tests.sim.checker import Checker
from kelek.tests.sim.log.client import ClientDealer, ClientHost
from kelek.tests.sim.log.node import CLOCK_RATES, CLUSTER, SimNode
from kelek.tests.sim.network import Frames, Network
from kelek.tests.sim.simulation import US_PER_MS, Process

PAUSE_US_MAX = 12_000
REQUESTS_MAX = 20_000  # Remembered: those that a dead leader took are never answered.
BEFORE_END_MAX = 8  # So many of the last entries are asked for.
IDENT = CLUSTER.encode()


class _ReadRequest(NamedTuple):
    """A request to all nodes, with the commit index, or each node's last answer, at its time."""

    floor: int
    prev_index: int
    served: dict[str, int]
    at_us: int
    on_answer: "Callable[[str, Frames, _ReadRequest], None]"


class ReaderProcess(Process):
    """Connects to all nodes without the client machine, whichever node leads."""

    def __init__(self, network: Network, checker: Checker, nodes: dict[str, SimNode]) -> None:
        super().__init__(network.simulation, "reader")
        self.checker = checker
        self.stopped = False
        self._nodes = nodes
        listeners = {node.url: node.client_door for node in nodes.values()}
        home = ClientHost(network, listeners, self, self.name)
        self._ends = {url: ClientDealer(home, url) for url in listeners}
        self._asked: dict[bytes, _ReadRequest] = {}
        self._served: dict[str, int] = {}  # The end of what each node has served, by url.
        self._count = 0
        self._next_us = 0
        self.wake_after(0)

    def on_wake(self) -> None:
        inbox, self.inbox = self.inbox, []
        for kind, url, frames in inbox:
            asked = self._asked.get(frames[0]) if kind == "frames" else None
            if asked is not None:
                asked.on_answer(url, frames, asked)
        if not self.stopped:
            if self.simulation.now_us >= self._next_us:
                self._next_us = self.simulation.now_us + self.simulation.between(200, PAUSE_US_MAX)
                self._send_requests()
                self._read_leases()
            self.wake_after(self._next_us - self.simulation.now_us)

    def _send_requests(self) -> None:
        wait = self.simulation.random.choice([WAIT_APPLIED, WAIT_CONFIRMED])
        self._send(
            self._on_read, lambda id_, _: READ_REQUEST.encode(RequestRead(id_, wait), cluster=IDENT)
        )
        kind = self.simulation.random.randrange(4)
        if kind == 0:
            self._send(self._on_entries, self._entries_request)
        elif kind == 1:
            self._send(self._on_served, self._served_request)
        elif kind == 2:
            info = Form.NODE
            self._send(
                self._on_info,
                lambda id_, _: encode_client_request(RequestLogInfo(id_), IDENT, info),
            )

    def _read_leases(self) -> None:
        """As processes of each node do: what such a lease says is true at once."""
        for name, node in self._nodes.items():
            if index := node.leased_index:
                self.simulation.counters["reads by a shared lease"] += 1
                self.checker.on_read(f"{name}'s lease", self.checker.committed.last_index, index)

    def _send(
        self,
        on_answer: Callable[[str, Frames, _ReadRequest], None],
        request: Callable[[bytes, int], Frames],
    ) -> None:
        self._count += 1
        id_ = self._count.to_bytes(12)
        floor = self.checker.committed.last_index
        prev_index = max(0, floor - self.simulation.between(0, BEFORE_END_MAX))
        if self.simulation.chance(0.1):
            prev_index = 0  # Even one that knows nothing can answer that.
        now_us = self.simulation.now_us
        self._asked[id_] = _ReadRequest(floor, prev_index, {**self._served}, now_us, on_answer)
        if len(self._asked) > REQUESTS_MAX:
            del self._asked[next(iter(self._asked))]
        for end in self._ends.values():
            end.send(request(id_, prev_index))

    @staticmethod
    def _entries_request(id_: bytes, prev_index: int) -> Frames:
        return encode_client_request(RequestEntries(id_, prev_index), IDENT, Form.NODE)

    @staticmethod
    def _served_request(id_: bytes, prev_index: int) -> Frames:
        request = RequestEntries(id_, prev_index, packed=True, any_peer=True)
        return ENTRIES_PACKED_REQUEST.encode(request, cluster=IDENT)

    def _on_read(self, url: str, frames: Frames, asked: _ReadRequest) -> None:
        index = READ_ANSWER.decode(frames).log_index
        if index:
            self.simulation.counters["reads"] += 1
            self.checker.on_read(url, asked.floor, index)

    def _on_entries(self, url: str, frames: Frames, asked: _ReadRequest) -> None:
        """A leader's answer."""
        answer = ENTRIES_ANSWER.decode(frames)
        first_index = answer.last_index - len(answer.entries) + 1
        self.checker.on_entries(url, decode_entries(first_index, answer.entries))
        if answer.status is EntriesStatus.LAST:
            self.simulation.counters["reads of entries"] += 1
            self.checker.on_entries_end(url, asked.floor, answer.last_index)

    def _on_served(self, url: str, frames: Frames, asked: _ReadRequest) -> None:
        """The answer of any node: it may lag."""
        answer: EntriesAnswer = ENTRIES_PACKED_ANSWER.decode(frames)
        entries = [entry for batch in answer.batches for entry in block_log_entries(batch)]
        self.checker.on_entries(url, entries)
        if answer.status is EntriesStatus.LAST:
            self.simulation.counters["reads of entries anywhere"] += 1
            floor = max(asked.prev_index, asked.served.get(url, 0))
            self.checker.on_entries_end(url, floor, answer.last_index)
            self._served[url] = max(self._served.get(url, 0), answer.last_index)

    def _on_info(self, url: str, frames: Frames, asked: _ReadRequest) -> None:
        info = LOG_INFO_ANSWER.decode(frames)
        if not info.leading:
            return
        self.simulation.counters["leaders' log infos"] += 1
        self.checker.on_read(url, asked.floor, info.commit_index)
        # Later it says how far it is; the node's clock has whole milliseconds, and may be fast.
        held_us_min = (HELD_MS_MAX - 1) * US_PER_MS / CLOCK_RATES[1]
        if self.simulation.now_us - asked.at_us < held_us_min:
            self.checker.on_read(url, asked.floor, info.applied_index)
