"""A Spark driver without Spark, for tests of spark_job: the table number selects its behaviour."""

import os
import sys

from kelek.protocols.zerodb.server import map_orders
from kelek.protocols.zerodb.server.map_orders import (
    MapOrder,
    Mapped,
    MapProgress,
    Setup,
    Trouble,
    encode,
)

SIZE_BYTES = 4
MAPS, FAILS, DIES, JUNK, GIVES_UP = range(1, 6)  # Numbers of source tables.
NO_JAVA, SILENT = "no java", "silent"  # Values of `master`.


def send(message: bytes) -> None:
    os.write(1, len(message).to_bytes(SIZE_BYTES, "little") + message)


def receive() -> map_orders.Message:
    head = sys.stdin.buffer.read(SIZE_BYTES)
    if not head:
        sys.exit(0)
    return map_orders.decode(sys.stdin.buffer.read(int.from_bytes(head, "little")))


def main() -> None:
    setup = map_orders.body_of(receive(), Setup)
    if setup.master == SILENT:
        sys.exit(0)
    if setup.master == NO_JAVA:
        send(encode(map_orders.BROKEN, 0, Trouble("there is no Java")))
        sys.exit(1)
    send(encode(map_orders.CHECKED))
    send(encode(map_orders.READY))
    while True:
        message = receive()
        if message.kind == map_orders.DROP:
            send(encode(map_orders.FAILED, message.apid, Trouble("a report of a dropped map")))
            send(encode(map_orders.ALIVE))
            continue
        order = map_orders.body_of(message, MapOrder)
        if order.source == MAPS:
            send(encode(map_orders.PROGRESS, message.apid, MapProgress(2, 1, 3)))
            done = Mapped(77, [4, 5], list(MapProgress(2, 2, len(order.module))))
            send(encode(map_orders.MAPPED, message.apid, done))
        elif order.source == FAILS:
            send(encode(map_orders.FAILED, message.apid, Trouble("the mapper failed")))
        elif order.source == DIES:
            os._exit(7)
        elif order.source == JUNK:
            os.write(1, b"\xff" * 64)
        else:
            send(encode(map_orders.BROKEN, 0, Trouble("the JVM has ended")))


if __name__ == "__main__":
    main()
