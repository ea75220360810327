"""Makes a data directory for a new cluster of one peer from that peer's data of a lost cluster.

It only reads the old directory. The new directory holds the same entries with three changes: every
file carries the new cluster's ident, and both the initial configuration and a config entry after
the last entry name this peer alone.
"""

from contextlib import ExitStack, closing
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

APPEND_BYTES = 4 << 20  # Between two syncs.


class Rescued(NamedTuple):
    """The log in the new directory."""

    first_index: int
    last_index: int  # Of the new config entry.
    term: int


def lock_peer(files: Files) -> list[Lock]:
    """Takes the locks of a peer's processes: none of them can start until you close the locks.

    Raises StorageError if one runs.
    """
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
    """Verifies the source directory. Raises StorageError for the first damage."""
    report = verify(files)
    for path, offset, problem in report.findings:
        place = files.full_path(path) + ("" if offset is None else f": offset {offset}")
        raise StorageError(place, problem, "take another node, whose data is sound")
    return report


def rescue(source: Files, report: Report, target: Files, new: Identity, alone: bytes) -> Rescued:
    """Fills the empty directory target.

    alone   the configuration of one peer, as a config entry holds it
    Raises StorageError: refused by the system, or damaged since inspect().
    """
    info = report.snapshots[0] if report.snapshots else None
    alone = _with_tables(source, report, info, alone)
    with closing(Snapshots(target, new)) as snapshots:
        _copy_snapshot(source, report.identity, info, snapshots, alone)
    term = max((report.hard_state or HardState()).term, report.last_term) + 1
    reader = LogReader(source, report.identity)
    base = reader.base()
    # Copy entries below the snapshot for readers, but not a log that ends below the snapshot.
    is_useful = True
    if info is not None and report.last_index < info.index:
        is_useful, base = False, (info.index, info.term)
    opened = Log(target, new, epoch=1, base=base)
    size = 0
    for batch in reader.scan() if is_useful else ():
        opened.append(opened.last_index, opened.last_term, [batch.block])
        size += len(batch.block)
        if size >= APPEND_BYTES:
            opened.sync()
            size = 0
    reader.close()
    last_index = opened.last_index + 1
    entry = encode_block(last_index, term, [Record(KIND_CONFIG, None, alone)])
    opened.append(opened.last_index, opened.last_term, [entry.block])
    opened.sync()
    opened.close()
    with closing(HardStateFile(target, new)) as hard_state_file:
        hard_state_file.save(HardState(term))
    return Rescued(opened.first_index, last_index, term)


def _with_tables(source: Files, report: Report, info: SnapshotInfo | None, alone: bytes) -> bytes:
    """Adds to the configuration the newest `tables_from` of snapshot and log: the index from which
    on tables accept only table entries."""
    old = decode_config_entry(info.configuration) if info and info.configuration else None
    tables_from = old.tables_from if old is not None else 0
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
    assert file is not None, "we hold the lock of the snapshots"
    with closing(file):
        writer = snapshots.create(info.index, info.term, alone, b"".join(file.reqids()))
        for piece in file.state():
            writer.write(piece)
        writer.finish(info.made_s)
