"""Plain Python twins of csrc/log/reqids.c and updates.c: dicts and lists."""

import struct
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from kelek.native.log.updates import View

PACK = b"\x6b\x3d"
SECONDS = 65536
Messages = list[list[bytes]]


def seconds_of(reqid: bytes) -> int:
    return int.from_bytes(reqid[:4])


class Reqids:
    """The ids that are kept, in a dict."""

    def __init__(self) -> None:
        self.indexes: dict[bytes, int] = {}
        self.forgotten_s = self.newest_s = 0

    def __len__(self) -> int:
        return len(self.indexes)

    def find(self, reqid: bytes) -> int | None:
        return self.indexes.get(reqid)

    def put(self, reqid: bytes, index: int) -> int | None:
        """The index that the id had already."""
        seconds, had = seconds_of(reqid), self.indexes.get(reqid)
        if reqid == bytes(12) or seconds <= self.forgotten_s:
            return None
        self.indexes[reqid] = min(index, had or index)
        if seconds > self.newest_s:
            self.newest_s = seconds
            self.forget(seconds - SECONDS)
        return had

    def truncate(self, last_index: int) -> None:
        self.indexes = {r: i for r, i in self.indexes.items() if i <= last_index}

    def forget(self, seconds: int) -> None:
        self.forgotten_s = max(self.forgotten_s, seconds)
        self.indexes = {r: i for r, i in self.indexes.items() if seconds_of(r) > self.forgotten_s}

    def bound(self, count_max: int) -> None:
        while len(self.indexes) > count_max:
            self.forget(min(map(seconds_of, self.indexes)))

    def export(self, last_index: int) -> bytes:
        stored = sorted((i, r) for r, i in self.indexes.items() if i <= last_index)
        times = max(self.forgotten_s, 0), self.newest_s
        head = struct.pack("<QQII", len(stored), last_index, *times)
        return head + b"".join(r + struct.pack("<I", last_index - i) for i, r in stored)

    def load(self, data: bytes) -> bool:
        """False when the data is malformed."""
        fresh, index = Reqids(), 0
        if data:
            if len(data) < 24 or len(data) % 16 != 8:
                return False
            count, last_index, fresh.forgotten_s, fresh.newest_s = struct.unpack_from("<QQII", data)
            if not 0 <= fresh.newest_s - fresh.forgotten_s <= SECONDS or 24 + 16 * count != len(
                data
            ):
                return False
            for at in range(24, len(data), 16):
                reqid, (below,) = data[at : at + 12], struct.unpack_from("<I", data, at + 12)
                if not (index < last_index - below and reqid not in fresh.indexes):
                    return False
                if not fresh.forgotten_s < seconds_of(reqid) <= fresh.newest_s:
                    return False
                index = fresh.indexes[reqid] = last_index - below
        self.__dict__.update(fresh.__dict__)
        return True


class Waiter(NamedTuple):
    routing_id: bytes
    reqid: bytes
    pack: bool
    index: int  # type: ignore[assignment]  # It hides tuple.index, which nobody misses.
    runs: list[tuple[int, int]]
    updates: int
    size: int


class Fault(Exception):
    """A pack is refused at a position, for a reason."""


def parse_records(records: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """(reqid, data, the record as it came); Fault at the first that is not well-formed."""
    found: list[tuple[bytes, bytes, bytes]] = []
    at = 0
    while at < len(records):
        start, size, shift = at, 0, 0
        while True:
            if at == len(records) or shift == 28:
                raise Fault(len(found), "malformed", found)
            byte = records[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        minimal = not (shift > 7 and records[at - 1] == 0)
        body = records[at : at + size]
        data_size = size - 13
        if not minimal or len(body) < size or data_size < 0 or data_size > 10 << 20:
            raise Fault(len(found), "malformed", found)
        if body[0] != 0x80:
            raise Fault(len(found), "malformed", found)
        at += size
        found.append((body[1:13], body[13:], records[start:at]))
    return found


class Updates:
    """The intake: what was taken is a list of records, who waits a list of waiters."""

    def __init__(
        self,
        ident: bytes,
        reqids: Reqids,
        record_bytes_max: int,
        inflight_max: int,
        ttl_s: int,
        shared: bool = False,
    ) -> None:
        self.ident, self.reqids, self.ttl_s, self.shared = ident, reqids, ttl_s, shared
        self.record_bytes_max, self.inflight_max = record_bytes_max, inflight_max
        self.records: list[bytes] = []
        self.waiters: list[Waiter] = []
        self.due_ms: list[int] = []  # Beside waiters.
        self.counters: Counter[str] = Counter()
        # Senders of packs that were not taken; or all others, after refuse().
        self._untaken: set[bytes] = set()
        self._all_untaken = False
        self.out: Messages = []
        self.others: list[int] = []

    def _is_untaken(self, routing_id: bytes) -> bool:
        return (routing_id in self._untaken) is not self._all_untaken

    def _set_untaken(self, routing_id: bytes, untaken: bool) -> None:
        if self._is_untaken(routing_id) is not untaken:
            self._untaken ^= {routing_id}

    def _answer(
        self, to: Sequence[bytes], pack: bool, status: bytes, payload: bytes | None
    ) -> None:
        frames = [*to, *([PACK] if pack else []), status]
        if payload is not None or pack:
            frames.append(payload or b"")
        self.out.append(frames)

    def _wait(self, waiter: Waiter, now_ms: int) -> None:
        self.waiters.append(waiter)
        self.due_ms.append(now_ms + 100)

    def _refusal(self, reqid: bytes, unix_s: int) -> str | None:
        seconds = seconds_of(reqid)
        if seconds + self.ttl_s < unix_s:
            return "expired"
        if seconds > unix_s + 900:
            return "too early"
        return "forgotten" if seconds <= self.reqids.forgotten_s else None

    def _over(self, routing_id: bytes, count: int) -> bool:
        inflight = sum(waiter.updates for waiter in self.waiters)
        own = sum(it.updates for it in self.waiters if it.routing_id == routing_id)
        free = self.inflight_max - inflight - count
        return inflight > 0 and (free < 0 or (self.shared and own > 0 and own + count > 3 * free))

    def receive(self, messages: Messages, view: View) -> None:
        self.out, self.others = [], []
        for number, frames in enumerate(messages):
            if len(frames) < 3 or frames[2] not in (b"=", PACK):
                self.others.append(number)
                continue
            routing_id, reqid, type_, *rest = frames
            pack = type_ == PACK
            if pack:
                shape = len(rest) >= 3 and rest[0] == self.ident and len(rest[1]) in (0, 12)
            else:
                shape = len(rest) == 1 or (len(rest) > 1 and rest[0] == self.ident)
            if not shape or len(reqid) != 12:
                self.counters["dropped"] += 1
            elif not view.leader:
                self.counters["astray"] += 1
                if pack:
                    self._set_untaken(routing_id, True)
                self._answer(frames[:2], pack, b"\0" if pack else b"", view.refusal)
            elif pack:
                self._receive_pack(routing_id, reqid, rest[1], rest[2], view)
            else:
                data = (*rest, b"")[1] if rest[0] == self.ident else rest[0]
                self._receive_single(routing_id, reqid, data, view)

    def _receive_single(self, routing_id: bytes, reqid: bytes, data: bytes, view: View) -> None:
        to, known = [routing_id, reqid], self.reqids.find(reqid)
        if known is not None and known <= view.commit_index:
            self.counters["repeated"] += 1
            self._answer(to, False, b"\1", msgpack.packb(known))
        elif known is not None:
            self.counters["repeated"] += 1
            self._answer(to, False, b"\1", None)
            self._wait(Waiter(routing_id, reqid, False, known, [], 0, 0), view.now_ms)
        elif not 0 < len(data) <= self.record_bytes_max or self._refusal(reqid, view.unix_s):
            self.counters["refused"] += 1
            self._answer(to, False, b"", None)
        elif self._over(routing_id, 1):
            self.counters["over"] += 1
        else:
            index = view.next_index + len(self.records)
            self.reqids.put(reqid, index)
            self.records.append(reqid + data)
            self.counters["taken"] += 1
            self._wait(Waiter(routing_id, reqid, False, index, [], 1, 0), view.now_ms)

    def _check_pack(self, reqid: bytes, records: bytes, view: View) -> list[tuple[bytes, bytes]]:
        fault: Fault | None = None
        try:
            found = parse_records(records)
        except Fault as caught:
            fault, found = caught, caught.args[2]
        if not records:
            raise Fault(0, "empty")
        for position, (each, data, _) in enumerate(found):
            if position == 0 and each != reqid:
                raise Fault(0, "malformed")
            if not data:
                raise Fault(position, "empty")
            over = position == 4096 or (position and len(records) > 1 << 20)
            if over or len(data) > self.record_bytes_max:
                raise Fault(position, "too large")
            refusal = self._refusal(each, view.unix_s)
            if refusal and self.reqids.find(each) is None:
                raise Fault(position, refusal)
        if fault:
            raise fault
        return [(each, data) for each, data, _ in found]

    def _receive_pack(
        self, routing_id: bytes, reqid: bytes, previous: bytes, records: bytes, view: View
    ) -> None:
        to = [routing_id, reqid]
        try:
            found = self._check_pack(reqid, records, view)
        except Fault as fault:
            self._set_untaken(routing_id, True)
            self.counters["refused"] += 1
            self._answer(to, True, b"\3", msgpack.packb(list(fault.args[:2])))
            return
        if not previous:
            self._set_untaken(routing_id, False)
        elif self._is_untaken(routing_id) or self.reqids.find(previous) is None:
            self._set_untaken(routing_id, True)
            self.counters["gaps"] += 1
            self._answer(to, True, b"\2", b"")
            return
        if self._over(routing_id, len(found)):
            self._set_untaken(routing_id, True)
            self.counters["over"] += 1
            return
        runs: list[tuple[int, int]] = []
        before = len(self.records)
        for each, data in found:
            index = self.reqids.find(each)
            if index is None:
                index = view.next_index + len(self.records)
                self.reqids.put(each, index)
                self.records.append(each + data)
            if runs and sum(runs[-1]) == index:
                runs[-1] = (runs[-1][0] + 1, runs[-1][1])
            else:
                runs.append((1, index))
        new = len(self.records) - before
        self.counters["taken"] += new
        last = max(count + first - 1 for count, first in runs)
        if not new:
            self.counters["repeated"] += 1
            if last <= view.commit_index:
                self._answer(to, True, b"\1", encode_runs(runs))
                return
            self._answer(to, True, b"\1", b"")
        self._wait(Waiter(routing_id, reqid, True, last, runs, new, 0), view.now_ms)

    def commit(self, index: int) -> Messages:
        self.out = []
        while self.waiters and self.waiters[0].index <= index:
            waiter = self.waiters.pop(0)
            self.due_ms.pop(0)
            payload = encode_runs(waiter.runs) if waiter.pack else msgpack.packb(waiter.index)
            self._answer([waiter.routing_id, waiter.reqid], waiter.pack, b"\1", payload)
        return self.out

    def remind(self, now_ms: int) -> Messages:
        self.out = []
        for i, waiter in enumerate(self.waiters):
            if self.due_ms[i] <= now_ms:
                self.due_ms[i] = now_ms + 100
                self._answer([waiter.routing_id, waiter.reqid], waiter.pack, b"\1", None)
        return self.out

    def refuse(self, refusal: bytes) -> Messages:
        self.out = []
        for waiter in self.waiters:
            status = b"\0" if waiter.pack else b""
            self._answer([waiter.routing_id, waiter.reqid], waiter.pack, status, refusal)
        self.waiters, self.due_ms, self.records = [], [], []
        self._untaken, self._all_untaken = set(), True
        return self.out


def encode_runs(runs: list[tuple[int, int]]) -> bytes:
    return b"".join(
        count.to_bytes(4, "little") + first.to_bytes(8, "little") for count, first in runs
    )
