"""Where a table worker's databases are, and how the replicated one comes out of a snapshot.

    tables/WORKER/workers       how many workers there were when the tables were made
    tables/WORKER/replicated    the tables of the log
    tables/WORKER/local         those of none
    tables/WORKER/state         our part of the snapshot that is being made; removed at each start
    tables/WORKER/lease         a snapshot for data jobs that is being made; removed at each start
    tables/WORKER/damage        what was wrong with the replicated ones: they are put aside
    *.new, *.old, *.damaged     being restored; replaced; put aside for people

It applies nothing.
"""

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from ...protocols.zerodb.tables.tables import Tables, store_applied
from ..disk.disk import Disk, make_folders
from ..disk.files import Files
from ..errors import Damaged, StorageError, storage_error
from ..log.segment import Identity
from ..snapshot import archive
from ..snapshot.snapshot import SnapshotFile, newest, open_snapshot

WORKERS = "workers"
REPLICATED = "replicated"
LOCAL = "local"
STATE = "state"
LEASE = "lease"
DAMAGE = "damage"
_REPLACING = (f"{REPLICATED}.new", f"{REPLICATED}.old")
SYNC_BYTES = 8 << 20

Open = Callable[[str, bool], Tables]  # A database's path, and whether it is replicated.


class TableFolder(NamedTuple):
    """Whose tables these are."""

    folder: str  # tables, of the node.
    name: str  # The worker's.
    workers: int


class Restored(NamedTuple):
    """What came out of a snapshot."""

    at: tuple[int, int]  # Index and term of the last entry in it.
    files: int
    size: int


class TableDirectory:
    """The directories of one worker, and its databases."""

    def __init__(self, location: TableFolder, open_tables: Open, with_local: bool) -> None:
        """Opens the databases. Raises StorageError: made for another number of workers, locked,
        damaged (the local ones), or refused by the system.

        damaged   why the replicated tables were put aside; they come again from the log
        """
        self.location = location
        self._path = os.path.join(location.folder, location.name)
        self._open_tables = open_tables
        self.damaged = ""
        _make_folder(self._path)
        self._check_workers()
        # The engine calls a checkpoint .tmp until it is whole.
        made = (STATE, LEASE)
        for name in (*made, *(f"{one}.tmp" for one in made), *_REPLACING):
            self._remove(name)
        self.replicated = self._open_replicated()
        self.local = open_tables(self._at(LOCAL), False) if with_local else None

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _check_workers(self) -> None:
        """Which table is whose follows from their number: it can't change."""
        folder, _, workers = self.location
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name, WORKERS)
            made_for = _read(path)
            if made_for not in ("", str(workers)):
                raise StorageError(
                    path,
                    f"the tables were made for `workers: {made_for}`, not {workers}",
                    f"write `workers: {made_for}`: it can't change once there are tables",
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

    def note_damage(self, damage: str) -> None:
        """The replicated tables are damaged: whoever opens them next begins with empty ones, as
        all that was in them is in the log and its snapshot."""
        _write(self._at(DAMAGE), damage)

    # ---- into a snapshot ----

    def write_state(self, at: tuple[int, int]) -> str:
        """Puts the replicated tables, in which everything up to `at` is applied and nothing else,
        into a directory; returns its path. Raises StorageError."""
        self._remove(STATE)
        store_applied(self.replicated, at)
        path = self._at(STATE)
        try:
            self.replicated.checkpoint(path)
            _write(os.path.join(path, WORKERS), str(self.location.workers))
        except StorageError:
            self._remove(STATE)
            raise
        return path

    def drop_state(self) -> None:
        """The snapshot is made, or will not be."""
        self._remove(STATE)

    # ---- for data jobs ----

    def write_lease(self, path: str, mark: tuple[str, str]) -> None:
        """Puts a checkpoint of the replicated tables at path, whole or not at all. Raises
        StorageError.

        mark   name and text of a file that is in it, too
        """
        self._remove(LEASE)
        try:
            self.replicated.checkpoint(self._at(LEASE))
            _write(os.path.join(self._at(LEASE), mark[0]), mark[1])
            _make_folder(os.path.dirname(path))
            try:
                os.rename(self._at(LEASE), path)
            except OSError as error:
                raise storage_error(path, "make this folder", error) from error
        except StorageError:
            self._remove(LEASE)
            raise

    # ---- out of a snapshot ----

    def unpack(self, files: Files, identity: Identity, applied: int) -> Restored | None:
        """Takes the tables from the newest snapshot when that is ahead of what is applied, beside
        those that are there: replace() puts them in place. Where it has none they begin empty.

        Raises Damaged: the snapshot; StorageError.
        """
        info = newest(files, identity)
        if info is None or info.index <= applied:
            return None
        file = open_snapshot(files, identity, info)
        if file is None:
            return None  # A newer one has replaced it: the next look finds that.
        try:
            return self._unpack(file, info.path)
        finally:
            file.close()

    def replace(self, restored: Restored) -> None:
        """Puts in place what unpack() took; nobody may hold a scan. Raises StorageError."""
        self.replicated.close()
        self._rename(REPLICATED, f"{REPLICATED}.old")
        self._rename(f"{REPLICATED}.new", REPLICATED)
        self._remove(f"{REPLICATED}.old")
        self.replicated = self._open_tables(self._at(REPLICATED), True)
        store_applied(self.replicated, restored.at)
        self.replicated.flush()

    def _unpack(self, file: SnapshotFile, place: str) -> Restored:
        """Writes our files of an archive; none of it counts until all is there and sound."""
        self._remove(f"{REPLICATED}.new")
        path = self._at(f"{REPLICATED}.new")
        _make_folder(path)
        target, read = Disk(path), file.read_state
        at = file.info.index, file.info.term
        count = size = 0
        if not archive.is_archive(read):
            file.check()
            return Restored(at, 0, 0)
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
        return Restored(at, count, size)

    def _check_made_for(self, workers: bytes, place: str) -> None:
        if workers != str(self.location.workers).encode():
            raise StorageError(
                place,
                f"its tables are of `workers: {workers.decode('ascii', 'replace')}`,"
                f" ours of `workers: {self.location.workers}`",
                "give all nodes of a cluster one number",
            )

    # ---- small things ----

    def _rename(self, source: str, target: str) -> None:
        try:
            os.rename(self._at(source), self._at(target))
        except OSError as error:
            raise storage_error(self._at(source), "rename", error) from error
        Disk(self._path).sync_folder("")

    def _remove(self, name: str) -> None:
        try:
            shutil.rmtree(self._at(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error(self._at(name), "remove", error) from error

    def close(self) -> None:
        self.replicated.close()
        if self.local is not None:
            self.local.close()


def _copy(target: Files, name: str, pieces: archive.Pieces) -> None:
    file = target.create(name)
    try:
        synced = 0
        for piece in pieces:
            file.append([piece])
            if file.size - synced >= SYNC_BYTES:
                file.sync()
                synced = file.size
        file.sync()
    finally:
        file.close()


def _make_folder(path: str) -> None:
    try:
        make_folders(path)
    except OSError as error:
        raise storage_error(path, "make this folder", error) from error


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise storage_error(path, "read", error) from error


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(path, "write", error) from error
