"""The methods of kelek.Log and kelek.AsyncLog (io/operations.py).

Each raises LogNotAllowed if the grants of the client's key do not allow it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED
from ...net.client_keys import ServerKeys
from ...net.clock import monotonic_ms
from ...protocols.errors import RemoteProtocolError
from ...protocols.failover.limits import REACH_MS
from ...protocols.failover.servers import Failover
from ...protocols.limits import NUMBER_MAX
from ...protocols.raft.messages import EntryBatch
from ...protocols.record import RECORD_BYTES_MAX
from ...protocols.reqids import REQID_BYTES
from ...protocols.zmqraft.client.client import (
    BackupStream,
    EntryRun,
    EntryStream,
    LogClientMachine,
    LogClientSetup,
    PendingRead,
    PendingUpdates,
    Query,
    SnapshotPiece,
    Subscription,
    WindowLimits,
)
from ...protocols.zmqraft.client.requests import QueryAnswer
from ...protocols.zmqraft.wire.client_codec import (
    ConfigAnswer,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
)
from ...protocols.zmqraft.wire.entry import Entry
from ...protocols.zmqraft.wire.snapshot_codec import MakeSnapshot, SnapshotMade
from ...protocols.zmqraft.wire.transfer_codec import RequestTransfer, TransferAnswer
from ...protocols.zre import services
from ...version import __version__
from ..aliases import old_name
from ..errors import (
    LogCompacted,
    LogError,
    LogExpired,
    LogNoLeader,
    LogNotAllowed,
    LogRefused,
    LogTimeout,
    LogTooLarge,
    LogUnavailable,
    SnapshotRefused,
    SnapshotUnsupported,
    TransferRefused,
)
from ..io.driver import ClientBase
from ..io.keys import KeyArguments, KeyPath
from ..io.links import DEFAULTS, Links
from ..io.operations import Batches, Operation, Sleep, Wait, batches, items, operation
from ..io.reqids import new_reqid
from ..io.urls import check_url, cluster_of, resolve_urls
from .members import ask_members, index_of, news_of, with_member, without_member

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

PACK_UPDATES = 1024
PACK_BYTES = 256 << 10
COLLECT_S_MAX = 0.002  # A pack waits no longer for the next value of a slow source.
# Reasons that concern the age of a request id. The specification's refusal ("rejected") has no
# reason and usually means it.
EXPIRED = frozenset(("expired", "too early", "forgotten", "rejected"))
TIMEOUT_MS = 30_000
REACH_STEP_MS = 2
APPLY_MS = 2
SEARCHES_A_GRACE = 12

Data = bytes | bytearray | memoryview | str  # A str is sent as UTF-8.


class LogTuning(NamedTuple):
    """Limits and times of a Log; the topology's `clients` settings are the same.

    limits              of the window
    response_ttl_ms     the client searches for a leader when the present one does not answer a
                        request for so long
    election_grace_ms   without a leader, the client queries each peer twelve times in it
    reach_ms            a call fails after so long, instead of its timeout, while each url is
                        unreachable or belongs to another cluster, and none ever led to a peer.
                        None: after 1.5 s if one belongs to another cluster; else the call waits
    """

    limits: WindowLimits = WindowLimits()
    response_ttl_ms: int = 500
    election_grace_ms: int = 300
    reach_ms: int | None = None


def make_client(
    urls: str | Iterable[str],
    cluster: str,
    form: str,
    tuning: LogTuning | None,
    keys: KeyArguments | None = None,
) -> LogClientMachine:
    """The protocol machine of a Log. Raises ValueError, TypeError, KeyUnusable."""
    if form not in ("auto", "node", "text"):
        raise ValueError(f"form is auto, node or text, not {form!r}")
    if not isinstance(urls, str):
        urls = tuple(urls)
    cluster = cluster_of(urls) or cluster
    known = resolve_urls(urls, services.LOG, keys)
    if not known:
        raise ValueError("a Log needs the url of a peer")
    for url in known:
        check_url(url)
    if not isinstance(cluster, str):
        raise TypeError(f"cluster is the ident as str, not {type(cluster).__name__}")
    if not cluster:
        raise ValueError("a Log needs the cluster's ident")
    tuning = tuning or LogTuning()
    setup = LogClientSetup(
        cluster.encode(),
        known,
        __version__,
        None if form == "auto" else Form(form),
        tuning.limits,
        tuning.response_ttl_ms,
        max(1, tuning.election_grace_ms // SEARCHES_A_GRACE),
        notice=True,
        reach_ms=tuning.reach_ms,
    )
    return LogClientMachine(setup, new_reqid, monotonic_ms())


class LogOperations(ClientBase):
    """The methods of one Log over its protocol machine."""

    def __init__(
        self,
        urls: str | Iterable[str],
        cluster: str = "demo",
        *,
        timeout_ms: int = TIMEOUT_MS,
        form: str = "auto",
        tuning: LogTuning | None = None,
        key: KeyPath | None = None,
        server_keys: ServerKeys | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        arguments = KeyArguments(key, server_keys)
        self._client = make_client(urls, cluster, form, tuning, arguments)
        self._own_index = 0  # The last append that this Log knows to be committed.
        self._seen_index = 0  # The last entry that it has read or appended.
        keys = arguments.load(self._client.setup.urls)
        self._own(partial(Links, self._client, DEFAULTS._replace(keys=keys)))

    @operation
    def reach(self, timeout_ms: int = REACH_MS) -> Operation[None]:
        """Waits until a peer of the cluster has answered, with or without a
        leader.

        Raises LogUnavailable after timeout_ms. Other calls wait self.timeout_ms
        for peers.
        """
        client = self._client
        give_up_ms = monotonic_ms() + timeout_ms
        while not client.heard:
            if monotonic_ms() >= give_up_ms:
                error = LogUnavailable(client.explain(timeout_ms))
                error._is_silent = client.failover.is_silent
                raise error
            yield Sleep(REACH_STEP_MS)

    # ---- writing ----

    def _settle(self, pending: PendingUpdates, count: int) -> Operation[None]:
        """Waits until values are committed; count of this call precede them.

        Raises LogExpired, LogNotAllowed, LogRefused.
        """
        yield Wait(lambda: bool(pending.runs or pending.refusal))
        if pending.is_denied:
            raise LogNotAllowed(pending.refusal, count)
        if pending.refusal:
            kind = LogExpired if pending.refusal in EXPIRED else LogRefused
            raise kind(pending.refusal, count)
        number, first_index = pending.runs[-1]
        self._own_index = max(self._own_index, first_index + number - 1)
        self._seen_index = max(self._seen_index, self._own_index)

    # ---- reading ----

    @items
    def entries(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> Batches[Entry]:
        """The entries after LOG INDEX after: all that are committed, or count
        of them.

        They include every entry that was acknowledged to any client before the
        call, and every entry that this Log has read.

        url   a peer that need not lead. It serves what it knows to be
              committed, at least up to what this Log has read. If it does not
              answer, lags behind that, or no longer stores the entries, the
              leader serves them

        Raises LogCompacted when a snapshot has replaced the first of them,
        LogTimeout, LogNoLeader, LogUnavailable.
        """
        return self._entries(after, count, url, decoded)

    @items
    def to_arrow(
        self, after: int = 0, count: int | None = None, *, url: str | None = None
    ) -> Batches["pyarrow.RecordBatch"]:
        """The same entries as Arrow record batches of about 1 MiB each.

        index, term   int64
        type          int8: 0 state, 1 config, 2 checkpoint, 3 table
        reqid         binary; null: the cluster appended the entry
        time          timestamp of the request id, to the second, UTC; null
                      without one
        data          binary

        Raises LogError when pyarrow is not installed, else as entries() does.
        """
        try:
            from ..table.arrow import entries_of
        except ImportError as error:
            raise LogError("Arrow needs pyarrow: pip install 'kelek[arrow]'") from error
        return self._entries(after, count, url, lambda part: [_checked(entries_of, part)])

    def _entries(
        self,
        after: int,
        count: int | None,
        url: str | None,
        decode: Callable[[EntryRun], list[Any]],
    ) -> Batches[Any]:
        check_range("after", after)
        if count is not None:
            check_range("count", count)
        if url is not None:
            check_url(url)
        own_index, seen_index = self._own_index, self._seen_index
        while True:
            stream = self._client.open_stream(EntryStream(after, count, url=url))
            try:
                yield from self._read(stream, decode)
            finally:
                self._client.close_stream(stream)
            if stream.remaining == 0:
                return
            after, count = stream.prev_index, stream.remaining
            if url is not None and after < seen_index:
                url = None  # The peer lags behind what this Log has read; ask the leader.
            elif after >= own_index:
                return
            else:
                yield Sleep(APPLY_MS)  # A foreign leader serves only what it has applied.

    @items
    def backup(
        self, after: int = 0, *, url: str | None = None
    ) -> Batches[SnapshotPiece | EntryBatch]:
        """What restores the log: the entries after LOG INDEX after, as blocks
        that peers store.

        They include every entry that was acknowledged to any client before the
        call. If the peer no longer stores all, and after is 0, the pieces of
        its newest snapshot come first. A piece at offset 0 may come at any
        time: it replaces all that came before.

        url   as for entries()

        Raises LogCompacted when a snapshot has replaced the entries after
        `after`, LogError when the leader serves no backups, and as read_index()
        does.
        """
        check_range("after", after)
        if url is not None:
            check_url(url)
        index = yield from LogOperations.read_index(self, applied=False)
        at = after
        while True:
            stream = BackupStream(at, url=url)
            self._client.open_stream(stream)
            try:
                yield from self._backup_parts(stream, after)
            finally:
                self._client.close_stream(stream)
            at = stream.prev_index
            if at >= index:
                return
            url = None  # The peer lags behind what is committed; ask the leader.
            yield Sleep(APPLY_MS)

    def _backup_parts(
        self, stream: BackupStream, after: int
    ) -> Batches[SnapshotPiece | EntryBatch]:
        while True:
            yield Wait(lambda: stream.done or bool(stream.pieces or stream.runs))
            piece = self._client.next_piece(stream, monotonic_ms())
            run = None if piece else self._client.next_run(stream, monotonic_ms())
            if piece is not None:
                if after:
                    raise LogCompacted(piece.last_index)
                yield [piece]
            elif run is not None:
                yield list(run.batches)
            else:
                _check_allowed(stream)
                return

    def _read(self, stream: EntryStream, decode: Callable[[EntryRun], list[Any]]) -> Batches[Any]:
        while True:
            yield Wait(lambda: stream.done or bool(stream.runs))
            part = self._client.next_run(stream, monotonic_ms())
            if part is None:
                break
            self._seen_index = max(self._seen_index, part.last_index)
            yield decode(part)
        _check_allowed(stream)
        if stream.compacted is not None:
            raise LogCompacted(stream.compacted.last_index)

    @items
    def watch(self, after: int | None = 0) -> Batches[Entry]:
        """The entries after LOG INDEX after (None: from now on), then each new
        one once committed.

        The iterator never ends by itself. It yields every entry once and in
        order, whichever peer leads and however slowly the caller reads. To go
        on after a pause, or in another process, pass the index of the last
        entry. Without a leader it waits. A kelek leader broadcasts entries, and
        the client requests only those that the broadcasts lack; it polls any
        other leader. Raises LogCompacted as entries() does.
        """
        return LogOperations.watch_lists(self, after)

    @batches
    def watch_lists(self, after: int | None = 0) -> Batches[Entry]:
        """As watch(): one list, never empty, of all entries that arrived
        together."""
        if after is None:
            after = (yield from LogOperations.info(self)).applied_index
        check_range("after", after)
        subscription = self._client.subscribe(Subscription(after))
        try:
            while True:
                yield Wait(lambda: subscription.readable, limited=False)
                part = subscription.next_run(self._client, monotonic_ms())
                if part is not None:
                    yield decoded(part)
                elif subscription.denial:
                    raise LogNotAllowed(subscription.denial)
                elif subscription.compacted is not None:
                    raise LogCompacted(subscription.compacted.last_index)
        finally:
            self._client.unsubscribe(subscription)

    @operation
    def read_index(self, *, applied: bool = True) -> Operation[int]:
        """A linearizable read: a LOG INDEX at or above every append
        acknowledged before the call.

        A majority confirms during the call that the leader still leads, so a
        deposed leader never answers. A reader that has applied the log up to
        the index sees the effect of every append that any client had
        acknowledged before the call.

        applied   True: the leader has applied the index, so entries() of this
                  Log reaches it. False: return once the index is confirmed, for
                  state that the caller keeps

        Raises LogError when the leader does not support such reads or form is
        not "auto", LogNoLeader, LogTimeout.
        """
        if self._client.setup.form is not None:
            raise LogError("linearizable reads are an extension: they need form='auto'")
        reads = self._client.reads
        read = reads.add(PendingRead(WAIT_APPLIED if applied else WAIT_CONFIRMED))
        try:
            yield Wait(lambda: read.done)
        finally:
            reads.drop(read)
        if read.refusal:
            raise (LogNotAllowed if read.is_denied else LogError)(read.refusal)
        return read.index

    # ---- the cluster ----

    @operation
    def info(self, url: str | None = None) -> Operation[LogInfo]:
        """Term and indexes of the leader's log, or of that of the peer at url."""
        if url is not None:
            check_url(url)
        answer = yield from self._ask(Query(RequestLogInfo(new_reqid()), url))
        assert isinstance(answer, LogInfo)
        return answer

    @operation
    def make_snapshot(self, url: str | None = None) -> Operation[SnapshotMade]:
        """Orders a snapshot from the leader, or from the peer at url; returns
        once it is durable.

        The peer then drops the entries that the snapshot covers. Raises
        SnapshotRefused with the reason, SnapshotUnsupported when the peer is
        not kelek.
        """
        if url is not None:
            check_url(url)
        ask = Query(MakeSnapshot(new_reqid()), url)
        answer = yield from self._ask(ask)
        assert isinstance(answer, SnapshotMade)
        if answer.reason:
            raise (SnapshotUnsupported if ask.is_foreign else SnapshotRefused)(answer.reason)
        return answer

    @operation
    def state(self) -> Operation[tuple[int, bytes]]:
        """The leader's snapshot: the last LOG INDEX in it, and the state up to
        there.

        (0, b"") when the leader still stores every entry.
        """
        stream = self._client.open_stream(EntryStream(0, wants_state=True))
        try:
            yield Wait(lambda: stream.done)
        finally:
            self._client.close_stream(stream)
        _check_allowed(stream)
        if stream.compacted is None:
            return 0, b""
        return stream.compacted.last_index, b"".join(stream.chunks)

    @operation
    def config(self) -> Operation[ConfigAnswer]:
        """The leader, and the members' ids and urls."""
        answer = yield from self._ask(Query(RequestConfig(new_reqid())))
        assert isinstance(answer, ConfigAnswer)
        return answer

    @operation
    def members(self) -> Operation[dict[str, str]]:
        """PEER ID -> url of each member; during a change, of the members of
        both sets."""
        return dict((yield from LogOperations.config(self)).members or ())

    @operation
    def set_members(self, members: Mapping[str, str]) -> Operation[int]:
        """Replaces the members of the cluster, PEER ID -> url; returns the
        change's LOG INDEX.

        It returns when the change is complete: new members have caught up, and
        removed members no longer count. This may take long; timeout_ms bounds
        the time without news from the leader.

        Raises MembersRefused with the reason, MembersConflict, LogNoLeader,
        LogTimeout. After the last two the change may still happen.
        """
        ask = self._client.query(ask_members(members))
        try:
            while not ask.done:
                yield Wait(news_of(ask))
        finally:
            self._client.drop_query(ask)
        _check_allowed(ask)
        return index_of(ask.answer)

    @operation
    def add_member(self, peer_id: str, url: str) -> Operation[int]:
        """Adds a running peer to the members; see set_members()."""
        members = with_member((yield from LogOperations.members(self)), peer_id, url)
        return (yield from LogOperations.set_members(self, members))

    @operation
    def remove_member(self, peer_id: str) -> Operation[int]:
        """Removes a peer from the members; see set_members()."""
        members = without_member((yield from LogOperations.members(self)), peer_id)
        return (yield from LogOperations.set_members(self, members))

    @operation
    def broadcast_url(self) -> Operation[str | None]:
        """The address at which the leader's state machine broadcasts; None: it
        does not."""
        answer = yield from self._ask(Query(RequestBroadcastStateUrl(new_reqid())))
        assert answer is None or isinstance(answer, str)
        return answer

    @operation
    def transfer(self, to: str | None = None) -> Operation[str]:
        """Moves the leadership to the member `to`, by default to the most
        advanced follower.

        Returns the PEER ID of the new leader once it leads. Appends wait some
        milliseconds; none is lost or refused. Raises TransferRefused with the
        reason (`to` is no voter, is not reachable, does not support transfers,
        or did not take over within an election timeout), LogNoLeader,
        LogTimeout.
        """
        if to is not None and not isinstance(to, str):
            raise TypeError(f"to is a PEER ID as str, not {type(to).__name__}")
        away = "" if to else (yield from LogOperations.config(self)).leader or ""
        answer = yield from self._ask(Query(RequestTransfer(new_reqid(), to or "", away)))
        assert isinstance(answer, TransferAnswer)
        if answer.leader is None:
            raise TransferRefused(answer.reason)
        return answer.leader

    def _ask(self, ask: Query) -> Operation[QueryAnswer]:
        self._client.query(ask)
        try:
            yield Wait(lambda: ask.done)
        finally:
            self._client.drop_query(ask)
        _check_allowed(ask)
        return ask.answer

    subscribe = old_name("subscribe", watch)
    subscribe_lists = old_name("subscribe_lists", watch_lists)
    follow = old_name("follow", watch)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of events: searches, leaders, refused, gaps, silent, junk,
        strays."""
        return dict(self._client.counters)

    def _closed_error(self) -> LogError:
        return LogError(f"this {type(self).__name__} is closed")

    @property
    def _search(self) -> Failover[Any]:
        return self._client.failover

    def _timeout_error(self) -> LogTimeout:
        if self._client.leader is None:
            kind = LogUnavailable if self._client.failover.is_hopeless else LogNoLeader
            return kind(self._client.explain(self.timeout_ms))
        return LogTimeout(f"no progress for {self.timeout_ms} ms")


def _check_allowed(request: Query | EntryStream) -> None:
    """Raises LogNotAllowed if this client's key does not allow the request."""
    if request.denial:
        raise LogNotAllowed(request.denial)


def decoded(part: EntryRun) -> list[Entry]:
    return _checked(EntryRun.decoded, part)


def _checked(decode: Callable[[EntryRun], T], part: EntryRun) -> T:
    try:
        return decode(part)
    except RemoteProtocolError as error:
        raise LogError(f"the leader sent a malformed entry: {error}") from error


def check_range(name: str, value: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} is int, not {type(value).__name__}")
    if not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{name} is 0 to {NUMBER_MAX}, not {value}")


def checked(data: Data) -> bytes:
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a value is bytes or a str, not {type(data).__name__}")
    data = bytes(data)
    if not 0 < len(data) <= RECORD_BYTES_MAX:
        raise LogTooLarge(f"a value has 1 to {RECORD_BYTES_MAX} bytes, not {len(data)}")
    return data


def packs(values: Iterable[Data]) -> Iterator[list[bytes]]:
    """Groups values into packs: full ones, or what a slow source yields within COLLECT_S_MAX."""
    clock = time.monotonic
    pack: list[bytes] = []
    size = 0
    until_s = 0.0
    for item in values:
        data = item if isinstance(item, bytes) and 0 < len(item) <= PACK_BYTES else checked(item)
        size += len(data)
        if size > PACK_BYTES and pack:
            yield pack
            pack, size = [], len(data)
        if not pack:
            until_s = clock() + COLLECT_S_MAX
        pack.append(data)
        if len(pack) == PACK_UPDATES or clock() >= until_s:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack


def reqids_of(source: Iterator[bytes], number: int) -> list[bytes]:
    """The next request ids of a caller. Raises ValueError: too few, or of another size."""
    ids = list(islice(source, number))
    if len(ids) < number or any(len(each) != REQID_BYTES for each in ids):
        raise ValueError(f"reqids has {REQID_BYTES} bytes for each value")
    return ids
