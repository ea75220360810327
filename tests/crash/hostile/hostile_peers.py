"""A process of peers that break every rule of ZMTP at the endpoints of a cluster, each a thread.

    python -m kelek.tests.crash.hostile.hostile_peers KIND CONNECTIONS SOURCE PORT...

They connect from the address SOURCE, again when the cluster ends their connection, until the
process is killed. An attacker is another machine in reality: with KELEK_HOSTILE_S the process gets
only the processor time that others leave. What the cluster computes for it is real.
"""

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kelek.tests.zmtp_peer import MORE, ZmtpPeer, frame, greeting, ready

IS_LONG = bool(os.environ.get("KELEK_HOSTILE_S"))
RECONNECT_S = 0.02 if IS_LONG else 0.5
PAUSE_S = 0 if IS_LONG else 0.02  # After a part. The short form leaves others processor time.
METADATA_BYTES = 60 << 20
STOLEN_ID = b"owner"
TOPIC_BYTES = 1000
LOG_INFO = frame(b"rid", MORE) + frame(b"%")
LOWEST_NICE = 19
NEVER = threading.Event()

Connect = Callable[..., ZmtpPeer]  # ZmtpPeer of a port and a source.
Attack = Callable[[Connect], None]


def large_ready() -> Attack:
    """Metadata, which libzmq keeps as long as the connection."""
    hello = greeting() + ready(filler=METADATA_BYTES)

    def attack(connect: Connect) -> None:
        peer = connect(hello)
        while not peer.is_cut(1):
            pass

    return attack


def endless(part: bytes) -> Callable[[], Attack]:
    """The same part for ever: of a message that never ends, or of requests."""

    def attack(connect: Connect) -> None:
        peer = connect()
        while True:
            peer.send(part)
            NEVER.wait(PAUSE_S)

    return lambda: attack


def subscriptions() -> Attack:
    def attack(connect: Connect) -> None:
        peer = connect(greeting() + ready(b"SUB"))
        for number in itertools.count():
            peer.send(frame(b"\1%09d" % number + bytes(TOPIC_BYTES)))
            NEVER.wait(PAUSE_S / 10)

    return attack


def half_handshake() -> Attack:
    def attack(connect: Connect) -> None:
        peer = connect(greeting()[:40], waits=False)
        while not peer.is_cut(1):
            pass

    return attack


def one_byte_a_second() -> Attack:
    def attack(connect: Connect) -> None:
        peer = connect(b"", waits=False)
        for byte in greeting() + ready(filler=1000):
            peer.send(bytes([byte]))
            if peer.is_cut(1):
                return

    return attack


def stolen_id() -> Attack:
    """The routing id of others; the first connection with it keeps it."""

    def attack(connect: Connect) -> None:
        peer = connect(greeting() + ready(identity=STOLEN_ID))
        for _ in range(100):
            peer.send(LOG_INFO + frame(b"junk") + frame(b"", MORE) * 20 + frame(b""))
            if peer.is_cut(0.01):
                return
        peer.close()

    return attack


KINDS: dict[str, Callable[[], Attack]] = {
    "large_ready": large_ready,
    "endless_large": endless(frame(bytes(64 << 10), MORE)),
    "endless_empty": endless(frame(b"", MORE) * 32768),
    "subscriptions": subscriptions,
    "half_handshake": half_handshake,
    "one_byte_a_second": one_byte_a_second,
    "stolen_id": stolen_id,
    "flood": endless(LOG_INFO * 200),  # Requests that are allowed, whose answers stay unread.
}
# Those that soon reach a limit, and a flood.
FAST_KINDS = "large_ready", "endless_large", "endless_empty", "subscriptions", "stolen_id", "flood"


def repeat(attack: Attack, connect: Connect) -> None:
    while True:
        try:
            attack(connect)
        except OSError:
            NEVER.wait(RECONNECT_S)


def set_priority(pid: int, lowest: bool) -> None:
    """Leaves the processor to all others, or not. Linux shares it among sessions before it looks at
    the priorities of their processes: the process must have a session of its own."""
    if sys.platform == "linux":
        policy = os.SCHED_IDLE if lowest else os.SCHED_OTHER
        os.sched_setscheduler(pid, policy, os.sched_param(0))
        with contextlib.suppress(OSError):  # The kernel may lack it.
            Path(f"/proc/{pid}/autogroup").write_text(str(LOWEST_NICE if lowest else 0))


def main(kind: str, connections: int, source: str, ports: list[int]) -> None:
    if IS_LONG:
        set_priority(os.getpid(), lowest=True)
    else:
        os.nice(LOWEST_NICE)  # Below the client, which has the same session.
    attack = KINDS[kind]()
    for port in itertools.islice(itertools.cycle(ports), connections):
        connect = partial(ZmtpPeer, port, source=source)
        threading.Thread(target=repeat, args=(attack, connect), daemon=True).start()
    NEVER.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(port) for port in sys.argv[4:]])
