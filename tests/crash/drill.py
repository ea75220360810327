"""Writes a log on a real disk until it is killed, and prints what is durable.

    python drill.py DIRECTORY WRITER EPOCH [COUNT]

WRITER is inline, or thread for background syncs.
The data of an entry depend on its index only, so that a reader can check them.
It prints `INDEX TERM` after each sync, and `full` or `failed PROBLEM` for a StorageError.
"""

import select
import sys
from random import Random

from kelek.protocols.record import Record, encode_block
from kelek.storage.disk.disk import Disk
from kelek.storage.errors import StorageError, StorageFull
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity

ME = Identity("demo", "n1")
SEGMENT_BYTES = 64 << 10


def record(index: int) -> Record:
    random = Random(index)
    return Record(0, None, random.randbytes(random.choice((1, 60, 900, 4000))))


def sync(log: Log) -> None:
    if not log.start_sync():
        assert log.sync_fd is not None
        while not log.poll_sync():
            select.select([log.sync_fd], [], [])


def main() -> int:
    directory, writer, epoch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 1 << 60
    log = Log(
        Disk(directory), ME, epoch=epoch, segment_bytes=SEGMENT_BYTES,
        background_sync=writer == "thread",
    )  # fmt: skip
    print(log.last_index, log.last_term, flush=True)
    random = Random(epoch)
    for _ in range(count):
        index = log.last_index + 1
        records = [record(index + i) for i in range(random.randint(1, 8))]
        try:
            log.append(index - 1, log.last_term, [encode_block(index, epoch, records).block])
            sync(log)
            log.background_step()
        except StorageFull:
            print("full", flush=True)
            sys.stdin.readline()
            continue
        print(log.last_index, log.last_term, flush=True)
    log.close()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StorageError as error:
        print("failed", error, flush=True)
        sys.exit(2)
