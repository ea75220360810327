"""The log service of ZRE: it stores nodes' presence reports in the log or in a table."""

import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import zmq

from ...native.net.messages import Arena
from ...net.sockets import SocketOptions
from ...net.zre import bind_free_port
from ...protocols.reqids import MACHINE_BYTES, make_reqids
from ...protocols.zerodb.wire.ops import Put, pack
from ...protocols.zmqraft.client.client import LogClientMachine, LogClientSetup
from ...protocols.zmqraft.client.window import PendingUpdates
from ...protocols.zre import presence, services
from ...protocols.zre.codec import endpoint_of
from ...protocols.zre.log import decode_report, uuid_hash
from ...protocols.zre.values import Malformed
from ...version import __version__
from ..raft.leader_link import LeaderLink
from ..runtime.actor import Actor
from .keys import zre_keys
from .node import no_free_port
from .pipes import LOG, NODE, interface_of

REPORTS_HWM = 10_000  # Of one node, that wait to be received.
WAITING_MAX = 100_000  # Reports for the log; the newest beyond that are dropped.
WAITING_BYTES_MAX = 32 << 20
BATCH_MAX = 500  # Reports of one update.
ANNOUNCE_MS = 2000  # Repeated, because zre_node may have restarted.
# A growing number distinguishes reports of the same millisecond.
KEY = struct.Struct(">QHHBI")  # Time in ms, hashes of node and peer, event, number.


class ReportKey(NamedTuple):
    """The parts of a report's key in a table."""

    time_ms: int
    node: int
    peer: int
    event: int


class ZreLog(Actor):
    """Receives reports (docs/protocols/zre.md, "ZRE/LOG") and stores them.

    reports    SUB     [report or presence]  from nodes' PUBs, at a port in 61000-65535
    services   PUSH    zre_pipes             to zre_node: this service's endpoint
    links      DEALER  as in LeaderLink      to the cluster's peers
    """

    role = LOG

    def on_start(self) -> None:
        is_table = self.settings.node_zre.log_service == "table"
        # None: reports go into the log.
        self._table = self.settings.zre.log_table if is_table else None
        interface = interface_of(self.setup)
        keys = zre_keys(self, interface)
        options = SocketOptions(
            hwm=REPORTS_HWM,
            message_bytes_max=presence.FRAME_BYTES_MAX,
            message_frames_max=1,
            curve=keys.server if keys else None,
            topics=(b"",),  # Receive everything, so that malformed messages are counted.
        )
        # RFC 20: a SUB, bound in C000 to FFFF.
        reports = self.socket(zmq.SUB, options)
        try:
            port = bind_free_port(reports, interface.address)
        except zmq.ZMQError as error:
            raise no_free_port(self.setup.places["zre.interface"]) from error
        self.listen(reports, self._on_reports)
        self._endpoint = endpoint_of(interface.address, port)
        if keys is not None:
            keys.check(zmq.SUB, self._endpoint)
        self._services = self.connect_pipe(zmq.PUSH, NODE, "services", hwm=4)
        self._announce_ms = self.now_ms
        self._waiting: deque[tuple[ReportKey, bytes]] = deque()
        self._waiting_bytes = 0
        self.in_flight: deque[PendingUpdates] = deque()
        self._machine = os.urandom(MACHINE_BYTES)
        self._numbers = count(int.from_bytes(os.urandom(3)))
        urls = tuple(member.url for member in self.settings.members.values())
        setup = LogClientSetup(
            self.setup.cluster.encode(), urls, __version__, for_tables=self._table is not None
        )
        self._client = LogClientMachine(setup, self._new_reqid, self.now_ms)
        self._link = LeaderLink(self, self._client, keys=self.client_keys)
        self.log("reports", endpoint=self._endpoint)
        self.ready()

    def _new_reqid(self) -> bytes:
        now_s = int(time.time())
        return make_reqids(now_s, self._machine, os.getpid(), [next(self._numbers)])[0]

    def _on_reports(self, arena: Arena) -> None:
        for frames in arena.messages():
            try:
                place = report_key(frames)
            except Malformed as error:  # RFC 20: discarded silently.
                self.counters[f"report_{error.reason.value}"] += 1
                continue
            self.counters["reports"] += 1
            size = self._waiting_bytes + len(frames[0])
            if len(self._waiting) < WAITING_MAX and size <= WAITING_BYTES_MAX:
                self._waiting.append((place, frames[0]))
                self._waiting_bytes = size
            else:
                self.counters["reports_dropped"] += 1

    # ---- the loop ----

    def on_wake(self, now_ms: int) -> None:
        if now_ms >= self._announce_ms:
            self._announce_ms = now_ms + ANNOUNCE_MS
            for header in (services.ZRE_LOG, services.PRESENCE):
                self.send(self._services, [header.encode(), self._endpoint.encode()])
        self._link.act(now_ms, self._propose())
        while self.in_flight and (self.in_flight[0].runs or self.in_flight[0].refusal):
            done = self.in_flight.popleft()
            self.counters["updates_refused" if done.refusal else "updates"] += 1

    def _propose(self) -> bool:
        """Hands reports to the log while it has room; returns whether there were any."""
        before = len(self.in_flight)
        while self._waiting and self._client.window.has_room:
            size = min(len(self._waiting), BATCH_MAX)
            batch = [self._waiting.popleft() for _ in range(size)]
            updates = [data for _, data in batch]
            self._waiting_bytes -= sum(map(len, updates))
            if self._table is not None:
                keys = [self._key(place) for place, _ in batch]
                updates = [pack([Put(self._table, keys, updates)])]
            pending = PendingUpdates([self._new_reqid() for _ in updates], updates)
            self._client.window.add(pending)
            self.in_flight.append(pending)
        return len(self.in_flight) > before

    def _key(self, place: ReportKey) -> bytes:
        return KEY.pack(*place, next(self._numbers) & 0xFFFFFFFF)

    def deadline_ms(self) -> int | None:
        due_ms = self._link.deadline_ms
        return self._announce_ms if due_ms is None else min(self._announce_ms, due_ms)

    def drained(self) -> bool:
        return not self._waiting and not self.in_flight

    def on_stop(self) -> None:
        self._link.close()

    def status(self) -> dict[str, object]:
        waiting = len(self._waiting) + sum(len(one.updates) for one in self.in_flight)
        return {"endpoint": self._endpoint, "waiting": waiting}


def report_key(frames: Sequence[bytes]) -> ReportKey:
    """The key of a report or presence report. Raises Malformed."""
    if presence.is_presence(frames):
        found = presence.decode_presence(frames)
        return ReportKey(found.time_ms, uuid_hash(found.node), uuid_hash(found.peer), found.event)
    report = decode_report(frames)
    return ReportKey(report.time_ms, report.node, report.peer, report.event)
