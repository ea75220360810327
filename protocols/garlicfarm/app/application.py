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
from ..server.values import FarmSnapshot
from ..wire.http_api import ViewRequest
from . import views
from .documents import PublishConfig, encode_status, may_hold_document
from .router import ROUTER_KEYS, Publication, Router
from .state import STATE_BYTES_MAX, Leaf, SharedState

APPLY_BYTES_MAX = 1 << 20  # Of the log, in one wake.
APPLY_DELAY_MS = 20  # So much later than it is committed at most an entry is applied.
VIEW_READS_MAX = 16  # Of APPLY_BYTES, before something is shown.
SNAPSHOT_READ_BYTES = 1 << 20  # Of a snapshot, at a time.
READ_RETRY_MS = 100
RETRY_MS_FIRST = 2000  # What is not in the log by then is posted again; then after twice as long ..
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
        connection_info: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """extra: what its owner has to say about connections, for /status."""
        self.setup = setup
        self.peer = peer
        self.state = SharedState(setup.cluster)
        self.connection_info = connection_info
        self.unreadable_snapshots = 0  # Snapshots of servers of another make.
        self.posted = 0  # Documents sent on their way to the leader.
        self.last_date_ms = 0  # Of the last of them.
        self.router_error = ""  # What is wrong with the router's own words.
        self._router = router
        self._resets = peer.resets
        self._publication: Publication | None = None
        self._published_key: tuple[object, ...] | None = None  # Of which state, with which members.
        self._contents: tuple[tuple[object, ...], tuple[Leaf, ...]] = ((), ())  # Of which state.
        self._is_posting = False  # A document of ours is on its way.
        self._posted_ms: int | None = None  # When the last one came back in the log.
        self._post_retry_ms = 0  # When to post again, while none came back.
        self._retry_ms = RETRY_MS_FIRST
        self._read_due_ms: int | None = None  # When to read the log; None: nothing is new.
        self._restored = 0  # How often the state began with a snapshot, or empty.
        self._restore()

    # ---- the log ----

    def _restore(self) -> None:
        """Begins with the peer's snapshot."""
        snapshot = self.peer.snapshot
        self._restored += 1
        self.state = SharedState(self.setup.cluster)
        if snapshot.last_index:
            try:
                self.state = SharedState.decode(self._read_snapshot(snapshot), self.setup.cluster)
            except RemoteProtocolError:
                self.unreadable_snapshots += 1
        self.state.index = snapshot.last_index

    def _read_snapshot(self, snapshot: FarmSnapshot) -> bytes:
        if snapshot.size > STATE_BYTES_MAX:
            raise RemoteProtocolError(f"a snapshot of {snapshot.size} bytes")
        chunks = [
            self.peer.read_snapshot(offset, min(SNAPSHOT_READ_BYTES, snapshot.size - offset))
            for offset in range(0, snapshot.size, SNAPSHOT_READ_BYTES)
        ]
        return b"".join(piece for piece in chunks if piece is not None)

    @property
    def is_behind(self) -> bool:
        """Whether there are committed entries that are not in the state."""
        return self.peer.readable_index > self.state.index

    def _apply_committed(self, now_ms: int) -> None:
        """Takes in what is committed, a piece of it: not each entry by itself when many come."""
        self._restore_if_reset()
        if self.is_behind and self._read_due_ms is None:
            self._read_due_ms = now_ms + APPLY_DELAY_MS
        elif self._read_due_ms is not None and now_ms >= self._read_due_ms:
            # What could not be read just now is no reason to turn for ever.
            self._read_due_ms = now_ms if self._read_log() else now_ms + READ_RETRY_MS
        if not self.is_behind:
            self._read_due_ms = None

    def _restore_if_reset(self) -> None:
        """Where a snapshot has come in, or the log was emptied because we are invited."""
        peer = self.peer
        if peer.resets != self._resets or peer.snapshot.last_index > self.state.index:
            self._resets = peer.resets
            self._restore()

    def _read_log(self) -> bool:
        """Applies a piece of what is committed; whether there was any."""
        state, last_index = self.state, self.peer.readable_index
        before = state.index
        for batch in self.peer.read(before + 1, APPLY_BYTES_MAX):
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

    def snapshot(self) -> tuple[FarmSnapshot, list[bytes]]:
        """The state, and what a snapshot of it ends with."""
        index = self.state.index
        term = self.peer.core.log.term_at(index)
        assert term is not None, "the log begins at or below what we have applied"
        return FarmSnapshot(index, term, self.peer.directory.at(index)), [self.state.encode()]

    # ---- who publishes ----

    @property
    def members(self) -> tuple[int, ...]:
        """The committed Configuration's, by id."""
        return tuple(sorted(server.id for server in self.peer.directory.committed.servers))

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
        is_first = self._published_key is None
        if key == self._published_key:
            return
        if is_first and core.log.term_at(self.peer.readable_index) != core.term:
            return
        self._published_key = key
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
        interval_ms = self.state.config.settings.get("postingInterval", self.setup.post_interval_ms)
        assert isinstance(interval_ms, int), "decode_export has looked"
        return interval_ms

    @property
    def logged_date_ms(self) -> int:
        """Of our last document that is in the log; 0: there is none."""
        posted = self.state.posted.get(self.peer.setup.server_id)
        return posted.status.date_ms if posted else 0

    def _check_posted(self, now_ms: int) -> None:
        """Whether the document that we wait for has come back in the log."""
        if self._is_posting and self.logged_date_ms == self.last_date_ms:
            self._is_posting, self._posted_ms, self._retry_ms = False, now_ms, RETRY_MS_FIRST

    @property
    def _due_ms(self) -> int:
        """When to post next, if ever: the first document at once, the others at our own part of
        the interval, another one for each server, and not before half of one is over."""
        interval_ms = self.post_interval_ms
        is_ready = self.peer.is_member and self.peer.core.leader is not None
        if not is_ready or not interval_ms:
            return NEVER_MS
        if self._is_posting or self._posted_ms is None:
            return self._post_retry_ms
        phase_ms = interval_ms * (self.peer.setup.server_id * _SPREAD % (1 << 32)) >> 32
        earliest_ms = self._posted_ms + interval_ms // 2
        return earliest_ms + (phase_ms - earliest_ms) % interval_ms

    def _post(self, now_ms: int, date_ms: int) -> None:
        """Posts a document when it is time, and again when it has not come back."""
        if self.is_behind or now_ms < self._due_ms:
            return
        date_ms = max(date_ms, self.last_date_ms + 1)
        if self.peer.post(self._document(date_ms), now_ms):
            self.posted += 1
            self._is_posting, self.last_date_ms = True, date_ms
        self._post_retry_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _document(self, date_ms: int) -> bytes:
        """Our status; without what the router says when that is none."""
        status = self._router.status()
        self.router_error = status.error
        try:
            router_document = {
                key: status.document[key] for key in ROUTER_KEYS if key in status.document
            }
            return self._encode(router_document, date_ms)
        except LocalProtocolError as error:
            self.router_error = str(error)
            return self._encode({}, date_ms)

    def _encode(self, router_document: Mapping[str, object], date_ms: int) -> bytes:
        own = self.peer.setup.server_id
        meta = router_document.get("meta", {})
        if not isinstance(meta, Mapping):
            raise LocalProtocolError("meta of a document is an object")
        settings = self.state.config.settings
        document = {
            "cluster": self.setup.cluster,
            "date": date_ms,
            "id": own,
            "config": {**settings, "postingInterval": self.post_interval_ms},
            **router_document,
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
        self._apply_committed(now_ms)
        self._check_posted(now_ms)
        self._publish()
        self._post(now_ms, date_ms)

    @property
    def deadline_ms(self) -> int:
        """When wake() must come at the latest."""
        if self.is_behind:
            return 0 if self._read_due_ms is None else self._read_due_ms
        return self._due_ms

    def render(self, view: ViewRequest) -> bytes:
        """What wire/http_api.py's requests see: also what was committed just now."""
        self._restore_if_reset()
        for _ in range(VIEW_READS_MAX):
            if not self.is_behind or not self._read_log():
                break
        return views.render_view(self, view)
