"""The application of one server of a farm: follows the log, posts documents, tells the router.

It reads no clock: its owner calls wake() before the peer's own, and again at deadline_ms. What was
posted is known to be there when it comes back in the log, so no answer is waited for.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...errors import LocalProtocolError, RemoteProtocolError
from ...raft.messages import KIND_STATE
from ...record import block_kind, decode_block
from ..server.peer import FarmPeer
from ..server.values import SnapshotMark
from ..wire.http_api import View
from . import views
from .documents import PublishConfig, encode_status, may_hold_document
from .router import KEYS, Publication, Router
from .state import STATE_BYTES_MAX, Leaf, SharedState

APPLY_BYTES = 1 << 20  # Of the log, in one wake.
FOLLOW_MS = 20  # So much later than it is committed at most an entry is applied.
SHOW_READS_MAX = 16  # Of APPLY_BYTES, before something is shown.
READ_BYTES = 1 << 20  # Of a snapshot, at a time.
RETRY_MS_MIN = 100
RETRY_MS = 2000  # What is not in the log by then is posted again; then after twice as long ..
RETRY_MS_MAX = 60_000  # .. and no longer than this.
NEVER_MS = 1 << 62
_SPREAD = 0x9E3779B9  # Of 2**32: ids that follow each other fall far apart.


class AppSetup(NamedTuple):
    """What a server's administrator has set up.

    publish_config     whether this server wants to publish the MetaLS
    post_interval_ms   between its documents, unless the farm has a setting; 0: it posts none
    admins             users with the admin mark: they are told so
    """

    cluster: str
    publish_config: PublishConfig = PublishConfig.AUTO
    post_interval_ms: int = 60_000
    admins: frozenset[str] = frozenset()


class Application:
    """One farm's, on one server. It is a Face as well."""

    def __init__(
        self,
        setup: AppSetup,
        peer: FarmPeer,
        router: Router,
        extra: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """extra: what its owner has to say about connections, for /status."""
        self.setup = setup
        self.peer = peer
        self.state = SharedState(setup.cluster)
        self.extra = extra
        self.not_understood = 0  # Snapshots of servers of another make.
        self.posted = 0  # Documents sent on their way to the leader.
        self.last_date_ms = 0  # Of the last of them.
        self.error = ""  # What is wrong with the router's own words.
        self._router = router
        self._resets = peer.resets
        self._publication: Publication | None = None
        self._told: tuple[object, ...] | None = None  # Of which state, with which members.
        self._contents: tuple[tuple[object, ...], tuple[Leaf, ...]] = ((), ())  # Of which state.
        self._awaited = False  # A document of ours is on its way.
        self._kept_ms: int | None = None  # When the last one came back in the log.
        self._again_ms = 0  # When to post again, while none came back.
        self._retry_ms = RETRY_MS
        self._look_ms: int | None = None  # When to read the log; None: nothing is new.
        self._restored = 0  # How often the state began with a snapshot, or empty.
        self._restore()

    # ---- the log ----

    def _restore(self) -> None:
        """Begins with the peer's snapshot."""
        mark = self.peer.snapshot
        self._restored += 1
        self.state = SharedState(self.setup.cluster)
        if mark.last_index:
            try:
                self.state = SharedState.decode(self._read_snapshot(mark), self.setup.cluster)
            except RemoteProtocolError:
                self.not_understood += 1
        self.state.index = mark.last_index

    def _read_snapshot(self, mark: SnapshotMark) -> bytes:
        if mark.size > STATE_BYTES_MAX:
            raise RemoteProtocolError(f"a snapshot of {mark.size} bytes")
        pieces = [
            self.peer.read_snapshot(offset, min(READ_BYTES, mark.size - offset))
            for offset in range(0, mark.size, READ_BYTES)
        ]
        return b"".join(piece for piece in pieces if piece is not None)

    @property
    def is_behind(self) -> bool:
        """Whether there are committed entries that are not in the state."""
        return self.peer.readable_index > self.state.index

    def _follow(self, now_ms: int) -> None:
        """Takes in what is committed, a piece of it: not each entry by itself when many come."""
        self._begin_anew()
        if self.is_behind and self._look_ms is None:
            self._look_ms = now_ms + FOLLOW_MS
        elif self._look_ms is not None and now_ms >= self._look_ms:
            # What could not be read just now is no reason to turn for ever.
            self._look_ms = now_ms if self._read_log() else now_ms + RETRY_MS_MIN
        if not self.is_behind:
            self._look_ms = None

    def _begin_anew(self) -> None:
        """Where a snapshot has come in, or the log was emptied because we are invited."""
        peer = self.peer
        if peer.resets != self._resets or peer.snapshot.last_index > self.state.index:
            self._resets = peer.resets
            self._restore()

    def _read_log(self) -> bool:
        """Applies a piece of what is committed; whether there was any."""
        state, last_index = self.state, self.peer.readable_index
        before = state.index
        for batch in self.peer.read(before + 1, APPLY_BYTES):
            if not may_hold_document(batch.block) and block_kind(batch.block) == KIND_STATE:
                state.skip(min(batch.last_index, last_index))
                continue
            for at, record in enumerate(decode_block(batch.block)[1], batch.first_index):
                if not state.index < at <= last_index:
                    continue
                if record.kind == KIND_STATE:
                    state.apply(at, record.data)
                state.index = at
        return state.index > before

    def snapshot(self) -> tuple[SnapshotMark, list[bytes]]:
        """The state, and what a snapshot of it ends with."""
        index = self.state.index
        term = self.peer.core.log.term_at(index)
        assert term is not None, "the log begins at or below what we have applied"
        return SnapshotMark(index, term, self.peer.roster.at(index)), [self.state.encode()]

    # ---- who publishes ----

    @property
    def members(self) -> tuple[int, ...]:
        """The committed Configuration's, by id."""
        return tuple(sorted(server.id for server in self.peer.roster.committed.servers))

    @property
    def publisher(self) -> int | None:
        return self.state.publisher(self.members)

    @property
    def contents(self) -> tuple[Leaf, ...]:
        """Of the MetaLS; worked out anew when a document, an order or a member has come or gone."""
        key = (self.state.changes, self._restored, self.members)
        if key != self._contents[0]:
            self._contents = key, tuple(self.state.contents(self.members))
        return self._contents[1]

    def _publish(self) -> None:
        """Tells the router whenever something else is to be published by it; after a start not
        before an entry of the term is committed, as until then it may be as it was."""
        if self.is_behind:
            return
        core, state = self.peer.core, self.state
        key = (state.changes, self._restored, self.peer.is_member, self.members)
        is_first = self._told is None
        if key == self._told:
            return
        if is_first and core.log.term_at(self.peer.readable_index) != core.term:
            return
        self._told = key
        own = self.peer.setup.server_id
        if self.publisher == own and self.peer.is_member:
            publication = Publication(self.setup.cluster, state.published_index, self.contents)
            if publication != self._publication:
                self._publication = publication
                self._router.publish(publication)
        elif self._publication is not None or is_first:
            self._publication = None
            self._router.stop()

    # ---- documents ----

    @property
    def post_interval_ms(self) -> int:
        """Between documents: what an order has set for the farm counts before our own setting."""
        wish = self.state.ordered.settings.get("postingInterval", self.setup.post_interval_ms)
        assert isinstance(wish, int), "decode_export has looked"
        return wish

    @property
    def kept_date_ms(self) -> int:
        """Of our last document that is in the log; 0: there is none."""
        posted = self.state.posted.get(self.peer.setup.server_id)
        return posted.status.date_ms if posted else 0

    def _note_kept(self, now_ms: int) -> None:
        """Whether the document that we wait for has come back in the log."""
        if self._awaited and self.kept_date_ms == self.last_date_ms:
            self._awaited, self._kept_ms, self._retry_ms = False, now_ms, RETRY_MS

    @property
    def _due_ms(self) -> int:
        """When to post next, if ever: the first document at once, the others at our own part of
        the interval, another one for each server, and not before half of one is over."""
        interval_ms = self.post_interval_ms
        is_ready = self.peer.is_member and self.peer.core.leader is not None
        if not is_ready or not interval_ms:
            return NEVER_MS
        if self._awaited or self._kept_ms is None:
            return self._again_ms
        phase_ms = interval_ms * (self.peer.setup.server_id * _SPREAD % (1 << 32)) >> 32
        earliest_ms = self._kept_ms + interval_ms // 2
        return earliest_ms + (phase_ms - earliest_ms) % interval_ms

    def _post(self, now_ms: int, date_ms: int) -> None:
        """Posts a document when it is time, and again when it has not come back."""
        if self.is_behind or now_ms < self._due_ms:
            return
        date_ms = max(date_ms, self.last_date_ms + 1)
        if self.peer.post(self._document(date_ms), now_ms):
            self.posted += 1
            self._awaited, self.last_date_ms = True, date_ms
        self._again_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _document(self, date_ms: int) -> bytes:
        """Our status; without what the router says when that is none."""
        found = self._router.status()
        self.error = found.error
        try:
            said = {key: found.document[key] for key in KEYS if key in found.document}
            return self._encode(said, date_ms)
        except LocalProtocolError as error:
            self.error = str(error)
            return self._encode({}, date_ms)

    def _encode(self, said: Mapping[str, object], date_ms: int) -> bytes:
        own = self.peer.setup.server_id
        meta = said.get("meta", {})
        if not isinstance(meta, Mapping):
            raise LocalProtocolError("meta of a document is an object")
        settings = self.state.ordered.settings
        document = {
            "cluster": self.setup.cluster,
            "date": date_ms,
            "id": own,
            "config": {**settings, "postingInterval": self.post_interval_ms},
            **said,
            "meta": {
                "publishing": self._publication is not None,
                **meta,
                "publishConfig": self.setup.publish_config.value,
            },
        }
        return encode_status(document)

    # ---- one wake ----

    def wake(self, now_ms: int, date_ms: int) -> None:
        """Does what has come up; the peer's wake() comes next.

        now_ms    as the peer has it
        date_ms   since the epoch, for what is posted
        """
        self._follow(now_ms)
        self._note_kept(now_ms)
        self._publish()
        self._post(now_ms, date_ms)

    @property
    def deadline_ms(self) -> int:
        """When wake() must come at the latest."""
        if self.is_behind:
            return 0 if self._look_ms is None else self._look_ms
        return self._due_ms

    def show(self, view: View) -> bytes:
        """What wire/http_api.py's requests see: also what was committed just now."""
        self._begin_anew()
        for _ in range(SHOW_READS_MAX):
            if not self.is_behind or not self._read_log():
                break
        return views.show(self, view)
