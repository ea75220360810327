"""A client and a peer of ZMQ RAFT written from its text alone, on plain pyzmq.

Nothing of kelek is imported here: what kelek's codec gets wrong, this must notice.
"""

import os
import struct
import time
from itertools import count
from typing import NamedTuple

import msgpack
import zmq

from kelek.tests.waiting import wait_until

RESPONSE_TTL_S = 0.5  # SERVER_RESPONSE_TTL
DEADLINE_S = 60.0

_counter = count(int.from_bytes(os.urandom(3), "big"))


def uint(value: int) -> bytes:
    """Least significant byte first, variable length."""
    out = bytearray([value & 0xFF])
    while value := value >> 8:
        out.append(value & 0xFF)
    return bytes(out)


def number(frame: bytes) -> int:
    value = 0
    for byte in reversed(frame):
        value = value << 8 | byte
    return value


def truth(frame: bytes) -> bool:
    return len(frame) > 0 and frame[0] != 0


def json(frame: bytes) -> object:
    return msgpack.unpackb(frame)


def reqid(age_s: float = 0) -> bytes:
    """4 bytes of seconds, 3 of machine, 2 of process, 3 of counter."""
    seconds = struct.pack(">I", int(time.time() - age_s))
    process = struct.pack(">H", os.getpid() & 0xFFFF)
    return seconds + b"abc" + process + struct.pack(">I", next(_counter) & 0xFFFFFF)[1:]


class PlainEntry(NamedTuple):
    reqid: bytes
    kind: int
    term: int
    data: bytes


def entry(frame: bytes) -> PlainEntry:
    return PlainEntry(frame[:12], frame[12], number(frame[13:20]), frame[20:])


def entry_frame(reqid: bytes, kind: int, term: int, data: bytes) -> bytes:
    return reqid + bytes([kind]) + term.to_bytes(7, "little") + data


Context = zmq.Context[zmq.Socket[bytes]]


class Dealer:
    """One DEALER, connected to one ROUTER."""

    def __init__(self, context: Context, url: str) -> None:
        self.url = url
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(url)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def receive(self, wait_s: float = DEADLINE_S) -> list[bytes]:
        """The next message."""
        found = self.receive_within(wait_s)
        assert found is not None, f"{self.url} sent nothing for {wait_s} s"
        return found

    def receive_within(self, wait_s: float) -> list[bytes] | None:
        """The next message, or None when there is none for so long."""
        if not self.socket.poll(int(wait_s * 1000)):
            return None
        return self.socket.recv_multipart()

    def ask(self, *frames: bytes) -> list[bytes]:
        """Sends a request and returns the answer with its id; all others are passed over."""
        self.send(*frames)
        until = time.monotonic() + DEADLINE_S
        while True:
            answer = self.receive(until - time.monotonic())
            if answer[0] == frames[0]:
                return answer[1:]

    def close(self) -> None:
        self.socket.close()


class PlainLogClient:
    """The text's client: asks who leads, sends to the leader, follows both broken-leader cases."""

    def __init__(self, urls: dict[str, str], ident: bytes | None = None) -> None:
        self.context: Context = zmq.Context()
        self.peers = {name: Dealer(self.context, url) for name, url in urls.items()}
        self.ident = [] if ident is None else [ident]  # Node form when given.
        self.leader = ""

    def __enter__(self) -> "PlainLogClient":
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers.values():
            peer.close()
        self.context.term()

    def config(self, name: str) -> list[bytes]:
        return self.peers[name].ask(reqid(), b"^", *self.ident)

    def find_leader(self) -> Dealer:
        """Asks each known peer at a time until the response contains a LEADER ID that holds."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            for peer in self.peers.values():
                request = reqid()
                peer.send(request, b"^", *self.ident)
                answer = peer.receive_within(0.1)
                while answer is not None and answer[0] != request:
                    answer = peer.receive_within(0.1)
                if answer is not None and truth(answer[1]):
                    leader = json(answer[2])
                    assert isinstance(leader, str)
                    assert self.peers[leader] is peer
                    self.leader = leader
                    return peer
        raise AssertionError("no peer said that it leads")

    @property
    def followers(self) -> list[str]:
        return [name for name in self.peers if name != self.leader]

    def update(self, data: bytes, request: bytes | None = None) -> int:
        """Sends one update until it is committed; returns its LOG INDEX."""
        request = request or reqid()
        until = time.monotonic() + DEADLINE_S
        leader = self.peers[self.leader] if self.leader else self.find_leader()
        leader.send(request, b"=", *self.ident, data)
        while time.monotonic() < until:
            answer = leader.receive_within(RESPONSE_TTL_S)
            if answer is not None and answer[0] != request:
                continue
            if answer is not None and truth(answer[1]):
                if len(answer) == 3:
                    index = json(answer[2])
                    assert isinstance(index, int)
                    return index
                continue  # Accepted: the clock starts anew.
            assert answer is None or len(answer) == 3, "the request has expired"
            leader = self.find_leader()
            leader.send(request, b"=", *self.ident, data)
        raise AssertionError("the update was not committed")

    def wait_applied(self, index: int) -> None:
        """Until the leader's LAST APPLIED INDEX is there: entries are sent up to it."""
        leader = self.find_leader()
        wait_until(
            lambda: number(leader.ask(reqid(), b"%", *self.ident)[4]) >= index,
            f"{index} was never applied",
            DEADLINE_S,
        )

    def entries(self, prev: int = 0, *count: int) -> list[tuple[int, PlainEntry]]:
        """Reads entries from the leader with a follow-up for each answer."""
        leader, request = self.find_leader(), reqid()
        leader.send(request, b"<", *self.ident, uint(prev), *map(uint, count))
        found: list[tuple[int, PlainEntry]] = []
        while True:
            answer = leader.receive()
            if answer[0] != request:
                continue
            status = number(answer[1])
            if status == 0:
                leader = self.find_leader()
                left = [uint(total - len(found)) for total in count]
                leader.send(request, b"<", *self.ident, uint(prev + len(found)), *left)
                continue
            assert status in (1, 2), f"status {status}"
            last = number(answer[3])
            first = last - len(answer[4:]) + 1
            found += [(first + n, entry(frame)) for n, frame in enumerate(answer[4:])]
            if status == 1:
                return found
            left = [uint(total - len(found)) for total in count]
            leader.send(request, b"<", *self.ident, uint(last), *left)
