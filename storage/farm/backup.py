"""Copies a farm server's log for a backup while the server runs, and fills a directory from it."""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from ...protocols.garlicfarm.server.values import NO_SNAPSHOT
from ...protocols.garlicfarm.wire.entries import configuration_batch, configuration_of
from ...protocols.garlicfarm.wire.messages import ClusterServer, FarmConfiguration
from ...protocols.raft.messages import EntryBatch, HardState
from ..disk.files import PIECE_BYTES, Files, open_existing
from ..errors import StorageError
from ..log.hard_state import HardStateFile
from ..log.log import Log
from ..log.reader import LogReader
from ..log.segment import Identity
from ..snapshot.backup import LogRange
from .storage import OWN, SNAPSHOT, verify_snapshot

AGAIN = "it may lag behind the others, or compact its log now: try again, or ask another server"


class FarmCopy(NamedTuple):
    """A farm up to a committed entry.

    snapshot   the bytes of the file; none without one
    """

    range: LogRange
    snapshot: Iterator[bytes]
    batches: list[EntryBatch]


def read_farm(files: Files, identity: Identity, last_index: int, last_term: int) -> FarmCopy:
    """Reads the entries up to a committed one. Raises StorageError: damaged, or it lacks them.

    last_term   of the entry: by log matching, all entries before it are those of the farm
    """
    base = NO_SNAPSHOT
    pieces: Iterator[bytes] = iter(())
    file = files.open(SNAPSHOT)
    if file is not None:
        base = verify_snapshot(file)
        whole = file.read(0, file.size)
        file.close()
        pieces = (whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES))
    index = base.last_index
    if index >= last_index:
        return FarmCopy(LogRange(index, index, index, base.last_term), pieces, [])
    found: list[EntryBatch] = []
    with closing(LogReader(files, identity)) as reader:
        while index < last_index:
            batches = reader.batches(index + 1, last_index, last_term, PIECE_BYTES)
            if not batches:
                raise StorageError(files.root, f"entry {index + 1} is not in its log", AGAIN)
            found += batches
            index = batches[-1].last_index
    return FarmCopy(LogRange(base.last_index, base.last_index, index, last_term), pieces, found)


def fill_farm(
    files: Files,
    identity: Identity,
    old: FarmCopy,
    servers: tuple[ClusterServer, ...],
) -> None:
    """Fills an empty directory for a server of a farm: the old log, and an entry after it that
    names the servers. Raises StorageError."""
    files.make_folder("")
    base, configuration = NO_SNAPSHOT, FarmConfiguration(0, 0, ())
    if old.range.snapshot_index:
        with closing(files.create(OWN)) as file:
            for piece in old.snapshot:
                file.append([piece])
            file.sync()
        files.rename(OWN, SNAPSHOT)
        with closing(open_existing(files, SNAPSHOT)) as file:
            base = verify_snapshot(file)
        configuration = base.configuration
    opened = Log(files, identity, epoch=1, base=(base.last_index, base.last_term))
    for batch in old.batches:
        opened.append(opened.last_index, opened.last_term, [batch.block])
        configuration = (configuration_of(batch) if batch.count == 1 else None) or configuration
    last_index, term = opened.last_index + 1, old.range.last_term + 1
    named = FarmConfiguration(last_index, configuration.log_index, servers)
    block = configuration_batch(last_index, term, named).block
    opened.append(opened.last_index, opened.last_term, [block])
    opened.sync()
    opened.close()
    with closing(HardStateFile(files, identity)) as state:
        state.save(HardState(term))
