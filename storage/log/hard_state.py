"""Term and vote on disk, in two slots that are written in turn. A save is one write and one sync.

When the newest slot may be damaged, the vote is withheld: falling back silently to the older slot
could forget a vote (docs/reference/disk-format.md, "Hard state").
"""

from contextlib import ExitStack, closing
from struct import Struct
from typing import NamedTuple

from ...native.log import segments
from ...native.log.blocks import crc32c
from ...protocols.raft.messages import HardState
from ..disk.files import SECTOR_BYTES, File, Files, open_existing, replace
from ..errors import Damaged, StorageError, check_usable
from .segment import (
    NAME_BYTES_MAX,
    RESTORE,
    SEGMENT_START,
    Identity,
    check_identity,
    encode_identity,
    read_identity,
)

PATH = "hard_state"
LOCK = "peer.lock"
FILE_BYTES = 3 * SEGMENT_START  # The identity block and two slots.
MAGIC_FILE = 0x484B4C4B  # "KLKH"
MAGIC_SLOT = 0x564B4C4B  # "KLKV"
NO_VOTE = 0x100

_SLOT = Struct("<IIQQBBH")  # magic, crc, sequence, term, voter, withheld, size of the vote
_REPAIRED = Struct("<Q")
REPAIRED_OFFSET = 288  # After the longest vote. Older versions wrote zeros there.


class _Slot(NamedTuple):
    sequence: int
    state: HardState
    voter: bool
    withheld: bool
    repaired: int = 0


class HardStateFile:
    """The hard state file of one peer. Only the peer's process opens and writes it.

    state            the newest term and vote
    voter            the peer has been a voter at some time
    withheld         a slot is damaged, so that a vote may be lost; the owner sets it to False
                     before the save that replaces the vote
    repaired         epoch of the last repair mark (repair.py) whose damage is repaired
    empty            the file did not exist: the peer has no history in this directory
    """

    def __init__(self, files: Files, identity: Identity) -> None:
        """Opens or makes the file. StorageError: locked, foreign, or refused by the system."""
        files.make_folder("")
        self._failed: StorageError | None = None
        with ExitStack() as undo:
            undo.callback(files.lock(LOCK).close)
            self.empty = PATH not in files.names("")
            if self.empty:
                head = encode_identity(MAGIC_FILE, identity, b"")
                replace(files, PATH, head.ljust(FILE_BYTES, b"\0"))
            self._file = open_existing(files, PATH, writable=True)
            undo.callback(self._file.close)
            files.sync_folder("")  # An earlier process may have died before its name was durable.
            _check(self._file, identity)
            newest, slots = _slots(self._file.load(past_cache=True))
            self.state = newest.state
            self.voter = newest.voter
            self.withheld = newest.withheld or False in slots.values()
            self.repaired = newest.repaired
            self._sequence = newest.sequence
            # The next save goes to the slot that is damaged or older.
            self._number = 2 if slots[1] is newest else 1
            if newest is not _NOTHING:
                # The slot may be in the page cache only: write and sync it again.
                self.save(self.state, self.voter)
            self._close = undo.pop_all()

    def save(self, state: HardState, voter: bool = True) -> None:
        """Makes term and vote durable before it returns.

        After a StorageError the peer must not send messages that depend on them, and every later
        save fails.
        """
        check_usable(self._failed)
        slot = _Slot(self._sequence + 1, state, voter, self.withheld, self.repaired)
        try:
            self._file.write(self._number * SEGMENT_START, [_encode(slot)])
            self._file.sync()
        except StorageError as error:
            self._failed = error
            raise
        self._sequence, self._number = slot.sequence, 3 - self._number
        self.state, self.voter = state, voter

    def close(self) -> None:
        self._close.close()


_NOTHING = _Slot(0, HardState(), False, False)


def inspect(disk: Files, identity: Identity) -> tuple[HardState | None, list[int]]:
    """Reads the file without its lock, while the peer may write it.

    Returns the newest state and the offsets of damaged slots; (None, []) without a file. Raises
    StorageError: the identity block is damaged or foreign.
    """
    file = disk.open(PATH)
    if file is None:
        return None, []
    with closing(file):
        _check(file, identity)
        data = file.load()
    newest, slots = _slots(data)
    return newest.state, [number * SEGMENT_START for number, slot in slots.items() if slot is False]


def _check(file: File, identity: Identity) -> None:
    """Checks identity block and size. StorageError: damaged or foreign."""
    check_identity(MAGIC_FILE, identity, 0, file.read(0, SEGMENT_START), file.full_path)
    if file.size != FILE_BYTES:
        raise Damaged(file.full_path, f"expected {FILE_BYTES} bytes, found {file.size}", RESTORE)


def read_owner(data: bytes, place: str) -> Identity:
    """The identity in a file's first block. StorageError: damaged, or of another version."""
    return read_identity(MAGIC_FILE, 0, data, place)[1]


def _slots(file: memoryview) -> tuple[_Slot, dict[int, _Slot | bool | None]]:
    """The newest sound slot, and both by number as _read() returns them."""
    slots = {number: _read(file, number) for number in (1, 2)}
    sound = [slot for slot in slots.values() if isinstance(slot, _Slot)]
    return max(sound, key=lambda slot: slot.sequence, default=_NOTHING), slots


def _read(file: memoryview, number: int) -> _Slot | bool | None:
    """A slot. None: never written. False: damaged."""
    data = bytes(file[number * SEGMENT_START : (number + 1) * SEGMENT_START])
    if len(data) == SEGMENT_START and segments.zeros(data) == SEGMENT_START:
        return None
    return _decode(data) or False


def _encode(slot: _Slot) -> bytes:
    voted_for = slot.state.voted_for
    vote = b"" if voted_for is None else voted_for.encode()
    assert len(vote) <= NAME_BYTES_MAX, voted_for
    size = NO_VOTE if voted_for is None else len(vote)
    fields = _SLOT.pack(
        MAGIC_SLOT, 0, slot.sequence, slot.state.term, slot.voter, slot.withheld, size
    )
    data = (fields + vote).ljust(REPAIRED_OFFSET, b"\0") + _REPAIRED.pack(slot.repaired)
    assert len(data) <= SECTOR_BYTES
    data = data.ljust(SEGMENT_START, b"\0")
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


def _decode(data: bytes) -> _Slot | None:
    if len(data) < SEGMENT_START:
        return None
    magic, crc, sequence, term, voter, withheld, size = _SLOT.unpack_from(data)
    if magic != MAGIC_SLOT or crc != crc32c(data[8:]) or size > NO_VOTE:
        return None
    vote = data[_SLOT.size : _SLOT.size + size].decode("utf-8", "replace")
    state = HardState(term, None if size == NO_VOTE else vote)
    (repaired,) = _REPAIRED.unpack_from(data, REPAIRED_OFFSET)
    return _Slot(sequence, state, bool(voter), bool(withheld), repaired)
