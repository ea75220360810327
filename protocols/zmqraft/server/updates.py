"""Updates of clients at `url` and of table servers at `peer_url`, from arrival to answer.

C code decodes, deduplicates and frames them (native/log/updates.py), one intake a socket.
"""

from ....native.log.updates import (
    MARKED_ACCEPTED,
    MARKED_ALONE,
    MARKED_REFUSED,
    IntakeResult,
    Reqids,
    Updates,
    View,
)
from ....native.net.messages import Arena, Frames
from ...raft.core import Raft
from ...raft.messages import KIND_STATE, KIND_TABLES, EntryBatch
from ..membership.directory import MemberDirectory
from ..wire.values import encode_json
from .append_queue import AppendQueue
from .values import REQIDS_EXTRA_TTL_S, OutgoingFrames, UpdateLimits

PRUNE_EVERY_MS = 60_000


class UpdateIntake:
    """The updates that this peer has received and not answered."""

    def __init__(
        self,
        cluster: bytes,
        core: Raft,
        directory: MemberDirectory,
        reqids: Reqids,
        limits: UpdateLimits,
        now_ms: int,
    ) -> None:
        self.reqids = reqids
        self.refusal = encode_json(None)  # Names the leader to clients that must go elsewhere.
        self.unix_s = 0  # When updates last arrived.
        self._core = core
        self._directory = directory
        self._limits = limits
        self._prune_due_ms = now_ms + PRUNE_EVERY_MS
        self._clients, self._tables = (
            Updates(
                cluster,
                reqids,
                record_bytes_max=limits.entry_bytes_max,
                inflight_max=limits.inflight_max,
                inflight_bytes_max=limits.inflight_bytes_max,
                ttl_s=limits.ttl_s,
            )
            for _ in range(2)
        )

    def from_clients(self, arena: Arena, out: Frames, accepts: bool, now_ms: int) -> IntakeResult:
        """Receives the updates among messages at `url`; accepts: this peer leads and may append."""
        marked = MARKED_REFUSED if self._directory.latest.tables_from else MARKED_ACCEPTED
        view = self._view(accepts, now_ms, marked, KIND_STATE)
        return self._clients.receive(arena, view, out)

    def from_tables(self, arena: Arena, out: Frames, accepts: bool, now_ms: int) -> IntakeResult:
        """Receives the packs among messages at `peer_url`.

        Older versions of kelek have no entry kind for tables. While a member may be of such a
        version, these packs become state entries.
        """
        kind = KIND_TABLES if self._directory.latest.tables_from else KIND_STATE
        view = self._view(accepts, now_ms, MARKED_ALONE, kind)
        return self._tables.receive(arena, view, out)

    def _view(self, accepts: bool, now_ms: int, marked: int, kind: int) -> View:
        core = self._core
        return View(
            leader=accepts,
            refusal=self.refusal,
            next_index=core.log.last_index + 1,
            commit_index=core.commit_index,
            now_ms=now_ms,
            unix_s=self.unix_s,
            marked=marked,
            kind=kind,
        )

    def propose(self, queue: AppendQueue) -> None:
        core = self._core
        for updates in (self._clients, self._tables):
            while received := updates.block(core.log.last_index + 1, core.term):
                block, count = received
                queue.propose(EntryBatch(core.log.last_index + 1, count, core.term, block))

    @property
    def waiting(self) -> int:
        return self._clients.waiting + self._tables.waiting

    @property
    def deadlines_ms(self) -> tuple[int | None, int | None]:
        return self._clients.deadline_ms, self._tables.deadline_ms

    def commit(self, index: int, out: OutgoingFrames) -> None:
        """Answers updates up to the commit index."""
        self._clients.commit(index, out.clients)
        self._tables.commit(index, out.peers)

    def refuse(self, out: OutgoingFrames) -> None:
        """This peer no longer leads: sends waiting clients to the leader."""
        self._clients.refuse(self.refusal, out.clients)
        self._tables.refuse(self.refusal, out.peers)

    def run_timers(self, now_ms: int, out: OutgoingFrames) -> None:
        """Tells clients that have waited long that their updates are in progress, and limits the
        table of request ids: by age in log time, then by number, oldest first."""
        for updates, frames in ((self._clients, out.clients), (self._tables, out.peers)):
            if updates.deadline_ms is not None and now_ms >= updates.deadline_ms:
                updates.remind(now_ms, frames)
        limits = self._limits
        if now_ms >= self._prune_due_ms or len(self.reqids) > limits.reqids_max:
            self._prune_due_ms = now_ms + PRUNE_EVERY_MS
            self.reqids.settle(limits.ttl_s + REQIDS_EXTRA_TTL_S, limits.reqids_max)

    def counters(self) -> dict[str, int]:
        tables = self._tables.counters()
        return {name: count + tables[name] for name, count in self._clients.counters().items()}
