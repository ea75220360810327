"""The loop of a leader in C, over real sockets: reads by a lease, packs of tables, notices."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from kelek.native.latency import IndexLatency
from kelek.native.log import segments
from kelek.native.log.lease import SharedLease
from kelek.native.log.reads import Reads
from kelek.native.log.steady import (
    REASONS,
    LeadingState,
    LeadingTurn,
    LeadingWait,
    Noticed,
    PeerLimits,
    PeerState,
    SegmentState,
    SteadyLeader,
    SteadyNotices,
    SteadySocket,
)
from kelek.native.log.updates import MARKED_ACCEPTED, MARKED_ALONE, Reqids, Updates, View
from kelek.native.net.messages import Frames
from kelek.native.net.poller import Poller
from kelek.native.net.sockets import Drain
from kelek.net.clock import monotonic_ms, suspended_ms, wall_ms
from kelek.protocols.raft.messages import KIND_STATE, KIND_TABLES, AppendResponse
from kelek.protocols.zmqraft.wire import extensions as own

CLUSTER = b"demo"
TERM, LAST = 2, 6
WAIT_MS = 300
NEVER_MS = 1 << 60
SEGMENT_BYTES = 1 << 20
MESSAGE_BYTES_MAX = 1 << 16
NOTICE = b"topic" + bytes(8)


class Turn:
    """A leader with one follower: both are voters, and all entries are committed."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.client, clients = self._pair(zmq.DEALER, zmq.ROUTER)
        self.table_server, peers = self._pair(zmq.DEALER, zmq.ROUTER)
        self.follower, link = self._pair(zmq.ROUTER, zmq.DEALER)
        self.applier, commits = self._pair(zmq.SUB, zmq.XPUB)
        self.applier.subscribe(b"")
        assert commits.recv()  # The subscription has arrived.
        self.sockets = [
            SteadySocket(it, self._drain(it), Frames()) for it in (clients, peers, link)
        ]
        self.commits, self.reads = commits, Reads(CLUSTER)
        reqids = Reqids()
        intakes = [(Updates(CLUSTER, reqids), 1 << 10) for _ in range(2)]
        self.leader = SteadyLeader(CLUSTER, intakes, self.reads)
        self.fd = os.open(folder / "segment", os.O_RDWR | os.O_CREAT, 0o600)
        segments.segment_zero(self.fd, 0, SEGMENT_BYTES)
        self.syncer = segments.Syncer()
        self.segment = segments.Segment(self.fd, SEGMENT_BYTES)
        poller = Poller()
        for each in self.sockets:
            poller.register(each.socket, zmq.POLLIN, drained=True)
        poller.register(self.syncer.fileno(), zmq.POLLIN)
        self.lease = SharedLease(str(folder / "lease"))
        self.turn = LeadingTurn(self.leader, poller, self.lease)
        self.due_ms = monotonic_ms() + NEVER_MS

    def _pair(self, ours: int, theirs: int) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        bound, connected = self.context.socket(theirs), self.context.socket(ours)
        name = f"inproc://{id(bound)}"  # What is sent has arrived.
        bound.bind(name)
        connected.connect(name)
        connected.rcvtimeo = bound.rcvtimeo = 10_000
        return connected, bound

    def _drain(self, socket: "zmq.Socket[bytes]") -> Drain:
        return Drain(socket, message_bytes_max=MESSAGE_BYTES_MAX, frames=1 << 10)

    def close(self) -> None:
        self.lease.close()
        self.syncer.close()
        os.close(self.fd)
        self.context.destroy(linger=0)

    def wait(
        self,
        *,
        round_ms: int = 0,
        suspended: int = 0,
        urgent: bool = False,
        term_start: int = LAST,
    ) -> tuple[str, LeadingWait]:
        """Leads until the state ends.

        round_ms    the follower has answered a round that started so long ago
        suspended   the machine was suspended for so long since the caller has asked
        """
        now_ms = monotonic_ms()
        views = [(MARKED_ACCEPTED, KIND_STATE), (MARKED_ALONE, KIND_TABLES)]
        state = LeadingState(
            TERM, b"n1", LAST, LAST, term_start, 10, 70, 5, now_ms, True, True, (), NEVER_MS, views,
            lease_ms=5_000, rounds=[(5, now_ms - round_ms)],
        )  # fmt: skip
        follower = PeerState(LAST + 1, LAST, LAST, 5, 5, now_ms, now_ms, (), 1, ())
        limits = PeerLimits(8, 1 << 20, counts=True, promises=True)
        out = self.sockets[2].out
        self.leader.begin(
            state, [(follower, limits, out)], IndexLatency(),
            SegmentState(self.segment, self.syncer, 0, 1),
        )  # fmt: skip
        self.turn.listen(self.sockets[:2], self.sockets[2:])
        every, at_once = Frames(), Frames()
        every.add([b"every" + bytes(8)])
        every.add([NOTICE])
        if urgent:
            at_once.add([NOTICE])
        notices = SteadyNotices(
            self.commits, every, at_once, len(b"topic"), 100, 0, LAST,
            Noticed(LAST, LAST, self.due_ms),
        )  # fmt: skip
        found = self.turn.wait(WAIT_MS, notices, suspended_ms() - suspended)
        return REASONS[found.reason], found

    def read(self) -> None:
        self.client.send_multipart([b"id", b"kR", CLUSTER, b"\1"])

    def update(self, number: int, time_s: int) -> None:
        reqid = time_s.to_bytes(4, "big") + number.to_bytes(8, "big")
        self.client.send_multipart([reqid, b"=", CLUSTER, b"data"])

    def put(self) -> None:
        reqid = now_s().to_bytes(4, "big") + bytes(8)
        pack = own.pack_records([reqid], [b"kLT\1data"])
        self.table_server.send_multipart([reqid, b"k=", CLUSTER, b"", pack])


def now_s() -> int:
    return wall_ms() // 1000


@pytest.fixture
def turn(tmp_path: Path) -> Iterator[Turn]:
    made = Turn(tmp_path)
    yield made
    made.close()


def test_a_read_under_a_lease_is_answered(turn: Turn) -> None:
    turn.read()
    reason, found = turn.wait()
    assert reason == "time"
    assert found.left == [0, 0]
    assert turn.client.recv_multipart() == [b"id", b"kR", b"\1", bytes([LAST])]
    assert turn.leader.end().lease_answers == 1


@pytest.mark.parametrize(
    ("round_ms", "suspended", "expected"),
    [(6_000, 0, "message"), (0, 1_000, "source"), (0, -1_000, "source")],
    ids=["after the lease", "after a suspend", "after a change of clocks"],
)
def test_a_read_without_a_lease_waits_for_python(
    turn: Turn, round_ms: int, suspended: int, expected: str
) -> None:
    turn.read()
    reason, _ = turn.wait(round_ms=round_ms, suspended=suspended)
    assert reason == expected
    assert turn.reads.waiting == 1
    assert not turn.client.poll(50)
    assert turn.leader.end().lease_answers == 0


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
        ({}, LAST),
        ({"round_ms": 6_000}, 0),
        ({"suspended": 6_000}, 0),
        ({"term_start": LAST + 1}, 0),
    ],
    ids=["a lease", "an old round", "a suspend", "nothing of the term is committed"],
)
def test_the_lease_is_shared(turn: Turn, conditions: dict[str, int], index: int) -> None:
    turn.lease.write(1 << 40, 99)
    turn.wait(**conditions)  # type: ignore[arg-type]
    assert turn.lease.read() == index


def test_a_commit_is_shared_before_it_is_told(turn: Turn) -> None:
    turn.put()
    committed(turn)
    assert turn.lease.read() == LAST + 1


def test_what_is_no_read_is_left(turn: Turn) -> None:
    turn.client.send_multipart([b"id", b"%", CLUSTER])
    turn.read()
    reason, found = turn.wait()
    assert reason == "message"
    assert found.left[0]
    assert turn.leader.others(0) == [0]
    assert turn.client.recv_multipart()[1] == b"kR"


def acknowledge(follower: "zmq.Socket[bytes]") -> None:
    """Answers messages until one has an entry."""
    entries = 0
    while not entries:
        route, *frames = follower.recv_multipart()
        append = own.APPEND_PACKED_REQUEST.decode(frames, CLUSTER)
        entries = sum(batch.count for batch in append.batches)
        answer = AppendResponse(TERM, True, LAST + entries)
        message_id = int.from_bytes(frames[0], "little")
        follower.send_multipart([route, *own.APPEND_PACKED_ANSWER.encode(answer, message_id)])


def committed(turn: Turn, urgent: bool = False) -> LeadingWait:
    """Waits while the follower acknowledges an entry."""
    follower = threading.Thread(target=acknowledge, args=[turn.follower])
    follower.start()
    reason, found = turn.wait(urgent=urgent)
    follower.join()
    assert reason == "time"
    return found


@pytest.mark.parametrize("urgent", [True, False])
def test_urgent_processes_learn_of_a_commit_at_once(turn: Turn, urgent: bool) -> None:
    """The pack of a table server is committed when the follower has it. Other processes learn of it
    when their next notice is due, which it is not here."""
    turn.put()
    found = committed(turn, urgent)
    index = (LAST + 1).to_bytes(8, "little")
    assert turn.table_server.recv_multipart()[-1] == (1).to_bytes(4, "little") + index
    end = turn.leader.end()
    assert end.commit_index == LAST + 1
    assert [block.count for block in end.entries.durable] == [1]
    if urgent:
        assert found.noticed == Noticed(LAST, LAST + 1, turn.due_ms)
        assert turn.applier.recv() == b"topic" + index
    else:
        assert found.noticed is None
    assert not turn.applier.poll(50)


@pytest.mark.parametrize("has_room", [False, True], ids=["asks for room first", "has room"])
def test_updates_in_part_come_before_those_of_another_endpoint(turn: Turn, has_room: bool) -> None:
    """The answer to the second update of a client has no room. The first one, which is no block
    yet, has the next index: nothing of a table server may take it."""
    clients, intake = turn.sockets[0], turn.leader.intakes[0]
    if has_room:  # Memory for blocks, from an earlier state that has answered its update.
        turn.update(1, now_s())
        committed(turn)
        assert turn.client.recv_multipart()[1] == b"\1"
    turn.sockets[0] = clients._replace(out=Frames(1, 1))
    turn.update(2, now_s())
    turn.update(3, 0)  # It has expired.
    turn.put()
    reason, found = turn.wait()
    assert reason == "full"
    assert found.left[0]
    assert turn.leader.end().entries[:3] == ([], [], [])
    assert intake.pending == 1
    view = View(True, b"", LAST + 1, LAST, monotonic_ms(), now_s())
    intake.receive(clients.drain.arena, view, Frames())
    block = intake.block(LAST + 1, TERM)
    assert block is not None
    assert block[1] == 1
    assert turn.sockets[1].socket.poll(0)  # It still waits.
