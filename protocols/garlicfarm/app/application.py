"""The application of one farm server: it applies the log, posts documents and drives the router.

It reads no clock. Its owner calls wake() before the peer's wake(), and at deadline_ms. A posted
document is confirmed when it appears in the log, so no answer is awaited.
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

APPLY_BYTES_MAX = 1 << 20  # Of the log, per wake.
APPLY_DELAY_MS = 20  # An entry is applied at most so long after its commit.
VIEW_READS_MAX = 16  # Reads of APPLY_BYTES_MAX before a view is rendered.
SNAPSHOT_READ_BYTES = 1 << 20  # Of a snapshot, per read.
READ_RETRY_MS = 100
# A document that is not in the log after it is posted again; the delay doubles up to RETRY_MS_MAX.
RETRY_MS_FIRST = 2000
RETRY_MS_MAX = 60_000
NEVER_MS = 1 << 62
_SPREAD = 0x9E3779B9  # Times an id, modulo 2**32: consecutive ids get distant phases.


class AppSetup(NamedTuple):
    """The administrator's settings of one server.

    publish_config     whether this server wants to publish the MetaLS
    post_interval_ms   between its documents unless the farm has a setting; 0: it posts none
    admins             users with the admin mark, for /status
    """

    cluster: str
    publish_config: PublishConfig = PublishConfig.AUTO
    post_interval_ms: int = 60_000
    admins: frozenset[str] = frozenset()


class Application:
    """The application of one farm on one server. It implements StatusSource."""

    def __init__(
        self,
        setup: AppSetup,
        peer: FarmPeer,
        router: Router,
        connection_info: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        """connection_info: the owner's figures about connections, for /status."""
        self.setup = setup
        self.peer = peer
        self.state = SharedState(setup.cluster)
        self.connection_info = connection_info
        self.unreadable_snapshots = 0  # Snapshots in a format of another implementation.
        self.posted = 0  # Documents sent to the leader.
        self.last_date_ms = 0  # The date of the last one.
        self.router_error = ""  # The problem with the router's status.
        self._router = router
        self._resets = peer.own_membership.resets
        self._publication: Publication | None = None
        # The state and members of the last call to the router.
        self._published_key: tuple[object, ...] | None = None
        # The state of the cached contents, and the contents.
        self._contents: tuple[tuple[object, ...], tuple[Leaf, ...]] = ((), ())
        self._is_posting = False  # Our last document is not in the log yet.
        self._posted_ms: int | None = None  # When our last document appeared in the log.
        self._post_retry_ms = 0  # When to post it again.
        self._retry_ms = RETRY_MS_FIRST
        self._read_due_ms: int | None = None  # When to read the log; None: no new entries.
        self._restored = 0  # How often the state was restored.
        self._restore()

    # ---- the log ----

    def _restore(self) -> None:
        """Starts from the peer's snapshot."""
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
        """Whether the state lacks committed entries."""
        return self.peer.readable_index > self.state.index

    def _apply_committed(self, now_ms: int) -> None:
        """Applies committed entries in groups: at most APPLY_DELAY_MS after their commit,
        APPLY_BYTES_MAX per wake.
        """
        self._restore_if_reset()
        if self.is_behind and self._read_due_ms is None:
            self._read_due_ms = now_ms + APPLY_DELAY_MS
        elif self._read_due_ms is not None and now_ms >= self._read_due_ms:
            # A failed read is retried later, so that the loop does not spin.
            self._read_due_ms = now_ms if self._read_log() else now_ms + READ_RETRY_MS
        if not self.is_behind:
            self._read_due_ms = None

    def _restore_if_reset(self) -> None:
        """Restores the state after a snapshot was installed or an invitation emptied the log."""
        resets = self.peer.own_membership.resets
        if resets != self._resets or self.peer.snapshot.last_index > self.state.index:
            self._resets = resets
            self._restore()

    def _read_log(self) -> bool:
        """Applies up to APPLY_BYTES_MAX of committed entries; returns whether there were any."""
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
        """The state encoded as chunks, and its metadata."""
        index = self.state.index
        term = self.peer.core.log.term_at(index)
        assert term is not None, "the log's base is at most the applied index"
        return FarmSnapshot(index, term, self.peer.directory.at(index)), [self.state.encode()]

    # ---- publishing ----

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of the committed Configuration, sorted."""
        return tuple(sorted(server.id for server in self.peer.directory.committed.servers))

    @property
    def publisher(self) -> int | None:
        return self.state.publisher(self.members)

    @property
    def contents(self) -> tuple[Leaf, ...]:
        """The contents of the MetaLS, cached until a document, an order or a member changes."""
        key = (self.state.changes, self._restored, self.members)
        if key != self._contents[0]:
            self._contents = key, tuple(self.state.contents(self.members))
        return self._contents[1]

    def _publish(self) -> None:
        """Calls the router when the publication changes. After a start it waits until an entry
        of the current term is committed, as the state may be old until then.
        """
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
        publication = None
        if self.publisher == own and self.peer.is_member:
            publication = Publication(state.published_index, self.contents)
        if publication != self._publication or is_first:
            self._publication = publication
            self._router.publish(self.setup.cluster, publication)

    # ---- documents ----

    @property
    def post_interval_ms(self) -> int:
        """The interval between documents. An order's setting has priority over the server's own."""
        interval_ms = self.state.config.settings.get("postingInterval", self.setup.post_interval_ms)
        assert isinstance(interval_ms, int), "decode_export() checks it"
        return interval_ms

    @property
    def logged_date_ms(self) -> int:
        """The date of our last document in the log; 0: none."""
        posted = self.state.posted.get(self.peer.setup.server_id)
        return posted.status.date_ms if posted else 0

    def _check_posted(self, now_ms: int) -> None:
        """Notes that our posted document has appeared in the log."""
        if self._is_posting and self.logged_date_ms == self.last_date_ms:
            self._is_posting, self._posted_ms, self._retry_ms = False, now_ms, RETRY_MS_FIRST

    @property
    def _due_ms(self) -> int:
        """When to post next: the first document at once, later ones at this server's phase of
        the interval, at least half an interval apart.
        """
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
        """Posts a document when it is due, and repeats it until it is in the log."""
        if self.is_behind or now_ms < self._due_ms:
            return
        date_ms = max(date_ms, self.last_date_ms + 1)
        if self.peer.post(self._document(date_ms), now_ms):
            self.posted += 1
            self._is_posting, self.last_date_ms = True, date_ms
        self._post_retry_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _document(self, date_ms: int) -> bytes:
        """Our status document, without the router's part if that is malformed."""
        status = self._router.status(self.setup.cluster)
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
            raise LocalProtocolError("meta of a document must be an object")
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
        """Does what is due; then call the peer's wake().

        now_ms    the time as in the peer
        date_ms   milliseconds since the epoch, for documents
        """
        self._apply_committed(now_ms)
        self._check_posted(now_ms)
        self._publish()
        self._post(now_ms, date_ms)

    @property
    def deadline_ms(self) -> int:
        """The latest time for the next wake()."""
        if self.is_behind:
            return 0 if self._read_due_ms is None else self._read_due_ms
        return self._due_ms

    def render(self, view: ViewRequest) -> bytes:
        """Renders a view, after it has applied what is committed."""
        self._restore_if_reset()
        for _ in range(VIEW_READS_MAX):
            if not self.is_behind or not self._read_log():
                break
        return views.render_view(self, view)
