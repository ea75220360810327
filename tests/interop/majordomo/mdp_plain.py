"""Clients and workers of MDP/0.1 (RFC 7) and MDP/0.2 (RFC 18), from those texts alone.

Nothing of kelek is used. Each owns one socket and does one step a call.
"""

from abc import ABC, abstractmethod

import zmq

Socket = zmq.Socket[bytes]
Frames = list[bytes]
ANSWER_MS = 60_000
POLL_MS = 100


def received(socket: Socket) -> Frames:
    assert socket.poll(ANSWER_MS), "nothing comes"
    return socket.recv_multipart()


class Client01:
    """RFC 7: a REQ socket, one request after the other, one reply to each."""

    def __init__(self, context: "zmq.Context[Socket]", url: str) -> None:
        self.socket = context.socket(zmq.REQ)
        self.socket.connect(url)

    def ask(self, service: bytes, *body: bytes) -> list[Frames]:
        self.socket.send_multipart([b"MDPC01", service, *body])
        header, of, *reply = received(self.socket)
        assert (header, of) == (b"MDPC01", service)
        return [reply]


class Client02:
    """RFC 18: a DEALER, any number of PARTIALs and one FINAL."""

    def __init__(self, context: "zmq.Context[Socket]", url: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.connect(url)

    def ask(self, service: bytes, *body: bytes) -> list[Frames]:
        self.socket.send_multipart([b"MDPC02", b"\x01", service, *body])
        replies: list[Frames] = []
        command = b""
        while command != b"\x03":
            header, command, of, *reply = received(self.socket)
            assert (header, of) == (b"MDPC02", service)
            assert command in (b"\x02", b"\x03")
            replies.append(reply)
        return replies


class PlainWorker(ABC):
    """What both RFCs have in common: READY at first, heartbeats both ways, a new socket behind a
    DISCONNECT."""

    head: tuple[bytes, ...]
    heartbeat: bytes
    disconnect: bytes

    def __init__(self, context: "zmq.Context[Socket]", url: str, service: bytes) -> None:
        self.context, self.url, self.service = context, url, service
        self.heard = 0  # Heartbeats of the broker.
        self.connect()

    def connect(self) -> None:
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(self.url)
        self.send(b"\x01", self.service)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart([*self.head, *frames])

    def step(self) -> None:
        """Takes in one message, if one comes, or says that it lives."""
        if not self.socket.poll(POLL_MS):
            self.send(self.heartbeat)
            return
        frames = self.socket.recv_multipart()
        size = len(self.head)
        assert tuple(frames[:size]) == self.head
        command, *rest = frames[size:]
        if command == self.heartbeat:
            self.heard += 1
            assert not rest
        elif command == self.disconnect:
            self.socket.close(0)
            self.connect()
        else:
            assert command == b"\x02"
            address, empty, *body = rest
            assert not empty
            self.work(address, body)

    @abstractmethod
    def work(self, address: bytes, body: Frames) -> None:
        """Answers a request of the client at this address."""


class Worker01(PlainWorker):
    """One REPLY to each request: the body, doubled."""

    head = (b"", b"MDPW01")
    heartbeat, disconnect = b"\x04", b"\x05"

    def work(self, address: bytes, body: Frames) -> None:
        self.send(b"\x03", address, b"", *body, *body)


class Worker02(PlainWorker):
    """Each frame of the body as a PARTIAL, then the number of them."""

    head = (b"MDPW02",)
    heartbeat, disconnect = b"\x05", b"\x06"

    def work(self, address: bytes, body: Frames) -> None:
        for frame in body:
            self.send(b"\x03", address, b"", frame)
        self.send(b"\x04", address, b"", b"%d" % len(body))
