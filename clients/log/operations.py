"""The operations of kelek.Log and kelek.AsyncLog, as generators that yield what they wait for.

A driver runs them: BlockingDriver polls the sockets itself, AsyncDriver leaves that to asyncio.
The operations do no I/O and never sleep.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...native.log.reads import WAIT_APPLIED, WAIT_CONFIRMED
from ...net.clock import monotonic_ms
from ...protocols.errors import RemoteProtocolError
from ...protocols.record import RECORD_BYTES_MAX
from ...protocols.zmqraft.client.client import (
    EntryRun,
    EntryStream,
    LogClientMachine,
    LogClientSetup,
    PendingRead,
    PendingUpdates,
    Query,
    Subscription,
    TransferQuery,
    WindowLimits,
)
from ...protocols.zmqraft.wire.client_codec import (
    ConfigAnswer,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
)
from ...protocols.zmqraft.wire.config_codec import ConfigUpdateAnswer
from ...protocols.zmqraft.wire.entry import Entry
from ...protocols.zmqraft.wire.snapshot_codec import MakeSnapshot, SnapshotMade
from ...protocols.zmqraft.wire.transfer_codec import RequestTransfer
from ...protocols.zre import services
from ...version import __version__
from ..errors import (
    LogCompacted,
    LogError,
    LogExpired,
    LogRefused,
    LogTooLarge,
    LogUnavailable,
    SnapshotRefused,
    SnapshotUnsupported,
    TransferRefused,
)
from ..io.driver import Sleep, Step, Wait
from ..io.reqids import new_reqid
from ..io.urls import check_url
from ..node.discovery import cluster_of, resolve_urls
from .members import ask_members, index_of, members_of, news_of, with_member, without_member

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
REACH_MS = 2000
REACH_STEP_MS = 2
APPLY_MS = 2
SEARCHES_A_GRACE = 12
INDEX_MAX = (1 << 53) - 1  # The largest integer that every client's language has exactly.

Data = bytes | bytearray | memoryview
Answer = ConfigAnswer | LogInfo | ConfigUpdateAnswer | SnapshotMade | str | None


class LogTuning(NamedTuple):
    """Limits and times of a Log; the topology's `clients` settings are the same.

    limits              of the window
    response_ttl_ms     the client searches for a leader when the present one does not answer a
                        request for so long
    election_grace_ms   without a leader, the client queries each peer twelve times in it
    """

    limits: WindowLimits = WindowLimits()
    response_ttl_ms: int = 500
    election_grace_ms: int = 300


@dataclass(frozen=True, slots=True)
class EntriesQuery:
    """The entries to read, and the peer to read them from."""

    after: int
    count: int | None
    url: str | None  # None: the leader.


def make_client(
    urls: str | Iterable[str], cluster: str, form: str, tuning: LogTuning | None
) -> LogClientMachine:
    """The protocol machine of a Log. Raises ValueError, TypeError."""
    if form not in ("auto", "node", "text"):
        raise ValueError(f"form is auto, node or text, not {form!r}")
    if not isinstance(urls, str):
        urls = tuple(urls)
    cluster = cluster_of(urls) or cluster
    known = resolve_urls(urls, services.LOG)
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
    )
    return LogClientMachine(setup, new_reqid, monotonic_ms())


class LogOperations:
    """The operations of one Log over its protocol machine."""

    def __init__(self, client: LogClientMachine) -> None:
        self.client = client
        self._own_index = 0  # The last append that this Log knows to be committed.
        self._seen_index = 0  # The last entry that it has read or appended.

    def reach(self, timeout_ms: int) -> Generator[Step, None, None]:
        """Waits until a peer of the cluster has answered. Raises LogUnavailable."""
        client = self.client
        give_up_ms = monotonic_ms() + timeout_ms
        while not client.heard:
            if monotonic_ms() >= give_up_ms:
                raise LogUnavailable(client.setup.urls, timeout_ms, client.hint)
            yield Sleep(REACH_STEP_MS)

    # ---- writing ----

    def add(self, pending: PendingUpdates) -> Generator[Step, None, None]:
        """Waits for room in the window, then sends values."""
        window = self.client.window
        yield Wait(lambda: window.accepts(pending.reqids))
        window.add(pending)

    def settle(self, pending: PendingUpdates, count: int) -> Generator[Step, None, None]:
        """Waits until values are committed; count of this call precede them.

        Raises LogExpired, LogRefused.
        """
        yield Wait(lambda: bool(pending.runs or pending.refusal))
        if pending.refusal:
            kind = LogExpired if pending.refusal in EXPIRED else LogRefused
            raise kind(pending.refusal, count)
        number, first_index = pending.runs[-1]
        self._own_index = max(self._own_index, first_index + number - 1)
        self._seen_index = max(self._seen_index, self._own_index)

    # ---- reading ----

    def entries(self, asked: EntriesQuery) -> Generator[Step | list[Entry], None, None]:
        """Lists of the committed entries, or of count of them."""
        return self._entries(asked, decoded)

    def entry_columns(
        self, asked: EntriesQuery
    ) -> Generator["Step | list[pyarrow.RecordBatch]", None, None]:
        """The same entries as record batches, one for each response."""
        try:
            from ..table.arrow import entries_of
        except ImportError as error:
            raise LogError("Arrow needs pyarrow: pip install 'kelek[arrow]'") from error
        return self._entries(asked, lambda part: [_checked(entries_of, part)])

    def _entries(
        self, asked: EntriesQuery, decode: Callable[[EntryRun], list[Any]]
    ) -> Generator[Step | list[Any], None, None]:
        after, count, url = asked.after, asked.count, asked.url
        check_range("after", after)
        if count is not None:
            check_range("count", count)
        if url is not None:
            check_url(url)
        own_index, seen_index = self._own_index, self._seen_index
        while True:
            stream = self.client.open_stream(EntryStream(after, count, url=url))
            try:
                yield from self._read(stream, decode)
            finally:
                self.client.close_stream(stream)
            if stream.remaining == 0:
                return
            after, count = stream.prev_index, stream.remaining
            if url is not None and after < seen_index:
                url = None  # The peer lags behind what this Log has read; ask the leader.
            elif after >= own_index:
                return
            else:
                yield Sleep(APPLY_MS)  # A foreign leader serves only what it has applied.

    def _read(
        self, stream: EntryStream, decode: Callable[[EntryRun], list[Any]]
    ) -> Generator[Step | list[Any], None, None]:
        while True:
            yield Wait(lambda: stream.done or bool(stream.runs))
            part = self.client.next_run(stream, monotonic_ms())
            if part is None:
                break
            self._seen_index = max(self._seen_index, part.last_index)
            yield decode(part)
        if stream.compacted is not None:
            raise LogCompacted(stream.compacted.last_index)

    def watch(self, after: int | None) -> Generator[Step | list[Entry], None, None]:
        """Lists of entries, without end, as they are committed; after None: from now on."""
        if after is None:
            after = (yield from self.info(None)).applied_index
        check_range("after", after)
        subscription = self.client.subscribe(Subscription(after))
        try:
            while True:
                yield Wait(lambda: subscription.readable, limited=False)
                part = subscription.next_run(self.client, monotonic_ms())
                if part is not None:
                    yield decoded(part)
                elif subscription.compacted is not None:
                    raise LogCompacted(subscription.compacted.last_index)
        finally:
            self.client.unsubscribe(subscription)

    def read_index(self, applied: bool) -> Generator[Step, None, int]:
        """A linearizable read."""
        if self.client.setup.form is not None:
            raise LogError("linearizable reads are an extension: they need form='auto'")
        reads = self.client.reads
        read = reads.add(PendingRead(WAIT_APPLIED if applied else WAIT_CONFIRMED))
        try:
            yield Wait(lambda: read.done)
        finally:
            reads.drop(read)
        if read.refusal:
            raise LogError(read.refusal)
        return read.index

    def info(self, url: str | None) -> Generator[Step, None, LogInfo]:
        """Term and indexes of the leader's log, or of that of the peer at url."""
        if url is not None:
            check_url(url)
        answer = yield from self._ask(Query(RequestLogInfo(new_reqid()), url))
        assert isinstance(answer, LogInfo)
        return answer

    def make_snapshot(self, url: str | None) -> Generator[Step, None, SnapshotMade]:
        """Orders a snapshot from the leader, or from the peer at url."""
        if url is not None:
            check_url(url)
        ask = Query(MakeSnapshot(new_reqid()), url)
        answer = yield from self._ask(ask)
        assert isinstance(answer, SnapshotMade)
        if answer.reason:
            raise (SnapshotUnsupported if ask.is_foreign else SnapshotRefused)(answer.reason)
        return answer

    def state(self) -> Generator[Step, None, tuple[int, bytes]]:
        """The last index in the leader's snapshot, and the state in it."""
        stream = self.client.open_stream(EntryStream(0, wants_state=True))
        try:
            yield Wait(lambda: stream.done)
        finally:
            self.client.close_stream(stream)
        if stream.compacted is None:
            return 0, b""
        return stream.compacted.last_index, b"".join(stream.chunks)

    def config(self) -> Generator[Step, None, ConfigAnswer]:
        """The leader and the members."""
        answer = yield from self._ask(Query(RequestConfig(new_reqid())))
        assert isinstance(answer, ConfigAnswer)
        return answer

    def set_members(self, members: Mapping[str, str]) -> Generator[Step, None, int]:
        """Replaces the members; each message of the leader restarts the timeout."""
        ask = self.client.query(ask_members(members))
        try:
            while not ask.done:
                yield Wait(news_of(ask))
        finally:
            self.client.drop_query(ask)
        return index_of(ask.answer)

    def add_member(self, peer_id: str, url: str) -> Generator[Step, None, int]:
        """Adds a peer to the members."""
        members = members_of((yield from self.config()))
        return (yield from self.set_members(with_member(members, peer_id, url)))

    def remove_member(self, peer_id: str) -> Generator[Step, None, int]:
        """Removes a peer from the members."""
        members = members_of((yield from self.config()))
        return (yield from self.set_members(without_member(members, peer_id)))

    def broadcast_url(self) -> Generator[Step, None, str | None]:
        """The address at which the leader's state machine broadcasts, if it does."""
        answer = yield from self._ask(Query(RequestBroadcastStateUrl(new_reqid())))
        assert answer is None or isinstance(answer, str)
        return answer

    def transfer(self, to: str | None) -> Generator[Step, None, str]:
        """Moves the leadership; returns the PEER ID of the new leader."""
        if to is not None and not isinstance(to, str):
            raise TypeError(f"to is a PEER ID as str, not {type(to).__name__}")
        away = "" if to else (yield from self.config()).leader or ""
        ask = TransferQuery(RequestTransfer(new_reqid(), to or "", away))
        self.client.query(ask)
        try:
            yield Wait(lambda: ask.done)
        finally:
            self.client.drop_query(ask)
        assert ask.answer is not None
        if ask.answer.leader is None:
            raise TransferRefused(ask.answer.reason)
        return ask.answer.leader

    def _ask(self, ask: Query) -> Generator[Step, None, Answer]:
        self.client.query(ask)
        try:
            yield Wait(lambda: ask.done)
        finally:
            self.client.drop_query(ask)
        return ask.answer


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
    if not 0 <= value <= INDEX_MAX:
        raise ValueError(f"{name} is 0 to {INDEX_MAX}, not {value}")


def checked(data: Data) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a value is bytes, not {type(data).__name__}")
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
