"""A data directory for a new cluster of one peer, made of what that peer has of a lost one.

The old directory is only read. New in the other one are the cluster's ident in every file, a first
configuration that names the peer alone, and a config entry behind the last entry that does so too.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from ...protocols.raft.messages import KIND_CONFIG, HardState
from ...protocols.record import Record, encode_block
from ...protocols.zmqraft.wire.config_codec import (
    batch_config,
    decode_config_entry,
    encode_config_entry,
)
from ..disk.files import Files, Lock
from ..errors import StorageError
from ..snapshot import snapshot
from ..snapshot.snapshot import SnapshotInfo, Snapshots, open_snapshot
from . import hard_state, log
from .hard_state import HardStateFile
from .log import Log
from .reader import LogReader
from .segment import Identity
from .verify import Report, verify

APPEND_BYTES = 4 << 20  # Written between two syncs.


class Rescued(NamedTuple):
    """What the new directory holds."""

    first_index: int  # Of the log.
    last_index: int  # The config entry's.
    term: int


def lock_peer(files: Files) -> list[Lock]:
    """The locks of the processes of a peer: none of them runs, and none starts before they are
    closed. Raises StorageError when one runs."""
    with ExitStack() as undo:
        locks = []
        paths = [hard_state.LOCK, log.LOCK]
        paths += [snapshot.LOCK] * bool(files.names(snapshot.FOLDER))
        for path in paths:
            locks.append(files.lock(path))
            undo.callback(locks[-1].close)
        undo.pop_all()
    return locks


def inspect(files: Files) -> Report:
    """What can be rescued. Raises StorageError when anything in it is damaged."""
    report = verify(files)
    for path, offset, problem in report.findings:
        place = files.full_path(path) + ("" if offset is None else f": offset {offset}")
        raise StorageError(place, problem, "take another node, whose data is sound")
    return report


def rescue(source: Files, report: Report, target: Files, new: Identity, alone: bytes) -> Rescued:
    """Fills the empty directory target. alone: the configuration, as a config entry holds it.

    Raises StorageError: refused by the system, or damaged since it was inspected.
    """
    info = report.snapshots[0] if report.snapshots else None
    alone = _with_tables(source, report, info, alone)
    snapshots = Snapshots.open(target, new)
    _copy_snapshot(source, report.identity, info, snapshots, alone)
    snapshots.close()
    term = max((report.hard_state or HardState()).term, report.last_term) + 1
    reader = LogReader(source, report.identity)
    base = reader.base()
    # Entries below the snapshot are kept for readers; a log that ends below it is of no use.
    is_useful = True
    if info is not None and report.last_index < info.index:
        is_useful, base = False, (info.index, info.term)
    opened = Log.open(target, new, epoch=1, base=base)
    if is_useful:
        for blocks in _blocks(reader):
            opened.append(opened.last_index, opened.last_term, blocks)
            opened.sync()
    reader.close()
    last_index = opened.last_index + 1
    entry = encode_block(last_index, term, [Record(KIND_CONFIG, None, alone)])
    opened.append(opened.last_index, opened.last_term, [entry.block])
    opened.sync()
    opened.close()
    kept = HardStateFile.open(target, new)
    kept.save(HardState(term))
    kept.close()
    return Rescued(opened.first_index, last_index, term)


def _with_tables(source: Files, report: Report, info: SnapshotInfo | None, alone: bytes) -> bytes:
    """The configuration, with the index from which on tables believe their own kind of entry."""
    kept = decode_config_entry(info.configuration) if info and info.configuration else None
    tables_from = kept.tables_from if kept is not None else 0
    reader = LogReader(source, report.identity)
    for batch in reader.scan():
        found = batch_config(batch)
        if found is not None:
            tables_from = max(tables_from, found.tables_from)
    reader.close()
    entry = decode_config_entry(alone)
    return encode_config_entry(entry._replace(tables_from=tables_from))


def _copy_snapshot(
    source: Files, old: Identity, info: SnapshotInfo | None, snapshots: Snapshots, alone: bytes
) -> None:
    if info is None:
        snapshots.create(0, 0, alone).finish()
        return
    file = open_snapshot(source, old, info)
    assert file is not None, "snapshots stay while their lock is held"
    try:
        writer = snapshots.create(info.index, info.term, alone, b"".join(file.reqids()))
        for piece in file.state():
            writer.write(piece)
        writer.finish(info.made_s)
    finally:
        file.close()


def _blocks(reader: LogReader) -> Iterator[list[bytes]]:
    """All blocks of the log, in portions."""
    portion: list[bytes] = []
    size = 0
    for batch in reader.scan():
        portion.append(batch.block)
        size += len(batch.block)
        if size >= APPEND_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
