"""Makes a data directory for a peer of a new cluster from the data of an old one.

The old data is a peer's directory of a lost cluster, or a backup. The new directory holds the same
entries with three changes: every file carries the new cluster's ident, and both the initial
configuration and a config entry after the last entry name the new members.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

from ...protocols.raft.messages import KIND_CONFIG, EntryBatch, HardState
from ...protocols.record import Record, encode_block
from ...protocols.zmqraft.wire.config_codec import (
    ConfigEntry,
    Members,
    batch_config,
    decode_config_entry,
    encode_config_entry,
)
from ..disk.files import Files, Lock
from ..errors import StorageError
from ..snapshot import snapshot
from ..snapshot.snapshot import SnapshotFile, Snapshots, open_snapshot
from . import hard_state, log
from .hard_state import HardStateFile
from .log_copy import LogCopy
from .reader import LogReader
from .segment import Identity
from .verify import Report, verify


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


class OldLog(NamedTuple):
    """What a new cluster begins with.

    base      index and term of the entry before the first one in batches
    batches   all entries behind it
    term      the newest known term
    """

    snapshot: SnapshotFile | None
    base: tuple[int, int]
    batches: Iterable[EntryBatch]
    term: int


def rescue(
    source: Files, report: Report, target: Files, new: Identity, members: Members
) -> Rescued:
    """Fills the empty directory target from the directory source. fill() has the rest.

    Raises StorageError: refused by the system, or damaged since inspect().
    """
    info = report.snapshots[0] if report.snapshots else None
    with ExitStack() as opened:
        file = None
        if info is not None:
            file = open_snapshot(source, report.identity, info)
            assert file is not None, "we hold the lock of the snapshots"
            opened.enter_context(closing(file))
        reader = opened.enter_context(closing(LogReader(source, report.identity)))
        base, batches = reader.base(), reader.scan()
        # Copy entries below the snapshot for readers, but not a log that ends below the snapshot.
        if info is not None and report.last_index < info.index:
            base, batches = (info.index, info.term), iter(())
        term = max((report.hard_state or HardState()).term, report.last_term)
        return fill([(target, new)], OldLog(file, base, batches, term), members)


def fill(targets: Sequence[tuple[Files, Identity]], old: OldLog, members: Members) -> Rescued:
    """Fills the empty directory of each peer of a new cluster: a copy of the old log, and an entry
    after it that names the members.

    It reads the old data once. All targets get the same entries, so one Rescued describes them.
    Raises StorageError: refused by the system, or what is read is damaged.
    """
    configuration = ConfigEntry(members)
    if old.snapshot is not None and old.snapshot.info.configuration:
        at_snapshot = decode_config_entry(old.snapshot.info.configuration)
        configuration = _newer(configuration, at_snapshot)
    _copy_snapshot(old.snapshot, targets, encode_config_entry(configuration))
    with ExitStack() as opened:
        logs = [
            opened.enter_context(closing(LogCopy(*target, base=old.base))) for target in targets
        ]
        last_index = old.base[0]
        for batch in old.batches:
            found = batch_config(batch)
            if found is not None:
                configuration = _newer(configuration, found)
            last_index = batch.last_index
            for log in logs:
                log.append(batch)
        term = old.term + 1
        record = Record(KIND_CONFIG, None, encode_config_entry(configuration))
        named = encode_block(last_index + 1, term, [record])
        for log in logs:
            log.append(named)
            log.finish()
    for target in targets:
        with closing(HardStateFile(*target)) as hard_state_file:
            hard_state_file.save(HardState(term))
    return Rescued(old.base[0] + 1, named.last_index, term)


def _newer(configuration: ConfigEntry, found: ConfigEntry) -> ConfigEntry:
    """With the newest `tables_from`: the index from which on tables accept only table entries, and
    the operations that their members knew."""
    tables_from = max(configuration.tables_from, found.tables_from)
    operations = max(configuration.operations, found.operations)
    return configuration._replace(tables_from=tables_from, operations=operations)


def _copy_snapshot(
    file: SnapshotFile | None, targets: Sequence[tuple[Files, Identity]], configuration: bytes
) -> None:
    index, term, reqids, made_s = 0, 0, b"", 0
    if file is not None:
        index, term, made_s = file.info.index, file.info.term, file.info.made_s
        reqids = b"".join(file.reqids())
    with ExitStack() as opened:
        stores = [
            opened.enter_context(closing(Snapshots(*target, paced=False))) for target in targets
        ]
        writers = [store.create(index, term, configuration, reqids) for store in stores]
        for piece in file.state() if file is not None else ():
            for writer in writers:
                writer.write(piece)
        for writer in writers:
            writer.finish(made_s)
