"""A folder that loses what no sync covers, when the processes that write it have been killed.

forgetful.c, which the processes load, notes how each change is undone. lose_power() undoes what was
not durable, by the dice: all of it, a part, or nothing, as a disk does.

Content: a block of 512 bytes goes back to any moment since the file's last sync; so does the file's
size. Names: those made, removed and changed since the last sync of their directory stay up to a
moment, as with a journal. A file that is synced and whose name is not is lost.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

SOURCE = Path(__file__).with_name("forgetful.c")
BLOCK = 512
NOTE = struct.Struct("=IIQQQQ")
WRITE, SYNC, CREATE, REMOVE, RENAME, MAKE = range(1, 7)
FOLDERS = "notes", "directories", "kept"


class Note(NamedTuple):
    """See forgetful.c."""

    kind: int
    stamp: int
    offset: int  # Names: 1 if a file is kept.
    length: int
    old_size: int
    data: bytes  # What was there, or paths.


class PowerLoss(NamedTuple):
    """What a loss took back."""

    writes: int
    files: int
    names: int


class ForgetfulFolder:
    """A folder whose processes are started with environment()."""

    def __init__(self, root: Path, place: Path, lies: bool = False) -> None:
        """place: for the library and its notes; lies: no sync makes anything durable."""
        self.root = root.resolve()
        self.undo = place.resolve() / "undo"
        self._lies = lies
        self._library = place.resolve() / "forgetful.so"
        self.root.mkdir(parents=True, exist_ok=True)
        self._forget_notes()
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        command = [
            os.environ.get("CC", "cc"),
            *flags,
            "-o",
            str(self._library),
            str(SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True)

    def environment(self) -> dict[str, str]:
        lies = {"KELEK_POWER_LIES": "1"} if self._lies else {}
        return {
            "LD_PRELOAD": str(self._library),
            "KELEK_POWER_ROOT": str(self.root),
            "KELEK_POWER_UNDO": str(self.undo),
            **lies,
        }

    def lose_power(self, dice: Random) -> PowerLoss:
        """Call it when no process writes the folder any more."""
        names = self._lose_names(dice)
        paths = {path.stat().st_ino: path for path in self.root.rglob("*") if path.is_file()}
        writes = files = 0
        for inode, notes in self._notes("notes"):
            open_notes = undurable(notes, WRITE)
            if inode in paths and open_notes:
                files += 1
                writes += _lose_content(paths[inode], open_notes, dice)
        self._forget_notes()
        return PowerLoss(writes, files, names)

    def _lose_names(self, dice: Random) -> int:
        lost = [
            note
            for _, notes in self._notes("directories")
            for note in undurable(notes, CREATE, REMOVE, RENAME, MAKE)
        ]
        lost.sort(key=lambda note: note.stamp)
        kept = dice.choice((0, dice.randint(0, len(lost)), len(lost)))
        for note in reversed(lost[kept:]):
            self._undo_name(note)
        return len(lost) - kept

    def _undo_name(self, note: Note) -> None:
        path, _, target = os.fsdecode(note.data).partition("\0")
        kept = self.undo / "kept" / str(note.stamp)
        with suppress(FileNotFoundError):  # Its directory was lost with a name above it.
            match note.kind:
                case _ if note.kind == CREATE:
                    os.unlink(path)
                case _ if note.kind == MAKE:
                    shutil.rmtree(path)
                case _ if note.kind == RENAME:
                    os.rename(target, path)
                    if note.offset:
                        os.link(kept, target)
                case _ if note.offset:
                    os.link(kept, path)
                case _:
                    os.mkdir(path)

    def _notes(self, folder: str) -> Iterator[tuple[int, list[Note]]]:
        """The notes of each inode, in the order of time."""
        found: dict[int, list[Note]] = {}
        for path in (self.undo / folder).iterdir():
            found.setdefault(int(path.name.partition(".")[0]), []).extend(parsed(path))
        for inode, notes in found.items():
            yield inode, sorted(notes, key=lambda note: note.stamp)

    def _forget_notes(self) -> None:
        shutil.rmtree(self.undo, ignore_errors=True)
        for name in FOLDERS:
            (self.undo / name).mkdir(parents=True)


def parsed(path: Path) -> Iterator[Note]:
    """The notes of a file. The last one may be cut: its change was not made."""
    data = path.read_bytes()
    at = 0
    while at + NOTE.size <= len(data):
        kind, size, stamp, offset, length, old_size = NOTE.unpack_from(data, at)
        at += NOTE.size
        if at + size <= len(data):
            yield Note(kind, stamp, offset, length, old_size, data[at : at + size])
        at += size


def undurable(notes: list[Note], *kinds: int) -> list[Note]:
    """The changes after the last sync's begin."""
    synced = max((note.stamp for note in notes if note.kind == SYNC), default=0)
    return [note for note in notes if note.kind in kinds and note.stamp > synced]


def _lose_content(path: Path, notes: list[Note], dice: Random) -> int:
    """Returns how many writes were undone, wholly or in part."""
    count = len(notes)
    # How many writes stay; None: another number for each block.
    same = dice.choice((0, 0, dice.randint(0, count), None))
    stay: dict[int, int] = {}
    undone: set[int] = set()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for at in range(count - 1, -1, -1):
            for start, part in blocks(notes[at]):
                block = start // BLOCK
                if block not in stay:
                    stay[block] = dice.randint(0, count) if same is None else same
                if at >= stay[block]:
                    undone.add(at)
                    file.seek(start)
                    file.write(part)
        size_stays = dice.randint(0, count) if same is None else same
        if size_stays < count:
            undone.add(size_stays)
            size = notes[size_stays].old_size
        file.truncate(size)
    return len(undone)


def blocks(note: Note) -> Iterator[tuple[int, bytes]]:
    """What a write replaced, block by block, with the offsets. Beyond the file's end it was 0."""
    replaced = note.data.ljust(note.length, b"\0")
    at = 0
    while at < len(replaced):
        start = note.offset + at
        size = min(BLOCK - start % BLOCK, len(replaced) - at)
        yield start, replaced[at : at + size]
        at += size
