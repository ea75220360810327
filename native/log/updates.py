"""Updates at the leader in C: known request ids, blocks of new updates, answers after the commit.

It does not know Raft: the caller passes the log's last index and the commit index.
"""

import os
from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

from ..._native import ffi, lib
from ..errors import HEADER_SIZE, RECORD_BYTES_MAX, NativeError, Readable, checked, uncleared
from ..net.messages import Arena, Frames
from ..net.shares import slot_number

# ---- reqids.c ----

_SHARD_SLOTS_MIN = 32
_TABLE = Struct("<QQII")  # Ids, last index, forgotten_s, newest_s.
_SLOT_BYTES: int = ffi.sizeof("struct klk_reqid_slot")
_CACHE_LINE = 64


class Reqids:
    """Known request ids, each with the index of its entry: 23 to 32 bytes per id.

    It stores no ids of 12 zero bytes (of checkpoint entries). With a `secret` (16 bytes) clients
    can't choose colliding ids.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        table = self._struct = ffi.new("struct klk_reqids *")
        self._seconds = ffi.new("uint32_t[]", lib.KLK_REQID_SECONDS)
        table.seconds = self._seconds
        secret = self._secret = secret or os.urandom(16)
        table.seeds = [int.from_bytes(secret[:8]), int.from_bytes(secret[8:16])]
        self._places = (
            ffi.new("struct klk_header *"),
            ffi.new("size_t *"),
            ffi.new("uint64_t *"),
            ffi.new("uint32_t *"),
        )
        self._shards: list[Any] = [None] * lib.KLK_REQID_SHARDS
        for shard in range(lib.KLK_REQID_SHARDS):
            self._move(shard, _SHARD_SLOTS_MIN)

    def _move(self, shard: int, size: int) -> None:
        held = uncleared("struct klk_reqid_slot[]", size + 4)
        address = int(ffi.cast("uintptr_t", held))
        slots = ffi.cast("struct klk_reqid_slot *", address + -address % _CACHE_LINE)
        checked(lib.klk_reqids_move(self._struct, shard, slots, size))
        self._shards[shard] = held

    def _grow(self) -> None:
        """Makes the room that the last call asked for, and drops forgotten ids."""
        while (shard := lib.klk_reqids_crowded(self._struct)) >= 0:
            ids = lib.klk_reqids_live(self._struct, shard) + self._struct.need[shard]
            self._move(shard, max(_SHARD_SLOTS_MIN, 2 * ids + -2 * ids % 8))

    def __len__(self) -> int:
        """The number of ids that are not forgotten."""
        return int(self._struct.count)

    @property
    def forgotten_s(self) -> int:
        """Ids of this second (Unix time) and before are forgotten."""
        return int(self._struct.forgotten_s)

    @property
    def newest_s(self) -> int:
        """The largest time (Unix seconds) of any id: log time."""
        return int(self._struct.newest_s)

    def find(self, reqid: bytes) -> int | None:
        """The index of the entry with this id."""
        if len(reqid) != lib.KLK_REQID_SIZE:
            raise ValueError(f"a reqid has 12 bytes, not {len(reqid)}")
        return lib.klk_reqids_find(self._struct, reqid) or None

    def add_block(self, block: Readable) -> int:
        """Stores the ids of a checked block. Returns their largest time; 0 without ids.

        A known id keeps the smaller index.
        """
        buffer, (header, offset, index, newest_s) = ffi.from_buffer(block), self._places
        lib.klk_header_read(buffer, header)
        offset[0], index[0], newest_s[0] = HEADER_SIZE, header.first_index, 0
        self._fill(lib.klk_reqids_add, buffer, len(buffer), offset, index, newest_s)
        return int(newest_s[0])

    def _fill(self, function: Any, *arguments: Any) -> None:
        """Calls a function that adds ids, until they have enough room."""
        while code := function(self._struct, *arguments):
            if code != lib.KLK_EGROW:
                raise NativeError(code)
            self._grow()

    def truncate(self, last_index: int) -> None:
        """Removes the ids of entries after last_index: they may come again."""
        lib.klk_reqids_truncate(self._struct, last_index)

    def forget(self, seconds: int) -> None:
        """Forgets the ids of this second (Unix time) and before, for good. It is cheap."""
        lib.klk_reqids_forget(self._struct, seconds)

    def bound(self, count_max: int) -> None:
        """Forgets whole seconds, oldest first, until at most count_max ids are left.

        The result depends on the ids only, not on the number of calls.
        """
        lib.klk_reqids_bound(self._struct, count_max)

    def settle(self, kept_s: int, count_max: int) -> None:
        """Bounds the table by values of the log only: forgets ids that are more than kept_s older
        than log time, then the oldest until count_max are left."""
        if self.newest_s - kept_s > self.forgotten_s:
            self.forget(self.newest_s - kept_s)
        self.bound(count_max)

    def export(self, last_index: int) -> memoryview:
        """The ids of entries up to last_index as a snapshot stores them
        (docs/reference/disk-format.md, "Request ids"). Equal blocks up to last_index and settle()
        give equal bytes."""
        room = len(self)
        out = uncleared("uint8_t[]", _TABLE.size + _SLOT_BYTES * room)
        slots = ffi.cast("struct klk_reqid_slot *", out + _TABLE.size)
        count = checked(lib.klk_reqids_export(self._struct, last_index, slots, room))
        exported = memoryview(ffi.buffer(out))
        _TABLE.pack_into(exported, 0, count, last_index, self.forgotten_s, self.newest_s)
        return exported[: _TABLE.size + _SLOT_BYTES * count]

    def load(self, pieces: Iterable[Readable]) -> None:
        """Replaces the table by the bytes of export(), in pieces of any size. No bytes: no ids.

        NativeError: the bytes are malformed; the table is unchanged.
        """
        table = Reqids(self._secret)
        table._import(pieces)
        self._struct[0] = table._struct[0]
        self._seconds, self._shards = table._seconds, table._shards

    def _import(self, pieces: Iterable[Readable]) -> None:
        rest = b""
        header: tuple[int, ...] | None = None
        index = ffi.new("uint64_t *")
        for piece in pieces:
            data = b"".join((rest, piece))
            if header is None and len(data) >= _TABLE.size:
                header = _TABLE.unpack_from(data)
                data = data[_TABLE.size :]
                _, _, forgotten_s, newest_s = header
                if not 0 <= newest_s - forgotten_s <= lib.KLK_REQID_SECONDS:
                    raise NativeError(lib.KLK_ECORRUPT)
                self.forget(forgotten_s)
                self._struct.newest_s = newest_s
            whole = len(data) - len(data) % _SLOT_BYTES if header is not None else 0
            rest = data[whole:]
            if header is not None and whole:
                offset = ffi.new("size_t *")
                self._fill(lib.klk_reqids_import, header[1], data, whole, offset, index)
        if rest or (header is not None and header[0] != len(self)):
            raise NativeError(lib.KLK_ECORRUPT)


# ---- updates.c ----

PACK_BYTES_MAX: int = lib.KLK_PACK_BYTES_MAX
PACK_COUNT_MAX: int = lib.KLK_PACK_COUNT_MAX
REMIND_MS: int = lib.KLK_REMIND_MS
TTL_S_MAX = 60_000
_COUNTERS = ("taken", "repeated", "refused", "dropped", "over", "gaps", "astray")


MARKED_ACCEPTED: int = lib.KLK_MARKED_ACCEPTED
MARKED_REFUSED: int = lib.KLK_MARKED_REFUSED
MARKED_ALONE: int = lib.KLK_MARKED_ALONE


class View(NamedTuple):
    """The state of the peer during receive()."""

    leader: bool
    refusal: bytes  # msgpack of the leader's PEER ID or of nil, for refused clients.
    next_index: int  # The log's last index + 1.
    commit_index: int
    now_ms: int  # Monotonic.
    unix_s: int  # For the age of a request id.
    marked: int = MARKED_ACCEPTED  # How to treat data that start with the mark of tables.
    kind: int = 0  # Of the written records.


class IntakeResult(NamedTuple):
    """The result of receive()."""

    updates: int  # New ones.
    others: list[int]  # The numbers of messages that are not updates.


class Updates:
    """Updates at the leader: copies them from an arena into blocks, and answers them.

    It handles RequestUpdate in text and node form, and packs (docs/protocols/zmq-raft.md). A
    request that can't be answered at once waits until commit() or refuse(). Above inflight_max
    updates or inflight_bytes_max bytes a message gets no answer, and the client repeats it. With
    share() a client may not have all of them.
    """

    def __init__(
        self,
        ident: bytes,
        reqids: Reqids,
        *,
        record_bytes_max: int = RECORD_BYTES_MAX,
        inflight_max: int = 1 << 16,
        inflight_bytes_max: int = 1 << 26,
        ttl_s: int = 8 * 3600,
    ) -> None:
        if not 0 < ttl_s <= TTL_S_MAX:
            raise ValueError(f"a reqid's time to live is 1 to {TTL_S_MAX} s, not {ttl_s}")
        if not (0 < record_bytes_max <= RECORD_BYTES_MAX and 0 < inflight_max <= 1 << 24):
            raise ValueError(f"updates of {record_bytes_max} bytes, {inflight_max} in flight")
        self.reqids = reqids
        self._ident = ffi.new("uint8_t[]", ident)
        ring_bytes = 1 << (64 * inflight_max + (1 << 17)).bit_length()
        self._ring = uncleared("uint64_t[]", ring_bytes // 8)
        self._blocks: Any = None
        self._others = ffi.new("uint32_t[]", 1)
        self._others_count = ffi.new("uint32_t *")
        self._next_block = ffi.new("uint8_t **"), ffi.new("uint32_t *")
        self._view = ffi.new("struct klk_updates_view *")
        updates = self._struct = ffi.new("struct klk_updates *")
        updates.reqids, updates.ident, updates.ident_size = reqids._struct, self._ident, len(ident)
        updates.record_bytes_max, updates.ttl_s = record_bytes_max, ttl_s
        updates.inflight_max, updates.inflight_bytes_max = inflight_max, inflight_bytes_max
        self._waiters = updates.waiters
        self._waiters.ring, self._waiters.ring_max = self._ring, ring_bytes

    def share(self, foreign_slot: int | None) -> None:
        """From now on a client may have in flight LOAD_SHARE times what it leaves free: three
        quarters, if it is the only one. One that has nothing may have all that is free.

        A client is the slot of its key. Without keys, and in foreign_slot, it is its routing id.
        """
        loads = self._loads = ffi.new("struct klk_loads *")
        loads.seed = int.from_bytes(os.urandom(8), "little")
        loads.foreign_slot = slot_number(foreign_slot)
        self._struct.loads = loads

    @property
    def waiting(self) -> int:
        """Requests that wait for an answer."""
        return int(self._waiters.waiting)

    @property
    def inflight_bytes(self) -> int:
        """Of the updates that wait for a commit."""
        return int(self._struct.inflight_bytes)

    @property
    def pending(self) -> int:
        """Accepted updates that block() has not returned yet."""
        return int(self._struct.records)

    @property
    def taken(self) -> int:
        """Updates accepted, ever."""
        return int(self._struct.counters[lib.KLK_UPDATES_TAKEN])

    @property
    def deadline_ms(self) -> int | None:
        """The earliest time of the next reminder."""
        return int(self._waiters.remind_ms) if self._waiters.waiting else None

    def counters(self) -> dict[str, int]:
        """Updates accepted; requests repeated, refused for good, dropped, over the limits in
        flight; packs with a gap before them; requests astray (not the leader)."""
        counts = ffi.unpack(self._struct.counters, len(_COUNTERS))
        return dict(zip(_COUNTERS, counts, strict=True))

    def receive(self, arena: Arena, view: View, out: Frames) -> IntakeResult:
        """Handles the updates of an arena, and adds immediate answers to out.

        view.next_index does not count updates that block() has not returned yet.
        """
        before, messages = self._struct.records, arena.count
        if messages > len(self._others):
            self._others = uncleared("uint32_t[]", 2 * messages)
        self._others_count[0] = 0
        c, refusal = self._view, ffi.from_buffer(view.refusal)
        c.refusal, c.refusal_size, c.leader = refusal, len(view.refusal), view.leader
        c.next_index, c.commit_index = view.next_index, view.commit_index
        c.now_ms, c.unix_s = view.now_ms, view.unix_s
        c.marked, c.kind = view.marked, view.kind
        found = self._others, self._others_count
        self._fill(lib.klk_updates_receive, out, arena._struct, c, out._struct, *found)
        others = ffi.unpack(self._others, self._others_count[0])
        return IntakeResult(self._struct.records - before, others)

    def _fill(self, function: Any, out: Frames, *arguments: Any) -> None:
        """Calls a function of csrc until it has the room that it asks for."""
        while code := function(self._struct, *arguments):
            self.make_room(code, out)

    def make_room(self, code: int, out: Frames) -> None:
        """Makes the room that a function of csrc has asked for by this code."""
        if code == lib.KLK_EGROW:
            self.reqids._grow()
        elif code == lib.KLK_EFULL:
            out._double()
        elif code == lib.KLK_ESPACE:
            updates, held = self._struct, self._blocks
            size = max(updates.blocks_need, min(2 * updates.blocks_max, 1 << 24))
            self._blocks = uncleared("uint8_t[]", size)
            if updates.records:
                ffi.memmove(self._blocks, held, updates.used)
            updates.blocks, updates.blocks_max = self._blocks, size
        else:
            raise NativeError(code)

    def block(self, first_index: int, term: int) -> tuple[bytes, int] | None:
        """The next sealed block of accepted updates and the number of its updates; or None.

        NativeError: first_index does not follow the view of receive().
        """
        block, count = self._next_block
        size = checked(lib.klk_updates_block(self._struct, first_index, term, block, count))
        if size == 0:
            return None
        return bytes(ffi.buffer(block[0], size)), int(count[0])

    def commit(self, index: int, out: Frames) -> int:
        """Answers the requests for entries up to index. Returns their number."""
        waited = int(self._waiters.waiting)
        if not waited:
            return 0
        out.fill(lib.klk_updates_commit, self._struct, index, out._struct)
        return waited - int(self._waiters.waiting)

    def remind(self, now_ms: int, out: Frames) -> None:
        """Sends "accepted" to requests that wait for REMIND_MS, and again after each such time."""
        out.fill(lib.klk_updates_remind, self._struct, now_ms, out._struct)

    def refuse(self, refusal: bytes, out: Frames) -> int:
        """Refuses all waiting requests with refusal (as in View). Returns their number.

        It drops updates that block() has not returned: remove their ids by Reqids.truncate().
        """
        waited = self._waiters.waiting
        out.fill(lib.klk_updates_refuse, self._struct, refusal, len(refusal), out._struct)
        return int(waited)
