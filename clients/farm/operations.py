"""The methods of kelek.Farm and kelek.AsyncFarm (io/operations.py)."""

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ...net.clock import monotonic_ms, wall_ms
from ...protocols.errors import LocalProtocolError, RemoteProtocolError
from ...protocols.garlicfarm.app.orders import (
    Order,
    OrderKind,
    PublishChoice,
    decode_export,
    encode_order,
)
from ...protocols.garlicfarm.client.client import FarmClient
from ...protocols.garlicfarm.client.servers import NO_ANSWER
from ...protocols.garlicfarm.client.values import (
    ENTRIES_PER_REQUEST,
    REQUEST_BYTES,
    ConnectFailure,
    FailureKind,
    FarmClientSetup,
    FarmCommand,
    ViewQuery,
)
from ...protocols.garlicfarm.server.membership import add_server_request, remove_server_request
from ...protocols.garlicfarm.wire.codec import ENTRY_HEADER
from ...protocols.garlicfarm.wire.messages import (
    ENTRIES_BYTES_MAX,
    ClusterServer,
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)
from ...protocols.garlicfarm.wire.values import Address, is_loopback, parse_address
from ..aliases import warn_renamed
from ..errors import (
    FarmCompacted,
    FarmDenied,
    FarmError,
    FarmNoLeader,
    FarmRefused,
    FarmTimeout,
    FarmTooLarge,
    FarmUnavailable,
    FarmUntrusted,
)
from ..io.driver import ClientBase
from ..io.operations import Batches, Operation, Sleep, Wait, items, operation
from .links import LOOPBACK_ONLY, ConnectSettings, FarmLinks
from .values import (
    APPLICATION,
    EntryRange,
    FarmEntry,
    FarmPage,
    FarmServer,
    Servers,
    TlsFiles,
    checked_endpoint,
    checked_hash,
    checked_id,
    checked_servers,
    discovery_keys,
    entry_range,
    make_tls,
    page_of,
    read_secret,
    server_of,
)

if TYPE_CHECKING:
    from ...net.client_keys import ServerKeys
    from ..io.keys import KeyArguments, KeyPath

TIMEOUT_MS = 10_000
OUTSTANDING_MAX = 256  # Unanswered commands of one append().
PAGE_ENTRIES = 1000  # The most entries in one response of a server.
POLL_MS = 200  # Between two reads at the end of the log.
LEADER_POLLS = 10  # After so many reads without news, the leader is asked instead of any server.
STATUS_MS = 2000  # The timeout of each server's status.
CHANGE_POLL_MS = 200
VALUE_BYTES_MAX = ENTRIES_BYTES_MAX - ENTRY_HEADER.size  # Servers may accept less.
FARM_NAME_CHARACTERS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)

# The public error of each failure, and a hint.
_ERRORS: dict[FailureKind, tuple[type[FarmError], str]] = {
    FailureKind.LOST: (FarmUnavailable, "does a server of farm {farm!r} run there?"),
    FailureKind.LEADERLESS: (FarmNoLeader, "does a majority of farm {farm!r} run?"),
    FailureKind.TIMEOUT: (FarmTimeout, "what was to be appended may still be"),
    FailureKind.DENIED: (
        FarmDenied,
        "the password file of the servers has to name this user for this farm",
    ),
    FailureKind.UNTRUSTED: (FarmUntrusted, ""),
    FailureKind.NO_FARM: (FarmRefused, "is this its name?"),
    FailureKind.NO_HTTP_API: (FarmRefused, ""),
    FailureKind.FORBIDDEN: (FarmDenied, ""),
}


class FarmTuning(NamedTuple):
    """How a Farm reaches its servers.

    tls              "1.3", or "1.2" for servers that support no newer version
    server_name      the name in the servers' certificates; "": the host that is connected to
    proxy            HOST:PORT of an HTTP proxy, such as I2P's: no TLS; the proxy resolves hosts
    i2p              no TLS: the address is a tunnel on this machine
    insecure_jraft   neither TLS nor user: a JRaft server on this machine
    reach_ms         a call fails after this time instead of its timeout while no server was ever
                     reached; ignored with a proxy
    """

    tls: str = "1.3"
    server_name: str = ""
    proxy: str = ""
    i2p: bool = False
    insecure_jraft: bool = False
    reach_ms: int = 2000


class Credentials(NamedTuple):
    """A user with a password, or the file that holds it."""

    user: str
    password: str | None
    secret_file: str | os.PathLike[str] | None


def make_client(
    servers: Servers,
    farm: str,
    credentials: Credentials,
    tuning: FarmTuning,
    keys: "KeyArguments | None" = None,
) -> FarmClient:
    """The state machine of a Farm with these arguments.

    Raises ValueError, TypeError, FarmError, and OSError if the secret file cannot be read.
    """
    addresses = checked_servers(servers, keys)
    if not farm or not FARM_NAME_CHARACTERS.issuperset(farm):
        raise ValueError(f"{farm!r} is not a farm's name; use letters, digits, '.', '_' and '-'")
    setup = FarmClientSetup(
        farm, addresses.known, ids=addresses.ids, plain=tuning.insecure_jraft, notice=True
    )
    if tuning.insecure_jraft or (tuning.i2p and not tuning.proxy):
        for host, _ in addresses.known:
            if not is_loopback(host):
                raise ValueError(f"{host}: {LOOPBACK_ONLY}")
    if not tuning.insecure_jraft:
        user, password, secret_file = credentials
        if not user or ":" in user or not user.isprintable():
            raise ValueError(
                f"{user!r} is not a user name; give a user in the servers' password file"
            )
        if (password is None) == (secret_file is None):
            raise ValueError("give either secret_file or password")
        if secret_file is not None:
            password = read_secret(secret_file)
        setup = setup._replace(user=user, password=password or "")
    if tuning.proxy:
        setup = setup._replace(via_proxy=True, connect_timeout_ms=60_000)
    else:
        setup = setup._replace(unreachable_timeout_ms=tuning.reach_ms)
    return FarmClient(setup, os.urandom)


def make_connect_settings(files: TlsFiles, tuning: FarmTuning) -> ConnectSettings:
    """How the connections of a Farm are made. Raises ValueError, FarmError."""
    if tuning.proxy:
        return ConnectSettings(proxy=checked_servers(tuning.proxy).known[0])
    if tuning.i2p or tuning.insecure_jraft:
        return ConnectSettings()
    return ConnectSettings(make_tls(files, tuning.tls), tuning.server_name)


class _MemberChange:
    """A member change that a caller waits for."""

    def __init__(self, server_id: int, endpoint: str | None = None) -> None:
        """endpoint: of the server to add; None: it is removed."""
        self.server_id, self.endpoint = server_id, endpoint
        self.name = f"server {server_id}"
        self.request = remove_server_request(server_id)
        if endpoint is not None:
            self.request = add_server_request(ClusterServer(server_id, endpoint))
        self.term = 0  # The leader's term in its answer.

    @property
    def adds(self) -> bool:
        return self.endpoint is not None

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """Whether the leader that started the change has dropped it. A removal
        continues under the next leader, because a leader that leaves hands over
        first.
        """
        return self.adds and status.get("state") == "leader" and status.get("term") == self.term

    def is_joining(self, status: Mapping[str, Any]) -> bool:
        """Whether the server to remove is just being added; the removal then
        cancels that."""
        current = status.get("change") or {}
        is_early = current.get("stage") in ("invite", "feed")
        return not self.adds and is_early and current.get("server") == self.server_id


class FarmOperations(ClientBase):
    """The methods of one Farm on its client state machine."""

    def __init__(
        self,
        servers: Servers,
        farm: str = "farm",
        *,
        user: str = "",
        secret_file: str | os.PathLike[str] | None = None,
        password: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        certificate_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key: "KeyPath | None" = None,
        server_keys: "ServerKeys | None" = None,
        timeout_ms: int = TIMEOUT_MS,
        tuning: FarmTuning | None = None,
    ) -> None:
        if not 0 < timeout_ms <= 86_400_000:
            raise ValueError(f"a timeout must be 1 to 86400000 ms, not {timeout_ms}")
        tuning = tuning or FarmTuning()
        self.timeout_ms = timeout_ms
        credentials = Credentials(user, password, secret_file)
        keys = discovery_keys(key, server_keys)
        self._client = make_client(servers, farm, credentials, tuning, keys)
        files = TlsFiles(ca_file, certificate_file, key_file)
        self._own(partial(FarmLinks, self._client, make_connect_settings(files, tuning)))

    @property
    def _deadline_ms(self) -> int:
        return monotonic_ms() + self.timeout_ms

    # ---- appending ----

    @operation
    def append(self, value: bytes | Iterable[bytes]) -> Operation[int]:
        """Appends a value of 1 byte to 8 MiB; returns its index once it is
        committed.

        A server of JRaft or an older kelek may return a larger index. A value
        may be in the log twice when a leader is lost during the call: the
        protocol has no request ids.

        Raises FarmUnavailable, FarmNoLeader (nothing was appended), FarmTimeout
        (the value may be appended, now or later), FarmRefused (the leader does
        not accept it from this user), FarmDenied, FarmTooLarge.
        """
        if isinstance(value, bytes | str):
            return FarmOperations.append_many(self, [value])
        warn_renamed("append() of several values", "append_many()", 4)
        return self._append(value)

    @operation
    def append_many(self, values: Iterable[bytes]) -> Operation[int]:
        """Appends values in order; returns the index of the last once all are
        committed.

        A request carries up to 1000 values or 1 MiB, and 64 requests are sent
        at a time. The values of a request are consecutive in the log, so up to
        1000 small values have the indexes up to the result. 0: there was no
        value. Raises as append() does.
        """
        return max(0, (yield from self._append(values)) - 1)

    def _append(self, values: Iterable[bytes]) -> Operation[int]:
        """Returns the index after the last value."""
        waiting: deque[FarmCommand] = deque()
        next_index = 0

        def check_next() -> None:
            nonlocal next_index
            command = waiting.popleft()
            self._check(command)
            assert command.response is not None
            if not command.response.is_accepted:
                raise FarmRefused(
                    f"the leader, server {command.response.source}, refuses this entry of "
                    f"{self._client.setup.user or 'a client'}: it is larger than servers accept, "
                    f"or this user lacks the role `append`, or may not post a server's status or "
                    f"an order"
                )
            next_index = command.response.next_index

        try:
            for entries in self._requests(values):
                if len(waiting) == OUTSTANDING_MAX:
                    yield _done(waiting[0])
                    check_next()
                command = FarmCommand(MessageType.CLIENT_REQUEST, entries, self._deadline_ms)
                waiting.append(self._client.submit(command))
            while waiting:
                yield _done(waiting[0])
                check_next()
        finally:
            self._client.cancel(command for command in waiting if not command.done)
        return next_index

    def _requests(self, values: Iterable[bytes]) -> Iterable[tuple[FarmLogEntry, ...]]:
        entries: list[FarmLogEntry] = []
        size = 0
        if isinstance(values, bytes | bytearray | memoryview | str):
            raise TypeError("values must be a list: append([value])")
        for value in values:
            if not isinstance(value, bytes):
                raise TypeError(f"a value must be bytes, not {type(value).__name__}")
            if not value:
                raise ValueError("a value has at least one byte")
            if len(value) > VALUE_BYTES_MAX:
                raise FarmTooLarge(f"a value has at most {VALUE_BYTES_MAX} bytes: {len(value)}")
            if entries and (
                len(entries) == ENTRIES_PER_REQUEST or size + len(value) > REQUEST_BYTES
            ):
                yield tuple(entries)
                entries, size = [], 0
            entries.append(FarmLogEntry(0, ValueType.APPLICATION, value))
            size += len(value)
        if entries:
            yield tuple(entries)

    def _check(self, command: FarmCommand) -> None:
        if command.failure is not None:
            raise self._error_of(command.failure)

    def _error_of(self, failure: ConnectFailure) -> FarmError:
        error, hint = _ERRORS[failure.kind]
        hint = hint.format(farm=self._client.setup.farm)
        found = error(f"{failure.text}; {hint}" if hint else failure.text)
        if isinstance(found, FarmUnavailable):
            found._is_silent = failure == NO_ANSWER
        return found

    # ---- views ----

    @operation
    def reach(self, timeout_ms: int) -> Operation[None]:
        """Waits up to timeout_ms until a server accepts the user.

        Raises FarmUnavailable, FarmDenied, FarmUntrusted, FarmRefused.
        """
        if not self._client.setup.plain:
            yield from self._get("status", timeout_ms)

    def _get(self, view: str, timeout_ms: int | None = None) -> Operation[dict[str, Any]]:
        """A view of any server."""
        deadline_ms = self._deadline_ms if timeout_ms is None else monotonic_ms() + timeout_ms
        query = ViewQuery(view, deadline_ms)
        yield from self._run_queries(query)
        if query.failure is not None:
            raise self._error_of(query.failure)
        return _object(query.body)

    def _run_queries(self, *queries: ViewQuery) -> Operation[None]:
        """Waits for concurrent queries, which have deadlines."""
        for query in queries:
            self._client.query(query)
        try:
            yield Wait(lambda: all(query.done for query in queries), limited=False)
        finally:
            for query in queries:
                self._client.cancel_query(query)

    @operation
    def status(self) -> Operation[dict[str, Any]]:
        """The leader's status: term, indexes, members, the member change in
        progress, counters.

        docs/protocols/garlic-farm.md lists its keys. Without a leader, any
        server's status.
        """
        found = yield from self._status_of_any()
        if found.get("state") == "leader":
            return found
        return (yield from self._query_leader("status", found)) or found

    def _status_of_any(self) -> Operation[dict[str, Any]]:
        """The status of any server, preferably of one that knows the leader."""
        found = yield from self._get("status")
        self._client.servers.learn(_members(found))
        if found.get("leader") is not None:
            return found
        others = yield from self._query_all(self._client.servers)
        known = [_object(each.body) for each in others if each.body is not None]
        known.sort(key=lambda each: (each.get("leader") is None, each.get("state") == "waiting"))
        best = known[0] if known else found
        self._client.servers.learn(_members(best))
        return best

    def _query_all(self, servers: Iterable[Address]) -> Operation[list[ViewQuery]]:
        """Queries the status of these servers concurrently, once each."""
        deadline_ms = monotonic_ms() + min(STATUS_MS, self.timeout_ms)
        queries = [ViewQuery("status", deadline_ms, address, is_once=True) for address in servers]
        yield from self._run_queries(*queries)
        return queries

    def _from_leader(self, view: str) -> Operation[dict[str, Any]]:
        """A view of the leader, which includes everything acknowledged before; without a leader,
        of any server.
        """
        found = yield from self._query_leader(view, (yield from self._status_of_any()))
        return found if found is not None else (yield from self._get(view))

    def _query_leader(
        self, view: str, status: Mapping[str, Any]
    ) -> Operation[dict[str, Any] | None]:
        """None if there is no leader or it does not answer."""
        leader_id = status.get("leader")
        address = self._client.servers.ids.get(leader_id) if isinstance(leader_id, int) else None
        if address is None:
            return None
        query = ViewQuery(view, monotonic_ms() + STATUS_MS, address, is_once=True)
        yield from self._run_queries(query)
        return None if query.body is None else _object(query.body)

    @operation
    def servers(self) -> Operation[list[FarmServer]]:
        """The members, each with its own status."""
        found = yield from self._status_of_any()
        members = found.get("members", [])
        queries = yield from self._query_all(
            parse_address(each.endpoint) for each in _members(found)
        )
        return [
            server_of(member, query.failure.text if query.failure else _object(query.body))
            for member, query in zip(members, queries, strict=True)
        ]

    @operation
    def commit_index(self) -> Operation[int]:
        """The index of the last committed entry: the leader's, or without a
        leader any server's."""
        found = yield from FarmOperations.status(self)
        return int(found.get("commit", 0))

    @operation
    def documents(self, server_id: int | None = None) -> Operation[dict[str, Any]]:
        """The state of the log: each server's last document, the publisher,
        exclusions, settings. docs/protocols/garlic-farm.md lists its keys.

        server_id   only this server's document. Large documents are null in the
                    whole list
        """
        one = "" if server_id is None else f"?id={checked_id(server_id)}"
        return self._from_leader(f"documents{one}")

    @operation
    def publisher(self) -> Operation[int | None]:
        """The id of the server that publishes the MetaLS, or None."""
        found = yield from self._from_leader("documents")
        publisher = found.get("publisher")
        return None if publisher is None else int(publisher)

    # ---- entries ----

    @operation
    def read(
        self,
        from_index: int | None = None,
        count: int = PAGE_ENTRIES,
        *,
        after: int = 0,
        all_kinds: bool = False,
    ) -> Operation[FarmPage]:
        """One page of committed entries after an index: up to 1000 entries or 4
        MiB.

        all_kinds    also configurations (the members) and posters (the user who
                     appends)
        from_index   deprecated: the first index itself

        Raises FarmCompacted when the first of them is no longer stored.
        """
        return self._read(entry_range(from_index, after).first_index, count, all_kinds)

    def _read(
        self,
        from_index: int,
        count: int = PAGE_ENTRIES,
        all_kinds: bool = False,
        from_leader: bool = False,
    ) -> Operation[FarmPage]:
        """A page of the log. from_leader: asks the leader, if there is one."""
        if from_index < 1:
            raise ValueError(f"the first index is 1, not {from_index}")
        count = max(1, min(count, PAGE_ENTRIES))
        view = f"entries?from={from_index}&count={count}&raw=1"
        found = yield from (self._from_leader(view) if from_leader else self._get(view))
        page = page_of(found)
        if page.first_index > from_index:
            raise FarmCompacted(page.first_index)
        if not all_kinds:
            own = tuple(entry for entry in page.entries if entry.kind == APPLICATION)
            page = page._replace(entries=own)
        # A server may lag behind the one before.
        return page._replace(next_index=max(page.next_index, from_index))

    @items
    def entries(
        self,
        from_index: int | None = None,
        *,
        after: int = 0,
        all_kinds: bool = False,
        follow: bool | None = None,
    ) -> Batches[FarmEntry]:
        """The entries after an index, up to the last that is committed when the
        call begins.

        When a server is lost, another one continues: no entry is missing or
        repeated.

        all_kinds            also configurations (the members) and posters (the
                             user who appends)
        from_index, follow   deprecated: the first index itself; True as watch()
                             does

        Raises FarmCompacted, FarmUnavailable.
        """
        return self._entries(entry_range(from_index, after, follow), all_kinds)

    @items
    def watch(self, after: int = 0, *, all_kinds: bool = False) -> Batches[FarmEntry]:
        """The entries after an index, then each new one once it is committed,
        without end.

        When a server is lost, another one continues: no entry is missing or
        repeated. Raises FarmCompacted, FarmUnavailable.
        """
        return self._entries(EntryRange(after + 1, True), all_kinds)

    def _entries(self, wanted: EntryRange, all_kinds: bool) -> Batches[FarmEntry]:
        from_index, follow = wanted
        end = 0 if follow else (yield from FarmOperations.commit_index(self)) + 1
        idle_polls = 0  # Reads without news: a server that is no member never has any.
        while follow or from_index < end:
            from_leader = idle_polls % LEADER_POLLS == LEADER_POLLS - 1
            page = yield from self._read(from_index, all_kinds=all_kinds, from_leader=from_leader)
            is_end = page.next_index == from_index
            idle_polls = idle_polls + 1 if is_end else 0
            from_index = page.next_index
            entries = list(page.entries)
            if not follow:
                entries = [entry for entry in entries if entry.index < end]
            if entries:
                yield entries
            if is_end and (follow or from_index < end):
                yield Sleep(POLL_MS)

    # ---- orders of an administrator ----

    @operation
    def publish(self, server: int | str | None) -> Operation[None]:
        """Orders who publishes the MetaLS: a server's id, "auto" for the rule's
        choice, or None for no server. Raises FarmDenied.
        """
        if server is None:
            publisher: int | PublishChoice = PublishChoice.NONE
        elif server == PublishChoice.AUTO.value:
            publisher = PublishChoice.AUTO
        elif isinstance(server, str):
            raise ValueError(f"the publisher must be a server's id, 'auto' or None, not {server!r}")
        else:
            publisher = checked_id(server)
            yield from self._check_publisher(publisher)
        yield from self._submit_order(OrderKind.PUBLISH, publish=publisher)

    def _check_publisher(self, server_id: int) -> Operation[None]:
        """Raises FarmRefused if the server is no member: the order would have no effect."""
        if self._client.setup.plain:
            return
        status = yield from FarmOperations.status(self)
        self._check_admin(status)
        members = [server.id for server in _members(status)]
        if server_id not in members:
            listed = ", ".join(map(str, members))
            raise FarmRefused(
                f"server {server_id} is no member, so it cannot publish; the members are {listed}"
            )

    @operation
    def exclude(
        self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()
    ) -> Operation[None]:
        """Excludes destinations from the MetaLS, or all destinations of
        servers, which then do not publish. A hash is I2P's base64,
        HASH.b32.i2p, or the whole destination.
        """
        return self._order_exclusion(OrderKind.EXCLUDE, hashes, servers)

    @operation
    def include(
        self, hashes: Iterable[str] = (), *, servers: Iterable[int] = ()
    ) -> Operation[None]:
        """Ends exclusions."""
        return self._order_exclusion(OrderKind.INCLUDE, hashes, servers)

    def _order_exclusion(
        self, kind: OrderKind, hashes: Iterable[str], servers: Iterable[int]
    ) -> Operation[None]:
        if isinstance(hashes, str):
            raise TypeError("hashes must be a list")
        known = tuple(map(checked_hash, hashes))
        ids = tuple(map(checked_id, servers))
        if not known and not ids:
            raise ValueError("give the hash of a destination or a server's id")
        yield from self._submit_order(kind, hashes=known, servers=ids)

    @operation
    def export(self) -> Operation[dict[str, Any]]:
        """The administrators' configuration and the members: the argument of
        import_(), here or in another farm.
        """
        return self._from_leader("configuration")

    @operation
    def import_(self, configuration: Mapping[str, Any]) -> Operation[None]:
        """Sets the administrators' configuration from an export. It does not
        change the members; see add_server() and remove_server().
        """
        try:
            config = decode_export(configuration)
        except RemoteProtocolError as error:
            raise ValueError(f"not an exported configuration: {error}") from None
        yield from self._submit_order(OrderKind.IMPORT, configuration=config)

    def _submit_order(self, kind: OrderKind, **view: Any) -> Operation[None]:
        """Waits until an administrator's order is committed."""
        setup, deadline_ms = self._client.setup, self._deadline_ms
        if setup.plain:
            raise FarmRefused("JRaft servers do not execute administrators' orders")
        try:
            value = encode_order(Order(kind, setup.farm, wall_ms(), setup.user, **view))
        except LocalProtocolError as error:
            raise ValueError(str(error)) from None
        entry = FarmLogEntry(0, ValueType.APPLICATION, value)
        request = Request(MessageType.CLIENT_REQUEST, entries=(entry,))
        while True:
            status = yield from FarmOperations.status(self)
            self._check_admin(status)
            response = yield from self._submit_exclusive(request, deadline_ms)
            if response.is_accepted:
                return
            if status.get("change") is None or monotonic_ms() >= deadline_ms:
                leader = response.source
                raise FarmDenied(f"the leader, server {leader}, refuses orders of {setup.user}")
            yield Sleep(CHANGE_POLL_MS)  # The leader is handing over.

    # ---- members ----

    @operation
    def add_server(self, server_id: int, endpoint: str, *, wait: bool = True) -> Operation[bool]:
        """Adds a server that runs and waits for an invitation. Needs an
        administrator.

        endpoint   its address for the other servers: tcp://HOST:PORT
        wait       True: until it is a member. False: until the leader has
                   started

        Returns False if it is a member already. Raises FarmDenied, FarmRefused,
        FarmTimeout.
        """
        change = _MemberChange(checked_id(server_id), checked_endpoint(endpoint))
        return self._change_members(change, wait)

    @operation
    def remove_server(self, server_id: int, *, wait: bool = True) -> Operation[bool]:
        """Removes a server. If it leads, another server becomes leader. Its
        process keeps running.

        Returns False if it is not a member. Raises FarmDenied, FarmRefused,
        FarmTimeout.
        """
        return self._change_members(_MemberChange(checked_id(server_id)), wait)

    def _change_members(self, change: _MemberChange, wait: bool) -> Operation[bool]:
        """Requests a change until the leader accepts it, or it is done; returns whether there
        was a change.
        """
        deadline_ms, is_started = self._deadline_ms, False
        has_http_api = not self._client.setup.plain
        while True:
            if has_http_api:
                status = yield from FarmOperations.status(self)
                members = {each.id: each.endpoint for each in _members(status)}
                is_done = members.get(change.server_id) == change.endpoint
                if is_done and not change.is_joining(status):
                    return is_started
                if is_started and status.get("change") is None and change.is_over(status):
                    raise FarmRefused(
                        f"the leader has given up {change.name}; it must be running and "
                        f"wait for an invitation. if it was removed while it was down, it does not "
                        f"know that: stop it, empty its directory, start it again"
                    )
                self._check_change(change, status)
            is_busy = has_http_api and status.get("change") is not None
            if not is_busy or change.is_joining(status):
                response = yield from self._submit_exclusive(change.request, deadline_ms)
                is_started = is_started or response.is_accepted
                change.term = response.term
                if is_started and not (wait and has_http_api):
                    return True
            if monotonic_ms() >= deadline_ms or not (has_http_api or is_started):
                raise self._change_error(change, is_started)
            yield Sleep(CHANGE_POLL_MS)

    def _submit_exclusive(self, request: Request, deadline_ms: int) -> Operation[Response]:
        """The leader's immediate answer to a request."""
        command = FarmCommand(request.type, tuple(request.entries), deadline_ms, is_exclusive=True)
        self._client.submit(command)
        try:
            yield _done(command)
        finally:
            self._client.cancel([] if command.done else [command])
        self._check(command)
        assert command.response is not None
        return command.response

    def _change_error(self, change: _MemberChange, is_started: bool) -> FarmError:
        if is_started:
            text = f"the change of {change.name} is still in progress; kelek farm status shows it"
            if change.adds:
                text += f", kelek farm remove {change.server_id} cancels it"
            return FarmTimeout(text)
        return FarmRefused(
            f"the leader refuses a change of {change.name}: another change is in progress, its own "
            f"election has just ended, or this user is no administrator"
        )

    def _check_change(self, change: _MemberChange, status: Mapping[str, Any]) -> None:
        """Raises an error if the leader would refuse the change for good."""
        self._check_admin(status)
        members = _members(status)
        if not change.adds:
            if [server.id for server in members] == [change.server_id]:
                raise FarmRefused(f"{change.name} is the only member and cannot be removed")
            return
        for server in members:
            if server.id == change.server_id:
                where = f"at {server.endpoint}; to move it remove it first"
                raise FarmRefused(f"{change.name} is already a member, {where}")

    def _check_admin(self, status: Mapping[str, Any]) -> None:
        asker = status.get("asked_by")
        if isinstance(asker, dict) and asker.get("admin") is False:
            user, farm = self._client.setup.user, self._client.setup.farm
            raise FarmDenied(
                f"user {user} is no administrator of the farm {farm}; "
                f"name it under `farms: {{{farm}: {{admins: [..]}}}}` on the servers, "
                f"or use another user"
            )

    @property
    def counters(self) -> dict[str, int]:
        """Counts of connections, lost, requests, redirects, refused, junk."""
        return dict(self._client.counters)

    def _closed_error(self) -> FarmError:
        return FarmError(f"this {type(self).__name__} is closed")

    def _timeout_error(self) -> FarmTimeout:
        return FarmTimeout(self._client.explain().text)


def _done(command: FarmCommand) -> Wait:
    """Waits until it is done; the client state machine has the deadline."""
    return Wait(lambda: command.done, limited=False)


def _object(body: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(body or b"")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FarmError("a server's response is not a JSON object; is it a kelek server?")
    return found


def _members(status: Mapping[str, Any]) -> Sequence[ClusterServer]:
    try:
        return [ClusterServer(int(it["id"]), str(it["endpoint"])) for it in status["members"]]
    except (KeyError, TypeError, ValueError):
        raise FarmError("a server's response is not a status; is it a kelek server?") from None
