"""A process of peers that break every rule of ZMTP at the endpoints of a cluster, each a thread.

    python -m kelek.tests.crash.hostile.hostile_peers KIND CONNECTIONS SOURCE PORT...

They connect from the address SOURCE, again when the cluster ends their connection, until the
process is killed. An attacker is another machine in reality: here the process has the lowest
priority. What the cluster computes for it is real.

Each thread keeps to a rate, as an attack at the speed of this machine measures its scheduler:
KELEK_HOSTILE_MB MB/s, KELEK_HOSTILE_MESSAGES messages/s. It may begin with a READY of 60 MiB at
once, or of 16 MiB where that is refused, which it repeats when its rate allows. The kind `sink`
listens on the ports instead, reads all, and ends no connection: it shows what the attack costs a
machine without the cluster. The kind `burn` has no connection and computes without end.
"""

import contextlib
import itertools
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable

from kelek.clients.io.reqids import new_reqid
from kelek.protocols.zerodb.wire.requests import Put, encode_request
from kelek.protocols.zmqraft.wire.client_codec import RequestUpdate, encode_client_request
from kelek.protocols.zre import codec
from kelek.protocols.zre.beacon import own_uuid
from kelek.protocols.zre.values import SEQUENCES, Version
from kelek.tests.zmtp_peer import MORE, ZmtpPeer, frame, greeting, ready

IS_LONG = bool(os.environ.get("KELEK_HOSTILE_S"))
# Of each connection. The few connections of the short form must reach the limits soon.
BYTES_S = 1e6 * float(os.environ.get("KELEK_HOSTILE_MB", "2" if IS_LONG else "50"))
MESSAGES_S = float(os.environ.get("KELEK_HOSTILE_MESSAGES", "100"))
FRAMES_S = 20_000 if IS_LONG else 1_000_000  # Of messages that never end.
RECONNECT_S = 0.2 if IS_LONG else 0.5
STOLEN_S = 1
METADATA_BYTES = 60 << 20, 16 << 20  # The second is accepted where messages are smaller.
ZRE_METADATA_BYTES = 1000 << 10
PART_BYTES = 64 << 10
STOLEN_ID = b"owner"
TOPIC_BYTES = 1000
CLUSTER = b"demo"
TABLE = 9
LOG_INFO = [b"rid", b"%"]
CALL = [b"", b"MDPC02", b"\1", b"absent", bytes(64)]
LOWEST_NICE = 19
BATCHES_S = 10  # In which floods come.
NEVER = threading.Event()

REPORT_S = 0.5

Connect = Callable[..., ZmtpPeer]  # ZmtpPeer of a port and a source.
Attack = Callable[[Connect, "Pace"], None]


class Pace:
    """What a thread may send."""

    def __init__(self) -> None:
        self._free_s = time.monotonic()

    def spend(self, count: float, size: int = 0, most_s: float = MESSAGES_S) -> None:
        """Waits until these messages and bytes are within the rate."""
        now_s = time.monotonic()
        self._free_s = max(self._free_s, now_s) + max(size / BYTES_S, count / most_s)
        NEVER.wait(self._free_s - now_s)


def large_ready(sizes: tuple[int, ...] = METADATA_BYTES) -> Attack:
    """Metadata, which libzmq keeps as long as the connection."""
    hellos = [greeting() + ready(filler=size) for size in sizes]

    def attack(connect: Connect, pace: Pace) -> None:
        for hello in hellos:
            try:
                peer = connect(hello)
            except OSError:
                NEVER.wait(RECONNECT_S)
                continue
            try:
                while not peer.is_cut(1):
                    pass
            finally:
                pace.spend(1, len(hello))

    return attack


def endless(part: bytes, frames: int) -> Callable[[], Attack]:
    """The same part for ever, of a message that never ends."""

    def attack(connect: Connect, pace: Pace) -> None:
        peer = connect()
        peer.send(message(LOG_INFO))  # A connection that has sent nothing may hold less.
        while True:
            peer.send(part)
            pace.spend(frames, len(part), FRAMES_S)

    return lambda: attack


def flood(request: Callable[[], list[bytes]]) -> Callable[[], Attack]:
    """Requests that are allowed, whose answers stay unread."""

    def attack(connect: Connect, pace: Pace) -> None:
        peer, count = connect(), max(1, int(MESSAGES_S / BATCHES_S))
        while True:
            batch = b"".join(message(request()) for _ in range(count))
            peer.send(batch)
            pace.spend(count, len(batch))

    return lambda: attack


def message(frames: list[bytes]) -> bytes:
    return b"".join(frame(it, MORE) for it in frames[:-1]) + frame(frames[-1])


def append() -> list[bytes]:
    return encode_client_request(RequestUpdate(new_reqid(), bytes(64)), CLUSTER)


def put() -> list[bytes]:
    return encode_request(Put(TABLE, [os.urandom(2)], [bytes(64)]))


def subscriptions() -> Attack:
    def attack(connect: Connect, pace: Pace) -> None:
        peer = connect(greeting() + ready(b"SUB"))
        for number in itertools.count():
            peer.send(frame(b"\1%09d" % number + bytes(TOPIC_BYTES)))
            pace.spend(1, TOPIC_BYTES)

    return attack


def half_handshake() -> Attack:
    def attack(connect: Connect, _pace: Pace) -> None:
        peer = connect(greeting()[:40], waits=False)
        while not peer.is_cut(1):
            pass

    return attack


def one_byte_a_second() -> Attack:
    def attack(connect: Connect, _pace: Pace) -> None:
        peer = connect(b"", waits=False)
        for byte in greeting() + ready(filler=1000):
            peer.send(bytes([byte]))
            if peer.is_cut(1):
                return

    return attack


def stolen_id() -> Attack:
    """The routing id of others; the first connection with it keeps it."""

    def attack(connect: Connect, pace: Pace) -> None:
        peer = connect(greeting() + ready(identity=STOLEN_ID))
        until_s = time.monotonic() + STOLEN_S
        while time.monotonic() < until_s and not peer.is_cut():
            peer.send(message(LOG_INFO) + frame(b"junk") + frame(b"", MORE) * 20 + frame(b""))
            pace.spend(3)
        peer.close()

    return attack


def new_node(connect: Connect) -> ZmtpPeer:
    """A connection of a node of ZRE with a new UUID that has greeted; nothing is at its address."""
    uuid = own_uuid(os.urandom(14))
    peer = connect(greeting() + ready(identity=codec.routing_id(uuid, Version.V2)))
    address, port = peer.socket.getsockname()
    peer.send(command(1, codec.Hello(address, port, ("group",), 0, "hostile", {})))
    return peer


def command(sequence: int, of: codec.Command) -> bytes:
    return message(codec.encode(sequence, of, Version.V2))


def zre_greetings() -> Attack:
    """Each connection is another node."""

    def attack(connect: Connect, pace: Pace) -> None:
        new_node(connect).close()
        pace.spend(1)

    return attack


def zre_flood() -> Attack:
    """Messages of a node, and PINGs whose answers it does not take."""

    def attack(connect: Connect, pace: Pace) -> None:
        peer, content = new_node(connect), [bytes(1000)]
        for sequence in itertools.count(2):
            kinds = codec.Whisper(content), codec.Shout("group", content), codec.Ping()
            peer.send(command(sequence % SEQUENCES, kinds[sequence % 3]))
            pace.spend(1)

    return attack


KINDS: dict[str, Callable[[], Attack]] = {
    "large_ready": large_ready,
    "endless_large": endless(frame(bytes(PART_BYTES), MORE), 1),
    "endless_empty": endless(frame(b"", MORE) * (FRAMES_S // BATCHES_S), FRAMES_S // BATCHES_S),
    "subscriptions": subscriptions,
    "half_handshake": half_handshake,
    "one_byte_a_second": one_byte_a_second,
    "stolen_id": stolen_id,
    "flood": flood(lambda: LOG_INFO),
    "flood_append": flood(append),
    "flood_put": flood(put),
    "flood_call": flood(lambda: CALL),
}
# At the mailbox of a node of ZRE, beside others.
ZRE_KINDS: dict[str, Callable[[], Attack]] = {
    "zre_ready": lambda: large_ready((ZRE_METADATA_BYTES,)),
    "zre_greetings": zre_greetings,
    "zre_flood": zre_flood,
}
# Those that soon reach a limit, and a flood.
FAST_KINDS = "large_ready", "endless_large", "endless_empty", "subscriptions", "stolen_id", "flood"


class Attacker:
    """A thread that repeats an attack, and what it has done."""

    def __init__(self, attack: Attack, port: int, source: str) -> None:
        self._attack, self._port, self._source = attack, port, source
        self._peer: ZmtpPeer | None = None
        self._sent = 0
        self.connections = 0
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def sent(self) -> int:
        """Bytes."""
        return self._sent + (self._peer.sent if self._peer else 0)

    def _connect(self, hello: bytes = greeting() + ready(), waits: bool = True) -> ZmtpPeer:
        if self._peer is not None:
            self._sent, self._peer = self.sent, None
        self.connections += 1
        self._peer = ZmtpPeer(self._port, hello, self._source, waits)
        return self._peer

    def _run(self) -> None:
        pace = Pace()
        while True:
            try:
                self._attack(self._connect, pace)
            except OSError:
                NEVER.wait(RECONNECT_S)


def sink(ports: list[int]) -> None:
    """Greets as a ROUTER, reads and forgets."""
    selector, buffer = selectors.DefaultSelector(), bytearray(1 << 20)
    listeners = [socket.create_server(("127.0.0.1", port), backlog=4096) for port in ports]
    for each in listeners:
        selector.register(each, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            found = key.fileobj
            assert isinstance(found, socket.socket)
            with contextlib.suppress(OSError):
                if found in listeners:
                    made, _ = found.accept()
                    made.sendall(greeting() + ready(b"ROUTER"))
                    selector.register(made, selectors.EVENT_READ)
                    continue
                if found.recv_into(buffer):
                    continue
            if found not in listeners:
                selector.unregister(found)
                found.close()


def main(kind: str, connections: int, source: str, ports: list[int]) -> None:
    if kind == "sink":
        sink(ports)
    if kind == "burn":
        os.nice(LOWEST_NICE)
        print(0, 0, flush=True)
        while True:
            pass
    attack_ports((KINDS | ZRE_KINDS)[kind](), connections, source, ports)


def attack_ports(attack: Attack, connections: int, source: str, ports: list[int]) -> None:
    # Below the client. Linux shares the processor among sessions before it looks at priorities of
    # their processes: this one must have the client's session, or it would take of the cluster's.
    os.nice(LOWEST_NICE)
    run = [
        Attacker(attack, port, source)
        for port in itertools.islice(itertools.cycle(ports), connections)
    ]
    while True:  # What was done so far: connections and bytes.
        print(sum(it.connections for it in run), sum(it.sent for it in run), flush=True)
        NEVER.wait(REPORT_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(port) for port in sys.argv[4:]])
