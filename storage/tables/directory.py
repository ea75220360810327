"""The folders of a table worker's databases, and the restore of the replicated one from a snapshot.

tables/WORKER/workers       number of workers when the tables were made
tables/WORKER/replicated    tables of the log
tables/WORKER/local         local tables
tables/WORKER/state         this worker's part of a new snapshot; removed at each start
tables/WORKER/lease         a new snapshot for data jobs; removed at each start
tables/WORKER/damage        why the replicated tables were moved away
*.new, *.old, *.damaged     being restored; replaced; moved away for inspection
"""

import os
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from ...protocols.zerodb.tables.tables import Tables, store_applied
from ...protocols.zerodb.worker.snapshot_participant import RestoredTables
from ..disk.disk import Disk, make_folders
from ..disk.files import SYNC_BYTES, Files
from ..errors import Damaged, StorageError, SystemCall
from ..log.segment import Identity
from ..snapshot import archive
from ..snapshot.snapshot import SnapshotFile, newest, open_snapshot

WORKERS = "workers"
REPLICATED = "replicated"
LOCAL = "local"
STATE = "state"
LEASE = "lease"
DAMAGE = "damage"
LOCAL_WAY_OUT = (
    "only this node had these local tables: move them away, and import what you exported"
)
_REPLACING = (f"{REPLICATED}.new", f"{REPLICATED}.old")

Open = Callable[[str, bool], Tables]  # Takes a database's path and whether it is replicated.


class TableFolder(NamedTuple):
    """The folder of a worker's tables."""

    folder: str  # `tables`, of the node.
    name: str  # Of the worker.
    workers: int


class TableDirectory:
    """The folders and databases of one worker."""

    def __init__(self, location: TableFolder, open_tables: Open, with_local: bool) -> None:
        """Opens the databases. Raises StorageError: made for another number of workers, locked,
        damaged (local tables), or refused by the system.

        damaged   why the replicated tables were moved away; they are made again from the log
        """
        self.location = location
        self._path = os.path.join(location.folder, location.name)
        self._open_tables = open_tables
        self.damaged = ""
        make_folders(self._path)
        self._check_workers()
        # RocksDB names an unfinished checkpoint .tmp.
        made = (STATE, LEASE)
        for name in (*made, *(f"{one}.tmp" for one in made), *_REPLACING):
            self._remove(name)
        self.replicated = self._open_replicated()
        self.local = self._open_local() if with_local else None

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _check_workers(self) -> None:
        """Table numbers decide which worker has a table, so the number of workers cannot change."""
        folder, _, workers = self.location
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name, WORKERS)
            made_for = _read(path)
            if made_for not in ("", str(workers)):
                raise StorageError(
                    path,
                    f"the tables were made for `workers: {made_for}`, not {workers}",
                    f"write `workers: {made_for}`: it cannot change once there are tables",
                )
        _write(self._at(WORKERS), str(workers))

    def _open_replicated(self) -> Tables:
        self.damaged = _read(self._at(DAMAGE))
        if not self.damaged:
            try:
                return self._open_tables(self._at(REPLICATED), True)
            except Damaged as error:
                self.damaged = str(error)
        if os.path.exists(self._at(REPLICATED)):
            self._remove(f"{REPLICATED}.damaged")
            self._rename(REPLICATED, f"{REPLICATED}.damaged")
        opened = self._open_tables(self._at(REPLICATED), True)
        Disk(self._path).remove(DAMAGE)
        return opened

    def _open_local(self) -> Tables:
        try:
            return self._open_tables(self._at(LOCAL), False)
        except Damaged as error:  # No log and no peer has their content.
            raise Damaged(error.place, error.problem, LOCAL_WAY_OUT) from None

    def note_damage(self, damage: str) -> None:
        """Notes that the replicated tables are damaged. The next start begins with empty ones,
        since a snapshot and the log have their content."""
        _write(self._at(DAMAGE), damage)

    def refuse_log(self, applied: tuple[int, int], term: int) -> NoReturn:
        """The tables are of another log, which has another term at this index."""
        raise StorageError(
            self.location.folder,
            f"the tables hold entry {applied[0]} of term {applied[1]}, the log has one of term"
            f" {term} there",
            "remove this folder: the worker makes the tables again from the log",
        )

    # ---- make a snapshot ----

    def write_state(self, at: tuple[int, int]) -> str:
        """Makes a checkpoint of the replicated tables, to which exactly the entries up to `at` are
        applied; returns its path. Raises StorageError."""
        store_applied(self.replicated, at)
        return self._checkpoint(STATE, (WORKERS, str(self.location.workers)))

    def _checkpoint(self, name: str, mark: tuple[str, str], path: str = "") -> str:
        """Makes a checkpoint with another file in it, as a whole or not at all, and moves it to
        path. Returns where it is."""
        self._remove(name)
        made = self._at(name)
        try:
            self.replicated.checkpoint(made)
            _write(os.path.join(made, mark[0]), mark[1])
            if path:
                make_folders(os.path.dirname(path))
                with SystemCall(path, "make this folder"):
                    os.rename(made, path)
        except StorageError:
            self._remove(name)
            raise
        return path or made

    def drop_state(self) -> None:
        """Removes the checkpoint of write_state()."""
        self._remove(STATE)

    # ---- for data jobs ----

    def write_lease(self, path: str, mark: tuple[str, str]) -> None:
        """Makes a checkpoint of the replicated tables at path, as a whole or not at all. Raises
        StorageError.

        mark   name and text of a file to add
        """
        self._checkpoint(LEASE, mark, path)

    # ---- restore a snapshot ----

    def unpack_snapshot(
        self, files: Files, identity: Identity, applied: int
    ) -> RestoredTables | None:
        """Unpacks the tables of the newest snapshot beside the existing ones if the snapshot is
        newer; replace() makes them current. A snapshot without tables of this worker yields empty
        ones. Raises Damaged: the snapshot is; StorageError."""
        info = newest(files, identity)
        if info is None or info.index <= applied:
            return None
        file = open_snapshot(files, identity, info)
        if file is None:
            return None  # A newer one has replaced it; the next call finds that.
        with closing(file):
            return self._unpack(file, info.path)

    def replace(self, restored: RestoredTables) -> None:
        """Makes the unpacked tables current. No scan may be open. Raises StorageError."""
        self.replicated.close()
        self._rename(REPLICATED, f"{REPLICATED}.old")
        self._rename(f"{REPLICATED}.new", REPLICATED)
        self._remove(f"{REPLICATED}.old")
        self.replicated = self._open_tables(self._at(REPLICATED), True)
        store_applied(self.replicated, restored.at)
        self.replicated.flush()

    def _unpack(self, file: SnapshotFile, place: str) -> RestoredTables:
        """Writes this worker's files of an archive; they count once all are complete and valid."""
        self._remove(f"{REPLICATED}.new")
        path = self._at(f"{REPLICATED}.new")
        make_folders(path)
        target, read = Disk(path), file.read_state
        at = file.info.index, file.info.term
        count = size = 0
        if not archive.is_archive(read):
            file.check()
            return RestoredTables(at, 0, 0)
        for member in archive.members(read, place):
            owner, _, name = member.path.partition("/")
            if owner != self.location.name or not name:
                continue
            if name == WORKERS:
                self._check_made_for(b"".join(archive.pieces(read, member, place)), place)
                continue
            _copy(target, name, archive.pieces(read, member, place))
            count += 1
            size += member.size
        target.sync_folder("")
        return RestoredTables(at, count, size)

    def _check_made_for(self, workers: bytes, place: str) -> None:
        if workers != str(self.location.workers).encode():
            raise StorageError(
                place,
                f"its tables are of `workers: {workers.decode('ascii', 'replace')}`,"
                f" those of this node of `workers: {self.location.workers}`",
                "give all nodes of a cluster one number",
            )

    # ---- files ----

    def _rename(self, source: str, target: str) -> None:
        with SystemCall(self._at(source), "rename"):
            os.rename(self._at(source), self._at(target))
        Disk(self._path).sync_folder("")

    def _remove(self, name: str) -> None:
        path = self._at(name)
        with SystemCall(path, "remove"), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def close(self) -> None:
        self.replicated.close()
        if self.local is not None:
            self.local.close()


def _copy(target: Files, name: str, pieces: archive.Pieces) -> None:
    with closing(target.create(name)) as file:
        synced = 0
        for piece in pieces:
            file.append([piece])
            if file.size - synced >= SYNC_BYTES:
                file.sync()
                synced = file.size
        file.sync()


def _read(path: str) -> str:
    with SystemCall(path, "read"), suppress(FileNotFoundError, NotADirectoryError):
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    return ""


def _write(path: str, text: str) -> None:
    with SystemCall(path, "write"), open(path, "w", encoding="ascii", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
