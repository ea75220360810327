"""A worker by the specification, for tests that kill it: it answers two PARTIALs and a FINAL.

    python broker_worker.py URL SERVICE PING_MS

Each part of an answer has its process id. It uses no code of kelek.
"""

import os
import sys

import zmq

WINDOW = (3).to_bytes(2, "big")


def serve(url: str, service: bytes, ping_ms: int) -> None:
    """Serves until the broker sends DISCONNECT; then a new socket is needed."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(url)
    socket.send_multipart([b"KLKW01", b"\1", service, WINDOW])
    while True:
        if not socket.poll(ping_ms):
            socket.send_multipart([b"KLKW01", b"PING"])
            continue
        _, command, *rest = socket.recv_multipart()
        if command == b"\6":
            socket.close(0)
            return
        if command == b"\2":
            client, _, request_id, *body = rest
            for kind, position in ((b"\3", 0), (b"\3", 1), (b"\4", 2)):
                part = b"%d %d " % (os.getpid(), position) + body[0]
                socket.send_multipart([b"KLKW01", kind, client, b"", request_id, part])


if __name__ == "__main__":
    while True:
        serve(sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]))
