"""What a machine without a key can do to the endpoints of a cluster: `attacker.py`.

It reads a line of JSON from its stdin, {"endpoints": {NAME: [URL, KEY]}, "replay": [URL, HEX]}, and
prints {"outcomes": {CASE: {NAME: OUTCOME}}, "received": {CASE: {NAME: BYTES}}, "replay":
{"received": HEX, "is_closed": BOOL}}. A case is a way to connect without a key that is allowed.
"""

import json
import socket
import sys
from typing import Any

import zmq

from kelek.net.clock import monotonic_ms
from kelek.protocols.access.certificates import decode_key
from kelek.tests.actors.access.test_endpoints import DEADLINE_MS, ENDED, kind_of
from kelek.tests.secure_cluster import new_key
from kelek.tests.zmtp_peer import MORE, frame, greeting, ready

CASES = ("no CURVE", "PLAIN", "unknown key", "wrong server key")
RAW = "no CURVE, as TCP"
MARKER = b"sent by the attacker"
# An update of the log, a broker's request, and frames for all.
REQUESTS = ([b"rid", b"=", MARKER], [b"", b"MDPC02", b"\1", b"mail", MARKER], [MARKER])
GREETING_BYTES = 64
SILENT_MS = 500  # How long it waits for messages after all handshakes have ended.
RECEIVE_S = 2.0


class Attempt:
    """One connection."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", kind: int, case: str) -> None:
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if kind == zmq.SUB:
            self.socket.subscribe(b"")
        self.monitor = self.socket.get_monitor_socket()
        self.case = case
        self.outcome = ""
        self.received = 0

    def connect(self, url: str, server_key: bytes) -> None:
        if self.case == "PLAIN":
            self.socket.plain_username = b"admin"
            self.socket.plain_password = b"admin"
        elif self.case != "no CURVE":
            own = new_key("attacker")
            other = new_key("other").public_key
            self.socket.curve_serverkey = server_key if self.case == "unknown key" else other
            self.socket.curve_publickey = own.public_key
            self.socket.curve_secretkey = own.secret_key
        self.socket.connect(url)
        for request in REQUESTS:
            try:
                self.socket.send_multipart(request, zmq.NOBLOCK)
            except zmq.ZMQError:  # A SUB sends nothing; a PUSH waits for its peer.
                break

    @property
    def receives(self) -> bool:
        return self.socket.type in (zmq.DEALER, zmq.SUB)

    def look(self) -> None:
        while not self.outcome and self.monitor.poll(0):
            event = int.from_bytes(self.monitor.recv_multipart()[0][:2], "little")
            self.outcome = ENDED.get(event, "")  # type: ignore[call-overload]
        if self.receives:
            while self.socket.poll(0):
                self.received += sum(map(len, self.socket.recv_multipart()))


def wait(sockets: list["zmq.Socket[bytes]"], until_ms: int) -> bool:
    """Whether one of them receives a message."""
    poller = zmq.Poller()
    for socket_ in sockets:
        poller.register(socket_, zmq.POLLIN)
    return bool(poller.poll(max(0, until_ms - monotonic_ms())))


def attack(endpoints: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """All cases at all endpoints, at once."""
    outcomes: dict[str, dict[str, str]] = {}
    received: dict[str, dict[str, int]] = {}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    attempts = {}
    for case in CASES:
        for name, (url, key) in endpoints.items():
            attempt = attempts[case, name] = Attempt(context, kind_of(name), case)
            attempt.connect(url, decode_key(key))
    until_ms = monotonic_ms() + DEADLINE_MS
    while waiting := [it for it in attempts.values() if not it.outcome]:
        if not wait([it.monitor for it in waiting], until_ms):
            break
        for attempt in attempts.values():
            attempt.look()
    wait([it.socket for it in attempts.values() if it.receives], monotonic_ms() + SILENT_MS)
    for (case, name), attempt in attempts.items():
        attempt.look()
        outcomes.setdefault(case, {})[name] = attempt.outcome
        received.setdefault(case, {})[name] = attempt.received
    context.destroy(0)
    outcomes[RAW], received[RAW] = {}, {}
    for name, (url, _) in endpoints.items():
        hello = greeting() + ready(b"DEALER")
        hello += b"".join(frame(part, MORE) for part in REQUESTS[0][:-1]) + frame(MARKER)
        answer, is_closed = exchange(url, [hello])
        outcomes[RAW][name] = "failed" if is_closed else "open"
        received[RAW][name] = max(0, len(answer) - GREETING_BYTES)
    return {"outcomes": outcomes, "received": received}


def exchange(url: str, parts: list[bytes]) -> tuple[bytes, bool]:
    """Sends each part after an answer to the one before; what came, and whether it was closed."""
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    received = b""
    with socket.create_connection((host.strip("[]"), int(port)), RECEIVE_S) as peer:
        try:
            for part in parts:
                peer.sendall(part)
                data = peer.recv(1 << 16)
                received += data
            while data:
                data = peer.recv(1 << 16)
                received += data
        except ConnectionError:
            return received, True
        except TimeoutError:
            return received, False
    return received, True


def main() -> None:
    given = json.loads(sys.stdin.readline())
    found = attack(given["endpoints"])
    url, stream = given["replay"][0], bytes.fromhex(given["replay"][1])
    hello = GREETING_BYTES + 2 + stream[GREETING_BYTES + 1]
    parts = [stream[:GREETING_BYTES], stream[GREETING_BYTES:hello], stream[hello:]]
    answer, is_closed = exchange(url, parts)
    found["replay"] = {"received": answer.hex(), "is_closed": is_closed}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
