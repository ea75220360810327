"""Request ids of 12 bytes, which the log and the tables share."""

from collections.abc import Iterable

REQID_BYTES = 12
MACHINE_BYTES = 3  # Of a reqid.


def make_reqids(now_s: int, machine: bytes, pid: int, numbers: Iterable[int]) -> list[bytes]:
    """Request ids of 12 bytes (docs/protocols/zmq-raft.md, "reqid").

    big endian: u32 Unix time in seconds, 3 bytes of machine, u16 process, u24 number

    machine   3 bytes that no other process with this id has
    numbers   a counter that does not repeat within a second; its low 24 bits are used
    """
    head = now_s.to_bytes(4, "big") + machine + (pid & 0xFFFF).to_bytes(2, "big")
    return [head + (number & 0xFFFFFF).to_bytes(3, "big") for number in numbers]
