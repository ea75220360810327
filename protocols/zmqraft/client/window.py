"""The window: a client's updates that are sent and not yet answered, in order.

A pack is one message to a leader that knows packs, and single updates to any other. Each pack names
the request id of the update before it, so a leader recognises a gap; no update overtakes an earlier
one (docs/protocols/zmq-raft.md, "Order").
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import RemoteProtocolError
from ..wire.client_codec import (
    Form,
    RequestUpdate,
    UpdateAnswer,
    UpdateStatus,
    encode_client_request,
)
from ..wire.extensions import (
    PACK_ACCEPTED,
    PACK_BYTES_MAX,
    PACK_REFUSED,
    PACK_REQUEST,
    Pack,
    PackAnswer,
    pack_records,
)

AFTER_REFUSED = "an update before it was refused"
SINGLES_FIRST = 256  # Unanswered single updates at first, ...
SINGLES_MIN = 16  # ... and at least.
# If so many commits take less or more than this, the limit grows or shrinks.
FAST_MS, SLOW_MS = 100, 250
DOUBLINGS_MAX = 4  # Of the time limit of a silent leader.


class WindowLimits(NamedTuple):
    """Limits of unanswered updates."""

    packs: int = 16
    updates: int = 1 << 15
    bytes: int = 8 << 20


@dataclass(slots=True)
class FlowControl:
    """Limits the unanswered single updates to a leader without packs, and its response time.

    A foreign leader processes one message at a time. With thousands queued it would be silent for
    longer than followers and clients wait. So it gets only as many as it commits in a fraction of
    that time.
    """

    singles_max: int
    singles_allowed: int = field(init=False)
    # Since its last answer; each doubles its time limit.
    silences: int = field(init=False, default=0)
    _is_limited: bool = field(init=False, default=False)  # An update waits for the limit, ...
    _limited_since_ms: int = field(init=False, default=0)  # ... since this time, ...
    _commits: int = field(init=False, default=0)  # ... and so many commits followed.

    def __post_init__(self) -> None:
        self.singles_allowed = min(SINGLES_FIRST, self.singles_max)

    def on_limited(self, now_ms: int) -> None:
        if not self._is_limited:
            self._is_limited, self._limited_since_ms, self._commits = True, now_ms, 0

    def on_commit(self, now_ms: int) -> None:
        """An update is committed. After as many commits as the limit, their time adjusts the
        limit."""
        self._commits += 1
        if not self._is_limited or self._commits < self.singles_allowed:
            return
        self._is_limited = False
        took_ms = now_ms - self._limited_since_ms
        if took_ms <= FAST_MS:
            self.singles_allowed = min(2 * self.singles_allowed, self.singles_max)
        elif took_ms > SLOW_MS:
            self._shrink()

    def on_silence(self) -> None:
        """The leader did not answer in time: all updates are repeated, fewer at once."""
        self.silences = min(self.silences + 1, DOUBLINGS_MAX)
        self._is_limited = False
        self._shrink()

    def _shrink(self) -> None:
        self.singles_allowed = max(self.singles_allowed // 2, min(SINGLES_MIN, self.singles_max))


@dataclass(slots=True, eq=False)
class PendingUpdates:
    """Some unanswered updates in order, at most one pack."""

    reqids: Sequence[bytes]
    updates: Sequence[bytes]
    size: int = field(init=False)
    # When it was sent, became the first, or got its last answer.
    heard_ms: int = field(init=False, default=0)
    # When committed: pairs (count, first index), in order.
    runs: tuple[tuple[int, int], ...] = field(init=False, default=())
    # Why it is refused for good, and the position of the refused update; it has left the window
    # then.
    refusal: str = field(init=False, default="")
    refused_position: int = field(init=False, default=0)
    # The refusal is for want of a grant: the key of this client may not append.
    is_denied: bool = field(init=False, default=False)
    encoded_records: bytes | None = field(init=False, default=None)  # The records, framed once.
    # The indexes of single updates, 0 while unknown.
    single_indexes: list[int] = field(init=False, default_factory=list)
    missing: int = field(init=False)
    # So many of them went to the present leader as single updates.
    sent: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.updates))
        self.missing = len(self.updates)

    def records(self) -> bytes:
        if self.encoded_records is None:
            self.encoded_records = pack_records(self.reqids, self.updates)
        return self.encoded_records


class Window:
    """All unanswered updates. The present leader has been sent a prefix of them."""

    def __init__(self, cluster: bytes, limits: WindowLimits) -> None:
        self.cluster = cluster
        self.limits = limits
        self.items: deque[PendingUpdates] = deque()
        self.sent = 0  # So many items were sent to the present leader.
        self.packs_allowed = limits.packs  # So many items may be sent.
        self.count = 0
        self.size = 0
        self.flow = FlowControl(limits.updates)
        self._unanswered_singles = 0  # Single updates without an answer of the present leader.
        self._packs: dict[bytes, PendingUpdates] = {}
        self.singles: dict[bytes, tuple[PendingUpdates, int]] = {}

    @property
    def has_room(self) -> bool:
        return (
            len(self.items) < self.limits.packs
            and self.count < self.limits.updates
            and self.size < self.limits.bytes
        )

    def accepts(self, reqids: Sequence[bytes]) -> bool:
        """Whether there is room for a pack with these ids.

        A caller may repeat updates after a timeout: they wait until the first ones have left.
        """
        if not self.has_room or reqids[0] in self._packs:
            return False
        return not self.singles or self.singles.keys().isdisjoint(reqids)

    def add(self, pending: PendingUpdates) -> None:
        assert pending.updates
        assert pending.reqids[0] not in self._packs
        assert len(pending.reqids) == len(pending.updates)
        assert len(pending.updates) == 1 or pending.size <= PACK_BYTES_MAX
        self.items.append(pending)
        self._packs[pending.reqids[0]] = pending
        self.count += len(pending.updates)
        self.size += pending.size

    def add_sent(self, pending: PendingUpdates, records: bytes, now_ms: int) -> None:
        """Adds a pack that the owner has sent to the present leader itself, behind all others,
        which are sent, too."""
        pending.encoded_records, pending.heard_ms = records, now_ms
        self.add(pending)
        self.sent += 1

    def rewind(self) -> None:
        """After a new leader or a gap: all updates are sent again before any new one."""
        self.sent = self._unanswered_singles = 0
        for pending in self.items:
            pending.sent = 0

    def halve_packs(self) -> None:
        """The leader could not queue so many packs. Each commit allows one more."""
        self.packs_allowed = max(1, min(self.packs_allowed, self.sent) // 2)

    def awaits(self, reqid: bytes) -> bool:
        """Whether an answer to this id is outstanding."""
        return reqid in self._packs or reqid in self.singles

    @property
    def heard_ms(self) -> int | None:
        """Since when the present leader owes an answer; None: it has been sent nothing."""
        if self.items and (self.sent or self.items[0].sent):
            return self.items[0].heard_ms
        return None

    def unsent(self, form: Form | None, now_ms: int) -> Iterable[list[bytes]]:
        """Yields the messages to send to the present leader now; form None: packs."""
        if form is not None:
            yield from self._unsent_singles(form, now_ms)
            return
        end = min(len(self.items), self.packs_allowed)
        for position in range(self.sent, end):
            pending = self.items[position]
            pending.heard_ms = now_ms
            # Empty: all earlier updates are committed, because they have left the window.
            previous = self.items[position - 1].reqids[-1] if position else b""
            pack = Pack(pending.reqids[0], previous, pending.records())
            yield PACK_REQUEST.encode(pack, cluster=self.cluster)
        self.sent = max(self.sent, end)

    def _unsent_singles(self, form: Form, now_ms: int) -> Iterable[list[bytes]]:
        while self.sent < len(self.items):
            pending = self.items[self.sent]
            if not pending.sent:
                pending.heard_ms = now_ms
                pending.single_indexes = pending.single_indexes or [0] * len(pending.updates)
            while pending.sent < len(pending.reqids):
                if self._unanswered_singles >= self.flow.singles_allowed:
                    self.flow.on_limited(now_ms)
                    return
                position, reqid = pending.sent, pending.reqids[pending.sent]
                pending.sent += 1
                if not pending.single_indexes[position]:
                    self._unanswered_singles += 1
                    self.singles[reqid] = pending, position
                    update = RequestUpdate(reqid, pending.updates[position])
                    yield encode_client_request(update, self.cluster, form)
            self.sent += 1

    def on_pack_answer(self, reqid: bytes, answer: PackAnswer, now_ms: int) -> None:
        """Processes ACCEPTED and REFUSED. Ignores answers to packs that have left the window."""
        pending = self._packs.get(reqid)
        if pending is None:
            return
        if answer.status == PACK_REFUSED:
            if answer.position >= len(pending.updates):
                raise RemoteProtocolError("a pack is refused for a record that it does not have")
            self._refuse(pending, answer.position, answer.reason or "refused")
        elif answer.status == PACK_ACCEPTED:
            pending.heard_ms = now_ms
            if answer.runs:
                count = sum(count for count, _ in answer.runs)
                if count != len(pending.updates):
                    raise RemoteProtocolError(f"{count} indexes for {len(pending.updates)} updates")
                pending.runs = answer.runs
                self._collect(now_ms)

    def on_update_answer(self, reqid: bytes, answer: UpdateAnswer, now_ms: int) -> None:
        """Processes the answers to single updates, except REFUSED."""
        pending, position = self.singles.get(reqid, (None, 0))
        if pending is None:
            return
        self.items[0].heard_ms = now_ms  # Any answer shows that the leader works.
        self.flow.silences = 0
        if answer.status is UpdateStatus.REJECTED:
            self._refuse(pending, position, "rejected")
        elif answer.status is UpdateStatus.COMMITTED:
            if not answer.log_index:
                raise RemoteProtocolError("an update committed at index 0")
            del self.singles[reqid]
            pending.single_indexes[position] = answer.log_index
            pending.missing -= 1
            self._unanswered_singles -= position < pending.sent
            self.flow.on_commit(now_ms)
            if not pending.missing:
                pending.runs = runs_of(pending.single_indexes)
                self._collect(now_ms)

    def _collect(self, now_ms: int) -> None:
        while self.items and self.items[0].runs:
            pending = self.items.popleft()
            self.sent = max(self.sent - 1, 0)  # An answer may arrive late, after a rewind.
            self.packs_allowed = min(self.packs_allowed + 1, self.limits.packs)
            self._forget(pending)
        if self.items:
            # The leader could not answer it before the earlier ones.
            self.items[0].heard_ms = now_ms

    def on_denied(self, reqid: bytes, reason: str) -> None:
        """The key of this client may not append these updates, nor the later ones."""
        pending, position = self.singles.get(reqid) or (self._packs[reqid], 0)
        self._refuse(pending, position, reason, is_denied=True)

    def _refuse(
        self, pending: PendingUpdates, position: int, reason: str, is_denied: bool = False
    ) -> None:
        """Refuses it and all later ones: they name a refused update as previous, so no leader
        accepts them."""
        while pending.refusal == "":
            last = self.items.pop()
            last.refusal, last.refused_position = reason if is_denied else AFTER_REFUSED, 0
            last.is_denied = is_denied
            if last is pending:
                last.refusal, last.refused_position = reason, position
            self._unanswered_singles -= last.single_indexes[: last.sent].count(0)
            self._forget(last)
        self.sent = min(self.sent, len(self.items))

    def _forget(self, pending: PendingUpdates) -> None:
        self.count -= len(pending.updates)
        self.size -= pending.size
        del self._packs[pending.reqids[0]]
        if self.singles:
            for reqid in pending.reqids:
                self.singles.pop(reqid, None)


def runs_of(indexes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Returns (count, first index) of each run of consecutive indexes."""
    runs: list[tuple[int, int]] = []
    count = first = 0
    for index in indexes:
        if count and index == first + count:
            count += 1
            continue
        if count:
            runs.append((count, first))
        count, first = 1, index
    return (*runs, (count, first)) if count else ()
