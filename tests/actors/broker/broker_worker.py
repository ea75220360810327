"""A worker of the broker's text, for tests that kill it: each answer is two PARTIALs and a FINAL.

    python broker_worker.py URL SERVICE PING_MS

Says its process id in each frame. It knows nothing of kelek.
"""

import os
import sys

import zmq

WINDOW = (3).to_bytes(2, "big")


def serve(url: str, service: bytes, ping_ms: int) -> None:
    """Until the broker says DISCONNECT: then a new socket is needed."""
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
            for kind, place in ((b"\3", 0), (b"\3", 1), (b"\4", 2)):
                said = b"%d %d " % (os.getpid(), place) + body[0]
                socket.send_multipart([b"KLKW01", kind, client, b"", request_id, said])


if __name__ == "__main__":
    while True:
        serve(sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]))
