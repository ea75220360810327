"""The built-in state machines: the digest, its snapshots, and broadcasts."""

from hashlib import sha256
from random import Random

import pytest

from kelek.actors.raft.machines import PIECE_BYTES, BroadcastStateMachine, LogDigest, broadcast_url
from kelek.examples.demo.flights import log_hash
from kelek.native.net.messages import Frames
from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.wire.client_codec import STATE_BROADCAST, StateBroadcast
from kelek.protocols.zmqraft.wire.entry import Entry, decode_entries
from kelek.tests.actors.node_settings import node_settings

HEARTBEAT_MS = 500
REQID = b"request-id-1"


def block(first_index: int, *data: bytes, kind: int = 0, term: int = 1) -> EntryBatch:
    return encode_block(first_index, term, [Record(kind, REQID, one) for one in data])


class SnapshotReader:
    """Reads a snapshot in pieces of at most piece bytes."""

    def __init__(self, state: bytes, piece: int = 1 << 20) -> None:
        self.state = state
        self.piece = piece

    def __call__(self, size: int) -> bytes:
        data = self.state[: min(size, self.piece)]
        self.state = self.state[len(data) :]
        return data


def snapshot(machine: LogDigest | BroadcastStateMachine) -> bytes:
    parts: list[bytes] = []
    machine.snapshot(parts.append)
    return b"".join(parts)


# ---- the digest ----


@pytest.mark.parametrize("seed", range(10))
def test_the_digest_equals_its_twin_across_snapshots(seed: int) -> None:
    """For any division of the entries into blocks, with a snapshot after any block."""
    dice = Random(seed)
    machine, index = LogDigest(), 1
    entries: list[bytes] = []
    for _ in range(dice.randint(1, 30)):
        data = [dice.randbytes(dice.choice([1, 100, 20_000, 70_000])) for _ in range(5)]
        machine.apply(block(index, *data))
        index, entries = index + 5, entries + data
        if dice.random() < 0.3:
            other = LogDigest()
            other.restore(
                index - 1, SnapshotReader(snapshot(machine), dice.choice([1, 999, 1 << 20]))
            )
            assert other.status() == machine.status()
            machine = other
    assert machine.status()["hash"] == log_hash(entries)
    assert machine.status()["entries"] == {"state": len(entries), "config": 0, "checkpoint": 0}


def test_pieces_are_hashed_as_a_chain() -> None:
    machine = LogDigest()
    assert machine.status()["hash"] == sha256(b"").hexdigest()
    machine.apply(block(1, b"abc"))
    assert machine.status()["hash"] == sha256(b"\3\0\0\0abc").hexdigest()
    machine.apply(block(2, bytes(PIECE_BYTES)))
    first = sha256(b"\3\0\0\0abc\0\0\1\0" + bytes(PIECE_BYTES - 11)).digest()
    assert machine.status()["hash"] == sha256(first + bytes(11)).hexdigest()


def test_an_empty_snapshot_restores_the_initial_state() -> None:
    machine = LogDigest()
    machine.apply(block(1, b"abc"))
    machine.restore(0, SnapshotReader(b""))
    assert machine.status() == LogDigest().status()


def test_a_malformed_state_is_refused_and_changes_nothing() -> None:
    machine = LogDigest()
    machine.apply(block(1, b"abc", bytes(100_000)))
    before, state = machine.status(), snapshot(machine)
    for cut in range(1, 65):  # The rest of the stream, of any length, follows.
        with pytest.raises(ValueError, match="state"):
            LogDigest().restore(1, SnapshotReader(state[:cut]))
    size = state[32]
    for wrong in (
        b"x" + state,
        state[:32] + b"\7" + state[33:],
        state[: 33 + size] + bytes(PIECE_BYTES),
        state + bytes(3 * PIECE_BYTES),
    ):
        with pytest.raises(ValueError, match="state"):
            machine.restore(1, SnapshotReader(wrong))
    assert machine.status() == before


# ---- broadcasts ----


class BroadcastSocket:
    """Collects sent messages."""

    def __init__(self) -> None:
        self.subscribed = True
        self.messages: list[list[bytes]] = []

    def publish(self, messages: Frames) -> None:
        self.messages += messages.messages()
        messages.clear()

    def decoded(self) -> list[StateBroadcast]:
        found = [STATE_BROADCAST.decode(frames, b"demo") for frames in self.messages]
        self.messages.clear()
        return found


@pytest.fixture
def socket() -> BroadcastSocket:
    return BroadcastSocket()


@pytest.fixture
def machine(socket: BroadcastSocket) -> BroadcastStateMachine:
    machine = BroadcastStateMachine(b"demo", HEARTBEAT_MS, socket)
    machine.lead(3)
    assert machine.tick(0) == HEARTBEAT_MS
    assert socket.decoded() == [StateBroadcast(3, 0)]
    return machine


def entries_of(messages: list[StateBroadcast]) -> list[Entry]:
    """The rule of the specification: the first entry's index is LAST APPLIED - count + 1."""
    return [
        entry
        for message in messages
        for entry in decode_entries(
            message.applied_index - len(message.entries) + 1, message.entries
        )
    ]


def test_a_wake_sends_one_message(machine: BroadcastStateMachine, socket: BroadcastSocket) -> None:
    machine.apply(block(1, b"a", b"b"))
    machine.apply(block(3, b"\xc0", kind=2, term=2))
    machine.apply(block(4, b"\x90", kind=1, term=3))
    assert machine.tick(10) == 10 + HEARTBEAT_MS
    (message,) = socket.decoded()
    assert (message.term, message.applied_index, len(message.entries)) == (3, 4, 4)
    assert entries_of([message]) == [
        Entry(1, 1, 0, REQID, b"a"),
        Entry(2, 1, 0, REQID, b"b"),
        Entry(3, 2, 2, REQID, b"\xc0"),
        Entry(4, 3, 1, REQID, b"\x90"),
    ]


@pytest.mark.parametrize(("count", "size"), [(300, 10_000), (9000, 1), (3, 5 << 20)])
def test_many_entries_are_split(
    machine: BroadcastStateMachine, socket: BroadcastSocket, count: int, size: int
) -> None:
    for index in range(1, count + 1):
        machine.apply(block(index, bytes(size)))
    machine.tick(10)
    sizes = [sum(map(len, frames[3:])) for frames in socket.messages]
    assert all(s <= 1 << 20 or size > 1 << 20 for s in sizes)
    assert all(len(frames) <= 3 + 4096 for frames in socket.messages)
    messages = socket.decoded()
    per_message = min(4096, max(1, (1 << 20) // (size + 20)))
    assert len(messages) == -(-count // per_message)
    assert [entry.index for entry in entries_of(messages)] == list(range(1, count + 1))


def test_heartbeats_follow_silence(machine: BroadcastStateMachine, socket: BroadcastSocket) -> None:
    assert machine.tick(499) == 500
    assert socket.decoded() == []
    assert machine.tick(500) == 1000
    machine.apply(block(1, b"a"))
    assert machine.tick(600) == 1100
    assert [len(message.entries) for message in socket.decoded()] == [0, 1]


def test_only_a_leader_with_subscribers_sends(
    machine: BroadcastStateMachine, socket: BroadcastSocket
) -> None:
    machine.lead(0)
    machine.apply(block(1, b"a"))
    assert machine.tick(1000) is None
    machine.lead(5)
    socket.subscribed = False
    machine.apply(block(2, b"b"))
    assert machine.tick(1001) is None
    socket.subscribed = True
    machine.on_subscribed()
    assert machine.tick(1002) == 1002 + HEARTBEAT_MS
    assert socket.decoded() == [StateBroadcast(5, 2)], "a heartbeat without earlier entries"
    machine.restore(9, SnapshotReader(snapshot(machine)))
    machine.on_subscribed()
    machine.tick(1003)
    assert socket.decoded() == [StateBroadcast(5, 9)]


def test_only_a_broadcasting_node_has_a_broadcast_url() -> None:
    node = {"broadcast_url": "tcp://h:1"}
    assert broadcast_url(node_settings(node)) == "tcp://h:1"
    assert not broadcast_url(node_settings())
    assert not broadcast_url(node_settings(node, state_machine="digest"))
