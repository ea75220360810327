"""A node of ZRE version 1, from the text and its corrections alone. Nothing of kelek is used.

A process of its own: see zre_words.py for what it is told and what it says. It beacons once a
second, greets whoever it hears, and knows nothing of version 2: what comes from a routing id that
is no UUID is silently discarded.
"""

import argparse
import os
import random
import socket
import struct
import sys
import time
from typing import NamedTuple

import zmq

from kelek.tests.interop.zre.zre_words import NodeCommands

Socket = zmq.Socket[bytes]
SIGNATURE = b"\xaa\xa1"
BEACON = struct.Struct("!3sB16sH")
HEAD = struct.Struct("!2sBH")  # Signature, command, sequence.
HELLO, WHISPER, SHOUT, JOIN, LEAVE, PING, PING_OK = range(1, 8)
MAILBOXES = range(61_000, 65_536)
INTERVAL_S = 1.0
SEND_MESSAGES_MAX = 3000
POLL_MS = 20
UUID_BYTES = 16


def string(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def strings(texts: list[bytes]) -> bytes:
    return bytes([len(texts)]) + b"".join(map(string, texts))


class FrameReader:
    """Takes the fields of a header frame off its front. IndexError, struct.error: it is short."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def number1(self) -> int:
        number = self.data[0]
        self.data = self.data[1:]
        return number

    def number2(self) -> int:
        (number,) = struct.unpack_from("!H", self.data)
        self.data = self.data[2:]
        return int(number)

    def string(self) -> bytes:
        size = self.number1()
        if len(self.data) < size:
            raise IndexError("a short string")
        text, self.data = self.data[:size], self.data[size:]
        return text

    def strings(self) -> list[bytes]:
        return [self.string() for _ in range(self.number1())]


class PlainHello(NamedTuple):
    host: str
    port: int
    groups: list[bytes]
    status: int
    headers: dict[str, str]


class PlainPeer:
    """Somebody who was heard: a DEALER to his mailbox."""

    def __init__(self, dealer: Socket) -> None:
        self.dealer = dealer
        self.sequence = 0  # Of what was last sent.
        self.wanted = 1  # Of what comes next.
        self.greeted = False  # He has said HELLO.
        self.groups: set[bytes] = set()
        self.status = 0
        self.heard = self.beaconed = time.monotonic()
        self.pinged = False


class PlainNode:
    """One node. step() does what is due, and says what has happened."""

    def __init__(self, options: argparse.Namespace, words: NodeCommands) -> None:
        self.options, self.words = options, words
        self.uuid = b"\0"
        while self.uuid[0] == 0:  # libzmq has those for itself.
            self.uuid = os.urandom(UUID_BYTES)
        self.context: zmq.Context[Socket] = zmq.Context()
        self.mailbox = self.context.socket(zmq.ROUTER)
        self.mailbox.setsockopt(zmq.LINGER, 0)
        self.mailbox.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.port = self._bind()
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.udp.bind((options.broadcast, options.port))
        self.udp.setblocking(False)
        self.poller = zmq.Poller()
        for source in (self.mailbox, self.udp, words.source):
            self.poller.register(source, zmq.POLLIN)
        self.peers: dict[bytes, PlainPeer] = {}
        self.groups: set[bytes] = set()
        self.status = 0
        self.beacon_at = 0.0
        words.say("READY", uuid=self.uuid.hex(), port=self.port)

    def _bind(self) -> int:
        for port in random.sample(MAILBOXES, len(MAILBOXES)):
            try:
                self.mailbox.bind(f"tcp://{self.options.host}:{port}")
            except zmq.ZMQError:
                continue
            return port
        raise SystemExit("no free port for a mailbox")

    def run(self) -> None:
        while not self.words.over:
            ready = dict(self.poller.poll(POLL_MS))
            if self.udp.fileno() in ready:
                self._on_datagrams()
            while self.mailbox.poll(0):
                self._on_message(self.mailbox.recv_multipart())
            for word in self.words.taken() if self.words.source.fileno() in ready else []:
                self._obey(word)
            self._tick(time.monotonic())
        for peer in self.peers.values():
            peer.dealer.close()
        self.mailbox.close()
        self.udp.close()
        self.context.term()

    # ---- discovery ----

    def _on_datagrams(self) -> None:
        while True:
            try:
                data, (host, _) = self.udp.recvfrom(BEACON.size + 1)
            except BlockingIOError:
                return
            if len(data) != BEACON.size:
                continue
            name, version, uuid, port = BEACON.unpack(data)
            if (name, version) != (b"ZRE", 1) or not port or uuid == self.uuid:
                continue
            peer = self._require(uuid, host, port)
            peer.beaconed = peer.heard = time.monotonic()
            peer.pinged = False

    def _require(self, uuid: bytes, host: str, port: int) -> PlainPeer:
        """The peer of this UUID; one that is new is connected to and greeted."""
        peer = self.peers.get(uuid)
        if peer is not None:
            return peer
        dealer = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.ROUTING_ID, self.uuid)
        dealer.setsockopt(zmq.SNDHWM, SEND_MESSAGES_MAX)
        dealer.setsockopt(zmq.SNDTIMEO, 0)
        dealer.connect(f"tcp://{host}:{port}")
        peer = self.peers[uuid] = PlainPeer(dealer)
        headers = [f"{key}={value}".encode() for key, value in self.options.headers.items()]
        hello = string(self.options.host.encode()) + struct.pack("!H", self.port)
        hello += strings(sorted(self.groups)) + bytes([self.status]) + strings(headers)
        self._send(peer, HELLO, hello)
        return peer

    def _tick(self, now: float) -> None:
        if now >= self.beacon_at:
            beacon = BEACON.pack(b"ZRE", 1, self.uuid, self.port)
            self.udp.sendto(beacon, (self.options.broadcast, self.options.port))
            self.beacon_at = now + INTERVAL_S
        for uuid, peer in list(self.peers.items()):
            if now - peer.heard > self.options.dead_s:
                self._forget(uuid)
            elif now - peer.beaconed > self.options.evasive_s and not peer.pinged:
                peer.pinged = True
                self._send(peer, PING)

    def _forget(self, uuid: bytes) -> None:
        peer = self.peers.pop(uuid)
        peer.dealer.close()
        if peer.greeted:
            self.words.say("EXIT", peer=uuid.hex())

    # ---- messages ----

    def _send(self, peer: PlainPeer, command: int, rest: bytes = b"", *content: bytes) -> None:
        peer.sequence = (peer.sequence + 1) % 65_536
        head = HEAD.pack(SIGNATURE, command, peer.sequence)
        try:
            peer.dealer.send_multipart([head + rest, *content])
        except zmq.Again:
            self.words.say("FULL")

    def _on_message(self, frames: list[bytes]) -> None:
        uuid, *rest = frames
        if len(uuid) != UUID_BYTES or not rest or len(rest[0]) < HEAD.size:
            return
        signature, command, sequence = HEAD.unpack_from(rest[0])
        if signature != SIGNATURE:
            return
        try:
            self._on_command(uuid, command, sequence, FrameReader(rest[0][HEAD.size :]), rest[1:])
        except (IndexError, struct.error, UnicodeDecodeError):
            self.words.say("MALFORMED", peer=uuid.hex(), command=command)

    def _on_command(
        self, uuid: bytes, command: int, sequence: int, reader: FrameReader, content: list[bytes]
    ) -> None:
        if command == HELLO:
            hello = PlainHello(
                reader.string().decode(), reader.number2(), reader.strings(), reader.number1(),
                dict(one.decode().split("=", 1) for one in reader.strings()),
            )  # fmt: skip
            self._on_hello(uuid, sequence, hello)
            return
        peer = self.peers.get(uuid)
        if peer is None or not peer.greeted:
            return
        if sequence != peer.wanted:
            self.words.say("GAP", peer=uuid.hex(), wanted=peer.wanted, sequence=sequence)
        peer.wanted = (sequence + 1) % 65_536
        peer.heard = time.monotonic()
        text = [frame.decode("latin-1") for frame in content]
        if command == WHISPER:
            self.words.say("WHISPER", peer=uuid.hex(), content=text)
        elif command == SHOUT:
            group = reader.string().decode()
            self.words.say("SHOUT", peer=uuid.hex(), group=group, content=text)
        elif command in (JOIN, LEAVE):
            self._on_group(uuid, peer, command, reader)
        elif command == PING:
            self._send(peer, PING_OK)

    def _on_hello(self, uuid: bytes, sequence: int, hello: PlainHello) -> None:
        peer = self._require(uuid, hello.host, hello.port)
        peer.greeted, peer.wanted, peer.status = True, (sequence + 1) % 65_536, hello.status
        peer.heard = time.monotonic()
        self.words.say("ENTER", peer=uuid.hex(), headers=hello.headers)
        for group in hello.groups:
            peer.groups.add(group)
            self.words.say("JOIN", peer=uuid.hex(), group=group.decode())

    def _on_group(self, uuid: bytes, peer: PlainPeer, command: int, reader: FrameReader) -> None:
        group, status = reader.string(), reader.number1()
        if status != (peer.status + 1) % 256:
            self.words.say("STATUS", peer=uuid.hex(), was=peer.status, status=status)
        peer.status = status
        if command == JOIN:
            peer.groups.add(group)
        else:
            peer.groups.discard(group)
        event = "JOIN" if command == JOIN else "LEAVE"
        self.words.say(event, peer=uuid.hex(), group=group.decode())

    # ---- what it is told ----

    def _obey(self, word: dict[str, object]) -> None:
        group = str(word.get("group", "")).encode()
        content = str(word.get("content", "")).encode("latin-1")
        match word["do"]:
            case "join":
                self.groups.add(group)
                self._tell_all(JOIN, group)
            case "leave":
                self.groups.discard(group)
                self._tell_all(LEAVE, group)
            case "whisper":
                peer = self.peers[bytes.fromhex(str(word["to"]))]
                self._send(peer, WHISPER, b"", content)
            case "shout":
                for peer in self.peers.values():
                    if group in peer.groups:
                        self._send(peer, SHOUT, string(group), content)

    def _tell_all(self, command: int, group: bytes) -> None:
        self.status = (self.status + 1) % 256
        for peer in self.peers.values():
            self._send(peer, command, string(group) + bytes([self.status]))


if __name__ == "__main__":
    words = NodeCommands()
    PlainNode(words.options(sys.argv[1:]), words).run()
