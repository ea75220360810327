"""Holds tasks of Spark in their middle: `gate.py ADDRESS PORT`.

A task connects, sends a line `PLACE PARTITION ATTEMPT` and waits for an answer. Each is printed
with the address of its machine behind it. Lines of stdin:

    hold PLACE COUNT   answers the next COUNT tasks of a place at once, and no later ones
    open PLACE         answers all tasks of a place, also those that come later

A place that no line has named is open.
"""

import socketserver
import sys
import threading

HELD_S = 600.0

changed = threading.Condition()
free: dict[str, int | None] = {}  # How many more tasks of a place may pass; None: all.


def may_pass(place: str) -> bool:
    return free.get(place) is None or free[place] != 0


class Task(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline(200).decode().strip()
        place = line.split()[0]
        with changed:  # Threads that print at once mix their lines.
            print(f"{line} {self.client_address[0]}", flush=True)
            if not changed.wait_for(lambda: may_pass(place), HELD_S):
                return
            left = free.get(place)
            if left is not None:
                free[place] = left - 1
        self.wfile.write(b".")


class Gate(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """The task was killed."""


def main(address: str, port: str) -> None:
    with Gate((address, int(port)), Task) as gate:
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        print("up", flush=True)
        for line in sys.stdin:
            word, place, *rest = line.split()
            with changed:
                free[place] = None if word == "open" else int(rest[0])
                changed.notify_all()
        gate.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
