"""The form of a request id. Time and origin come from whoever makes them."""

from collections.abc import Iterable

MACHINE_BYTES = 3


def make_reqids(now_s: int, machine: bytes, pid: int, numbers: Iterable[int]) -> list[bytes]:
    """Ids of 12 bytes (docs/protocols/zmq-raft.md, "reqid").

    big endian: u32 unix time, 3 bytes of machine, u16 process, u24 number

    machine   3 bytes that no other process of this id has
    numbers   a counter that never repeats itself within a second; its last 24 bits count
    """
    head = now_s.to_bytes(4, "big") + machine + (pid & 0xFFFF).to_bytes(2, "big")
    return [head + (number & 0xFFFFFF).to_bytes(3, "big") for number in numbers]
