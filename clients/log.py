"""kelek.Log: the replicated log for its users, without a thread of its own.

All work is done inside the calls. One Log belongs to one thread at a time; make one for each.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from .. import __version__
from ..native.reads import WAIT_APPLIED, WAIT_CONFIRMED
from ..protocols.errors import RemoteProtocolError
from ..protocols.record import RECORD_BYTES_MAX
from ..protocols.zmqraft.client import (
    Ask,
    Client,
    ClientSetup,
    Pending,
    PendingRead,
    Stream,
    TransferAsk,
    WindowLimits,
)
from ..protocols.zmqraft.client_codec import (
    ConfigAnswer,
    Form,
    LogInfo,
    RequestBroadcastStateUrl,
    RequestConfig,
    RequestLogInfo,
)
from ..protocols.zmqraft.config_codec import ConfigUpdateAnswer
from ..protocols.zmqraft.entry import Entry
from ..protocols.zmqraft.transfer import RequestTransfer
from .errors import (
    LogError,
    LogTimeout,
    NoLeader,
    TransferRefused,
    UpdateExpired,
    UpdateRefused,
    UpdateTooLarge,
)
from .links import Links, monotonic_ms
from .members import ask_members, index_of, members_of, news_of, with_member, without_member
from .reqids import new_reqid, new_reqids

PACK_UPDATES = 1024
PACK_BYTES = 256 << 10
GATHER_S_MAX = 0.002  # A pack waits no longer for the next one of a slow source.
# Reasons that lie in the age of a reqid; the text's bare refusal names none and means it mostly.
EXPIRED = frozenset(("expired", "too early", "forgotten", "rejected"))
APPLY_MS = 2
FOLLOW_MS = 10
FOLLOW_MS_MAX = 160
PORT_MAX = 65_535
INDEX_MAX = (1 << 53) - 1  # What every client's language counts exactly.
IPC_PATH_BYTES_MAX = 107  # What fits into a Unix socket's address.
URL = re.compile(r"tcp://(?:\[[^\s/\[\]]+\]|[^\s/:*\[\]]+):([0-9]{1,5})|ipc://(/[^\0]+)")

Data = bytes | bytearray | memoryview


class Log:
    """A connection to a cluster.

        with kelek.Log("tcp://127.0.0.1:7201,tcp://127.0.0.1:7202") as log:
            index = log.update(b"one")
            log.update_many(lines)
            for entry in log.entries(after=index): ...

    urls         some of the peers, in a list or joined by commas; the others are learned
    cluster      the cluster's ident
    timeout_ms   so long without any progress: LogTimeout, or NoLeader
    form         how requests are written: "auto" (packs for peers that know them, else node form),
                 "node" or "text" (one message an update: order across a failover not guaranteed)

    Updates of one Log commit in the order sent, also across failovers, each exactly once.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        cluster: str = "demo",
        *,
        timeout_ms: int = 30_000,
        form: str = "auto",
        limits: WindowLimits | None = None,
    ) -> None:
        if form not in ("auto", "node", "text"):
            raise ValueError(f"form is auto, node or text, not {form!r}")
        known = tuple(urls.split(",")) if isinstance(urls, str) else tuple(urls)
        if not known:
            raise ValueError("a Log needs the url of a peer")
        for url in known:
            _check_url(url)
        if not isinstance(cluster, str):
            raise TypeError(f"cluster is the ident as str, not {type(cluster).__name__}")
        if not cluster:
            raise ValueError("a Log needs the cluster's ident")
        setup = ClientSetup(
            cluster.encode(),
            known,
            __version__,
            None if form == "auto" else Form(form),
            limits or WindowLimits(),
        )
        self.timeout_ms = timeout_ms
        self._own_index = 0  # Of the last update that this Log knows to be committed.
        self._client = Client(setup, new_reqid, monotonic_ms())
        self._links: Links | None = Links(self._client)

    # ---- writing ----

    def update(self, data: Data) -> int:
        """Appends one update and returns its LOG INDEX once it is committed.

        Raises UpdateTooLarge before anything is sent, UpdateExpired or UpdateRefused, LogTimeout.
        """
        pending = Pending(new_reqids(1), [_checked(data)])
        self._wait(lambda: self._client.window.has_room)
        self._client.window.add(pending)
        self._settle(pending, 0)
        self._note(pending)
        return pending.runs[0][1]

    def update_many(
        self, updates: Iterable[Data], progress: Callable[[int], object] | None = None
    ) -> int:
        """Appends updates in order, pipelined, and returns how many once all are committed.

        What the iterable has given is held back while it waits for its next item, up to a pack: use
        update() for a source that may wait long.
        progress is called with the number committed so far. Raises as update() does.
        """
        count = 0
        for pending in self._committed(updates):
            count += len(pending.updates)
            if progress is not None:
                progress(count)
        return count

    def update_each(self, updates: Iterable[Data]) -> Generator[int, None, None]:
        """Appends updates in order, pipelined, and yields the LOG INDEX of each in that order.

        Nothing is sent before the first index is asked for. Raises as update() does.
        """
        for pending in self._committed(updates):
            for count, first_index in pending.runs:
                yield from range(first_index, first_index + count)

    def _committed(self, updates: Iterable[Data]) -> Iterator[Pending]:
        window = self._client.window
        packs = _packs(updates)
        pack = next(packs, None)
        mine: deque[Pending] = deque()
        count = 0
        while pack is not None or mine:
            while pack is not None and window.has_room:
                pending = Pending(new_reqids(len(pack)), pack)
                mine.append(pending)
                window.add(pending)
                self._turn(0)
                pack = next(packs, None)
            if not mine:
                self._wait(lambda: window.has_room)  # Taken up by what another call has left.
                continue
            self._settle(mine[0], count)
            while mine and mine[0].runs:
                pending = mine.popleft()
                self._note(pending)
                count += len(pending.updates)
                yield pending

    def _settle(self, pending: Pending, count: int) -> None:
        """Waits until updates are committed; count were before them in this call."""
        self._wait(lambda: bool(pending.runs or pending.refusal))
        if pending.refusal:
            kind = UpdateExpired if pending.refusal in EXPIRED else UpdateRefused
            raise kind(pending.refusal, count)

    def _note(self, pending: Pending) -> None:
        count, first_index = pending.runs[-1]
        self._own_index = max(self._own_index, first_index + count - 1)

    # ---- reading ----

    def entries(self, after: int = 0, count: int | None = None) -> Generator[Entry, None, None]:
        """Entries behind LOG INDEX after, up to what the leader has applied, or count of them.

        What this Log has committed itself before the call is always among them.
        """
        _check_range("after", after)
        if count is not None:
            _check_range("count", count)
        own_index = self._own_index
        while True:
            stream = self._client.open_stream(Stream(after, count))
            try:
                yield from self._read(stream)
            finally:
                self._client.close_stream(stream)
                if self._links is not None:
                    self._turn(0)
            if stream.prev_index >= own_index or stream.remaining == 0:
                return
            after, count = stream.prev_index, stream.remaining
            self._rest(APPLY_MS)

    def _read(self, stream: Stream) -> Iterator[Entry]:
        while True:
            self._wait(lambda: stream.done or bool(stream.parts))
            part = self._client.take_part(stream, monotonic_ms())
            if part is None:
                return
            try:
                entries = part.decoded()
            except RemoteProtocolError as error:
                raise LogError(f"the leader sent what is no entry: {error}") from error
            yield from entries

    def follow(self, after: int = 0) -> Generator[Entry, None, None]:
        """Entries behind LOG INDEX after, for ever: at the end it waits for more."""
        pause_ms = FOLLOW_MS
        while True:
            for entry in self.entries(after):
                after = entry.index
                pause_ms = FOLLOW_MS // 2
                yield entry
            pause_ms = min(2 * pause_ms, FOLLOW_MS_MAX)
            self._rest(pause_ms)

    def read_index(self, *, applied: bool = True) -> int:
        """A linearizable read: a LOG INDEX at or above that of every update, by anybody, that was
        acknowledged before this call.

        A leader says so after a majority has confirmed, during this call, that it still leads: what
        an old leader knows is never returned. Whoever has applied the log up to the index sees all
        that was done before the call.

        applied   the leader has applied the index, so that entries(), asked of this Log next,
                  reach it; False: as soon as it is confirmed, for a state that is kept elsewhere

        Raises LogError when the leader is of a version, or an implementation, without such reads,
        or this Log was told a form other than auto; NoLeader, LogTimeout.
        """
        if self._client.setup.form is not None:
            raise LogError("linearizable reads are an extension: they need form='auto'")
        read = self._client.reads.add(PendingRead(WAIT_APPLIED if applied else WAIT_CONFIRMED))
        try:
            self._wait(lambda: read.done)
        finally:
            self._client.reads.drop(read)
        if read.refusal:
            raise LogError(read.refusal)
        return read.index

    def info(self, url: str | None = None) -> LogInfo:
        """The leader's log, or that of the peer at url: term and indexes."""
        if url is not None:
            _check_url(url)
        answer = self._ask(Ask(RequestLogInfo(new_reqid()), url))
        assert isinstance(answer, LogInfo)
        return answer

    def config(self) -> ConfigAnswer:
        """Who leads, and the members' ids and urls."""
        answer = self._ask(Ask(RequestConfig(new_reqid())))
        assert isinstance(answer, ConfigAnswer)
        return answer

    def members(self) -> dict[str, str]:
        """PEER ID -> url of each member; of both sets while a change is in work."""
        return members_of(self.config())

    def set_members(self, members: Mapping[str, str]) -> int:
        """Makes these all members of the cluster, PEER ID -> url; returns the change's LOG INDEX.

        It is done when the call returns: new members have caught up, removed ones count no more.
        That may take long: timeout_ms is time without a word of the leader's. Raises
        MembersRefused with the reason, MembersBusy, NoLeader, LogTimeout; after the last two the
        change may still happen.
        """
        ask = self._client.ask(ask_members(members))
        try:
            while not ask.done:
                self._wait(news_of(ask))
        finally:
            self._client.drop_ask(ask)
        return index_of(ask.answer)

    def add_member(self, peer_id: str, url: str) -> int:
        """Takes one more peer in, which must be running; as set_members()."""
        return self.set_members(with_member(self.members(), peer_id, url))

    def remove_member(self, peer_id: str) -> int:
        """Leaves one peer out from now on; as set_members()."""
        return self.set_members(without_member(self.members(), peer_id))

    def broadcast_url(self) -> str | None:
        """Where the leader's state machine broadcasts, if it does."""
        answer = self._ask(Ask(RequestBroadcastStateUrl(new_reqid())))
        assert answer is None or isinstance(answer, str)
        return answer

    def transfer(self, to: str | None = None) -> str:
        """Has the leader hand over to the member `to`, or, without, to whoever is furthest.

        Returns the PEER ID of the new leader once it leads. Updates wait for some milliseconds
        meanwhile; none is lost, none is refused.
        Raises TransferRefused with the reason: it is no voter, is not heard, knows no transfer, did
        not take over within an election timeout; NoLeader, LogTimeout.
        """
        if to is not None and not isinstance(to, str):
            raise TypeError(f"to is a PEER ID as str, not {type(to).__name__}")
        away = "" if to else self.config().leader or ""
        ask = TransferAsk(RequestTransfer(new_reqid(), to or "", away))
        self._client.ask(ask)
        try:
            self._wait(lambda: ask.done)
        finally:
            self._client.drop_ask(ask)
        assert ask.answer is not None
        if ask.answer.leader is None:
            raise TransferRefused(ask.answer.reason)
        return ask.answer.leader

    def _ask(self, ask: Ask) -> ConfigAnswer | LogInfo | ConfigUpdateAnswer | str | None:
        self._client.ask(ask)
        try:
            self._wait(lambda: ask.done)
        finally:
            self._client.drop_ask(ask)
        return ask.answer

    # ---- turning ----

    def _turn(self, until_ms: int) -> None:
        if self._links is None:
            raise LogError("this Log is closed")
        self._links.turn(until_ms)

    def _rest(self, pause_ms: int) -> None:
        until_ms = monotonic_ms() + pause_ms
        while monotonic_ms() < until_ms:
            self._turn(until_ms)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Turns until it is done; every call begins the time anew: it is time without progress."""
        if is_done():
            return
        give_up_ms = monotonic_ms() + self.timeout_ms
        while not is_done():
            if monotonic_ms() >= give_up_ms:
                if self._client.leader is None:
                    raise NoLeader(f"no peer said for {self.timeout_ms} ms that it leads")
                raise LogTimeout(f"no progress for {self.timeout_ms} ms")
            self._turn(give_up_ms)

    @property
    def counters(self) -> dict[str, int]:
        """What happened: searches, leaders, refused, gaps, silent, junk, strays."""
        return dict(self._client.counters)

    def close(self) -> None:
        """Ends it; updates on their way may still commit."""
        if self._links is not None:
            self._links.close()
            self._links = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_url(url: str) -> None:
    """libzmq would say so only when it connects. Raises ValueError, TypeError."""
    if not isinstance(url, str):
        raise TypeError(f"a url is str, not {type(url).__name__}")
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is not a url; write tcp://HOST:PORT or ipc:///PATH")
    port, path = match.groups()
    if port is not None and not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"{url!r}: port {port} is out of range; it is 1 to {PORT_MAX}")
    if path is not None and len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
        raise ValueError(
            f"{url!r}: the path has over {IPC_PATH_BYTES_MAX} bytes; use a shorter one"
        )


def _check_range(name: str, value: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} is int, not {type(value).__name__}")
    if not 0 <= value <= INDEX_MAX:
        raise ValueError(f"{name} is 0 to {INDEX_MAX}, not {value}")


def _checked(data: Data) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"an update is bytes, not {type(data).__name__}")
    data = bytes(data)
    if not 0 < len(data) <= RECORD_BYTES_MAX:
        raise UpdateTooLarge(f"an update has 1 to {RECORD_BYTES_MAX} bytes, not {len(data)}")
    return data


def _packs(updates: Iterable[Data]) -> Iterator[list[bytes]]:
    """Cuts updates into packs: full ones from a fast source, early ones from a slow one."""
    clock = time.monotonic
    pack: list[bytes] = []
    size = 0
    until_s = 0.0
    for item in updates:
        data = item if isinstance(item, bytes) and 0 < len(item) <= PACK_BYTES else _checked(item)
        size += len(data)
        if size > PACK_BYTES and pack:
            yield pack
            pack, size = [], len(data)
        if not pack:
            until_s = clock() + GATHER_S_MAX
        pack.append(data)
        if len(pack) == PACK_UPDATES or clock() >= until_s:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack
