"""Writes a log on a real disk, makes and takes in snapshots of it and compacts it, until it is
killed, and says on stdout what is durable.

    python snapshot_drill.py DIRECTORY EPOCH

The entry at an index always has the same data and a snapshot the same state, on each node, so
that a reader can tell. A line `INDEX` follows each sync; the last one that a snapshot has brought
counts like one that was written.
"""

import sys
from random import Random

from kelek.protocols.record import Record, encode_block
from kelek.storage.disk.disk import Disk
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import Snapshots, newest, open_snapshot
from kelek.tests.storage.memory_disk import MemoryDisk

ME = Identity("demo", "n1")
OTHER = Identity("demo", "n2")
SEGMENT_BYTES = 64 << 10
PIECE_BYTES = 50_000


def record(index: int) -> Record:
    random = Random(index)
    return Record(0, None, random.randbytes(random.choice((1, 60, 900, 4000))))


def state(index: int) -> bytes:
    return Random(index).randbytes(Random(index).choice((0, 1000, 300_000)))


def container(index: int, term: int) -> bytes:
    """A snapshot as another peer sends it."""
    files = MemoryDisk().process()
    writer = Snapshots(files, OTHER).create(index, term, b"\x91\x92\xa2n1\xa1u")
    writer.write(state(index))
    snapshot = open_snapshot(files, OTHER, writer.finish())
    assert snapshot is not None
    return snapshot.read(0, snapshot.info.size)


def take(snapshots: Snapshots, log: Log, index: int, term: int) -> None:
    data = container(index, term)
    incoming = snapshots.receive(index, term, len(data))
    while incoming.offset < len(data):
        incoming.write(incoming.offset, data[incoming.offset : incoming.offset + PIECE_BYTES])
    incoming.finish()
    log.reset(index, term)


def make(snapshots: Snapshots, log: Log) -> None:
    writer = snapshots.create(log.last_index, log.last_term, b"\x91\x92\xa2n1\xa1u")
    writer.write(state(log.last_index))
    writer.finish()
    log.compact(log.last_index)


def main() -> int:
    disk, epoch = Disk(sys.argv[1]), int(sys.argv[2])
    snapshots = Snapshots(disk, ME)
    found = newest(disk, ME)
    base = (found.index, found.term) if found else (0, 0)
    log = Log(disk, ME, epoch=epoch, segment_bytes=SEGMENT_BYTES, base=base)
    print(log.last_index, flush=True)
    random = Random(epoch)
    while True:
        what = random.random()
        if what < 0.1:
            make(snapshots, log)
        elif what < 0.2:  # Of another leader, with a higher index each time.
            take(snapshots, log, log.last_index + random.randint(1, 1000), epoch)
        else:
            index = log.last_index + 1
            records = [record(index + i) for i in range(random.randint(1, 8))]
            log.append(index - 1, log.last_term, [encode_block(index, epoch, records).block])
            log.sync()
        log.background_step()
        print(log.last_index, flush=True)


if __name__ == "__main__":
    sys.exit(main())
