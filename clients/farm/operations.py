"""The operations of a Farm, written once for both of its APIs as generators that name what they
wait for.

The owner of the connections drives them: kelek.Farm polls its sockets (farm.py), kelek.AsyncFarm
leaves that to asyncio (async_farm.py). This module does not read, send or sleep.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
from ..io.operations import Sleep, Step, Wait
from .links import LOOPBACK_ONLY, ConnectSettings
from .values import (
    APPLICATION,
    FarmEntry,
    FarmPage,
    FarmServer,
    Servers,
    checked_endpoint,
    checked_hash,
    checked_id,
    checked_servers,
    make_tls,
    page_of,
    read_secret,
    server_of,
)

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

_ERROR_CLASSES: dict[FailureKind, type[FarmError]] = {
    FailureKind.LOST: FarmUnavailable,
    FailureKind.LEADERLESS: FarmNoLeader,
    FailureKind.TIMEOUT: FarmTimeout,
    FailureKind.DENIED: FarmDenied,
    FailureKind.UNTRUSTED: FarmUntrusted,
    FailureKind.NO_FARM: FarmRefused,
    FailureKind.NO_HTTP_API: FarmRefused,
}
_HINTS = {
    FailureKind.LOST: "does a server of farm {farm!r} run there?",
    FailureKind.LEADERLESS: "does a majority of farm {farm!r} run?",
    FailureKind.TIMEOUT: "what was to be appended may still be",
    FailureKind.DENIED: "the password file of the servers has to name this user for this farm",
    FailureKind.NO_FARM: "is this its name?",
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
    servers: Servers, farm: str, credentials: Credentials, tuning: FarmTuning
) -> FarmClient:
    """The state machine of a Farm with these arguments.

    Raises ValueError, TypeError, FarmError, and OSError if the secret file cannot be read.
    """
    addresses = checked_servers(servers)
    if not farm or not FARM_NAME_CHARACTERS.issuperset(farm):
        raise ValueError(f"{farm!r} is not a farm's name; use letters, digits, '.', '_' and '-'")
    setup = FarmClientSetup(farm, addresses.known, ids=addresses.ids, plain=tuning.insecure_jraft)
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


def make_connect_settings(
    ca_file: str | os.PathLike[str] | None, tuning: FarmTuning
) -> ConnectSettings:
    """How the connections of a Farm are made. Raises ValueError, FarmError."""
    if tuning.proxy:
        return ConnectSettings(proxy=checked_servers(tuning.proxy).known[0])
    if tuning.i2p or tuning.insecure_jraft:
        return ConnectSettings()
    return ConnectSettings(make_tls(ca_file, tuning.tls), tuning.server_name)


def checked_values(values: Iterable[bytes]) -> Iterable[bytes]:
    """Raises TypeError, FarmTooLarge."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise TypeError("values must be a list: append([value])")
    return values


class _MemberChange:
    """A member change that a caller waits for."""

    def __init__(
        self, request: Request, server_id: int, is_done: Callable[[Mapping[int, str]], bool]
    ) -> None:
        self.request = request
        self.server_id = server_id
        self.name = f"server {server_id}"
        self.is_done = is_done  # Takes the members' endpoints by id.
        self.term = 0  # The leader's term in its answer.

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """Whether the leader that started the change has dropped it. A removal continues under
        the next leader, because a leader that leaves hands over first.
        """
        adds = self.request.type is MessageType.ADD_SERVER
        return adds and status.get("state") == "leader" and status.get("term") == self.term


class FarmOperations:
    """The operations of one Farm on its client state machine."""

    def __init__(self, client: FarmClient, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= 86_400_000:
            raise ValueError(f"a timeout must be 1 to 86400000 ms, not {timeout_ms}")
        self.client = client
        self.timeout_ms = timeout_ms

    @property
    def _deadline_ms(self) -> int:
        return monotonic_ms() + self.timeout_ms

    # ---- appending ----

    def append(self, values: Iterable[bytes]) -> Generator[Step, None, int]:
        """Appends values and waits until all are committed. Returns the index after the last
        one.
        """
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
                    f"{self.client.setup.user or 'a client'}: it is larger than servers accept, or "
                    f"a server's status or an order, which this user may not post"
                )
            next_index = command.response.next_index

        try:
            for entries in self._requests(values):
                if len(waiting) == OUTSTANDING_MAX:
                    yield _done(waiting[0])
                    check_next()
                command = FarmCommand(MessageType.CLIENT_REQUEST, entries, self._deadline_ms)
                waiting.append(self.client.submit(command))
            while waiting:
                yield _done(waiting[0])
                check_next()
        finally:
            self.client.cancel(command for command in waiting if not command.done)
        return next_index

    def _requests(self, values: Iterable[bytes]) -> Iterable[tuple[FarmLogEntry, ...]]:
        """Groups values into requests."""
        entries: list[FarmLogEntry] = []
        size = 0
        for value in checked_values(values):
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
            raise self.error_of(command.failure)

    def error_of(self, failure: ConnectFailure) -> FarmError:
        """The public error for a failure."""
        hint = _HINTS.get(failure.kind, "").format(farm=self.client.setup.farm)
        return _ERROR_CLASSES[failure.kind](f"{failure.text}; {hint}" if hint else failure.text)

    # ---- queries ----

    def reach(self, timeout_ms: int) -> Generator[Step, None, None]:
        """Waits until a server accepts our credentials."""
        if not self.client.setup.plain:
            yield from self.get("status", timeout_ms)

    def get(
        self, view: str, timeout_ms: int | None = None
    ) -> Generator[Step, None, dict[str, Any]]:
        """A view of any server."""
        deadline_ms = self._deadline_ms if timeout_ms is None else monotonic_ms() + timeout_ms
        query = self.client.query(ViewQuery(view, deadline_ms))
        try:
            yield _done(query)
        finally:
            self.client.cancel_query(query)
        if query.failure is not None:
            raise self.error_of(query.failure)
        return _object(query.body)

    def status(self) -> Generator[Step, None, dict[str, Any]]:
        """The leader's status if it answers, otherwise that of another server."""
        found = yield from self._status_of_any()
        if found.get("state") == "leader":
            return found
        return (yield from self._query_leader("status", found)) or found

    def _status_of_any(self) -> Generator[Step, None, dict[str, Any]]:
        """The status of any server, preferably of one that knows the leader."""
        found = yield from self.get("status")
        self.client.learn_servers(_members(found))
        if found.get("leader") is not None:
            return found
        others = yield from self._query_all(self.client.servers)
        known = [_object(each.body) for each in others if each.body is not None]
        known.sort(key=lambda each: (each.get("leader") is None, each.get("state") == "waiting"))
        best = known[0] if known else found
        self.client.learn_servers(_members(best))
        return best

    def _query_all(self, servers: Iterable[Address]) -> Generator[Step, None, list[ViewQuery]]:
        """Queries the status of these servers concurrently, once each."""
        deadline_ms = monotonic_ms() + min(STATUS_MS, self.timeout_ms)
        queries = [ViewQuery("status", deadline_ms, address, is_once=True) for address in servers]
        for query in queries:
            self.client.query(query)
        try:
            yield Wait(lambda: all(query.done for query in queries), limited=False)
        finally:
            for query in queries:
                self.client.cancel_query(query)
        return queries

    def from_leader(self, view: str) -> Generator[Step, None, dict[str, Any]]:
        """A view of the leader, which includes everything acknowledged before; without a leader,
        of any server.
        """
        found = yield from self._query_leader(view, (yield from self._status_of_any()))
        return found if found is not None else (yield from self.get(view))

    def _query_leader(
        self, view: str, status: Mapping[str, Any]
    ) -> Generator[Step, None, dict[str, Any] | None]:
        """None if there is no leader or it does not answer."""
        leader_id = status.get("leader")
        address = self.client.ids.get(leader_id) if isinstance(leader_id, int) else None
        if address is None:
            return None
        query = ViewQuery(view, monotonic_ms() + STATUS_MS, address, is_once=True)
        self.client.query(query)
        try:
            yield _done(query)
        finally:
            self.client.cancel_query(query)
        return None if query.body is None else _object(query.body)

    def servers(self) -> Generator[Step, None, list[FarmServer]]:
        """Each member with its own status."""
        found = yield from self._status_of_any()
        members = found.get("members", [])
        queries = yield from self._query_all(
            parse_address(each.endpoint) for each in _members(found)
        )
        return [
            server_of(member, _problem(query) or _object(query.body))
            for member, query in zip(members, queries, strict=True)
        ]

    def commit_index(self) -> Generator[Step, None, int]:
        """The leader's commit index."""
        found = yield from self.status()
        return int(found.get("commit", 0))

    def documents(self, server_id: int | None) -> Generator[Step, None, dict[str, Any]]:
        """The documents view, for one server or all."""
        one = "" if server_id is None else f"?id={checked_id(server_id)}"
        return (yield from self.from_leader(f"documents{one}"))

    def publisher(self) -> Generator[Step, None, int | None]:
        """The server that publishes the MetaLS."""
        found = yield from self.from_leader("documents")
        publisher = found.get("publisher")
        return None if publisher is None else int(publisher)

    # ---- entries ----

    def read(
        self,
        from_index: int,
        count: int = PAGE_ENTRIES,
        all_kinds: bool = False,
        from_leader: bool = False,
    ) -> Generator[Step, None, FarmPage]:
        """A page of the log. from_leader: asks the leader, if there is one."""
        if from_index < 1:
            raise ValueError(f"the first index is 1, not {from_index}")
        count = max(1, min(count, PAGE_ENTRIES))
        view = f"entries?from={from_index}&count={count}&raw=1"
        found = yield from (self.from_leader(view) if from_leader else self.get(view))
        page = page_of(found)
        if page.first_index > from_index:
            raise FarmCompacted(page.first_index)
        if not all_kinds:
            own = tuple(entry for entry in page.entries if entry.kind == APPLICATION)
            page = page._replace(entries=own)
        # A server may lag behind the one before.
        return page._replace(next_index=max(page.next_index, from_index))

    def entries(
        self, from_index: int, follow: bool, all_kinds: bool
    ) -> Generator[Step | list[FarmEntry], None, None]:
        """Lists of entries, in log order."""
        end = 0 if follow else (yield from self.commit_index()) + 1
        idle_polls = 0  # Reads without news: a server that is no member never has any.
        while follow or from_index < end:
            from_leader = idle_polls % LEADER_POLLS == LEADER_POLLS - 1
            page = yield from self.read(from_index, all_kinds=all_kinds, from_leader=from_leader)
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

    # ---- orders ----

    def publish(self, server: int | str | None) -> Generator[Step, None, None]:
        """Orders who publishes."""
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

    def _check_publisher(self, server_id: int) -> Generator[Step, None, None]:
        """Raises FarmRefused if the server is no member: the order would have no effect."""
        if self.client.setup.plain:
            return
        status = yield from self.status()
        self._check_admin(status)
        members = [server.id for server in _members(status)]
        if server_id not in members:
            listed = ", ".join(map(str, members))
            raise FarmRefused(
                f"server {server_id} is no member, so it cannot publish; the members are {listed}"
            )

    def order_exclusion(
        self, kind: OrderKind, hashes: Iterable[str], servers: Iterable[int]
    ) -> Generator[Step, None, None]:
        """Excludes destinations and servers, or includes them again."""
        if isinstance(hashes, str):
            raise TypeError("hashes must be a list")
        known = tuple(map(checked_hash, hashes))
        ids = tuple(map(checked_id, servers))
        if not known and not ids:
            raise ValueError("give the hash of a destination or a server's id")
        yield from self._submit_order(kind, hashes=known, servers=ids)

    def import_config(self, configuration: Mapping[str, Any]) -> Generator[Step, None, None]:
        """Sets an exported configuration."""
        try:
            config = decode_export(configuration)
        except RemoteProtocolError as error:
            raise ValueError(f"not an exported configuration: {error}") from None
        yield from self._submit_order(OrderKind.IMPORT, configuration=config)

    def _submit_order(self, kind: OrderKind, **view: Any) -> Generator[Step, None, None]:
        """Waits until an administrator's order is committed."""
        setup, deadline_ms = self.client.setup, self._deadline_ms
        if setup.plain:
            raise FarmRefused("JRaft servers do not execute administrators' orders")
        try:
            value = encode_order(Order(kind, setup.farm, wall_ms(), setup.user, **view))
        except LocalProtocolError as error:
            raise ValueError(str(error)) from None
        entry = FarmLogEntry(0, ValueType.APPLICATION, value)
        request = Request(MessageType.CLIENT_REQUEST, entries=(entry,))
        while True:
            status = yield from self.status()
            self._check_admin(status)
            response = yield from self._submit_exclusive(request, deadline_ms)
            if response.is_accepted:
                return
            if status.get("change") is None or monotonic_ms() >= deadline_ms:
                leader = response.source
                raise FarmDenied(f"the leader, server {leader}, refuses orders of {setup.user}")
            yield Sleep(CHANGE_POLL_MS)  # The leader is handing over.

    # ---- members ----

    def add_server(self, server_id: int, endpoint: str, wait: bool) -> Generator[Step, None, bool]:
        """Adds a server."""
        server = ClusterServer(checked_id(server_id), checked_endpoint(endpoint))

        def is_done(found: Mapping[int, str]) -> bool:
            return found.get(server_id) == server.endpoint

        change = _MemberChange(add_server_request(server), server_id, is_done)
        return (yield from self._change_members(change, wait))

    def remove_server(self, server_id: int, wait: bool) -> Generator[Step, None, bool]:
        """Removes a server."""
        request = remove_server_request(checked_id(server_id))
        change = _MemberChange(request, server_id, lambda found: server_id not in found)
        return (yield from self._change_members(change, wait))

    def _change_members(self, change: _MemberChange, wait: bool) -> Generator[Step, None, bool]:
        """Requests a change until the leader accepts it, or it is done; returns whether there
        was a change.
        """
        deadline_ms, is_started = self._deadline_ms, False
        has_http_api = not self.client.setup.plain
        while True:
            if has_http_api:
                status = yield from self.status()
                members = {each.id: each.endpoint for each in _members(status)}
                if change.is_done(members) and not self._is_joining(change, status):
                    return is_started
                if is_started and status.get("change") is None and change.is_over(status):
                    raise FarmRefused(
                        f"the leader has given up {change.name}; it must be running and "
                        f"wait for an invitation. if it was removed while it was down, it does not "
                        f"know that: stop it, empty its directory, start it again"
                    )
                self._check_change(change, status)
            is_busy = has_http_api and status.get("change") is not None
            is_busy = is_busy and not self._is_joining(change, status)
            if not is_busy:
                response = yield from self._submit_exclusive(change.request, deadline_ms)
                is_started = is_started or response.is_accepted
                change.term = response.term
                if is_started and not (wait and has_http_api):
                    return True
            if monotonic_ms() >= deadline_ms or not (has_http_api or is_started):
                raise self._change_error(change, is_started)
            yield Sleep(CHANGE_POLL_MS)

    def _is_joining(self, change: _MemberChange, status: Mapping[str, Any]) -> bool:
        """Whether the server to remove is just being added; the removal then cancels that."""
        current = status.get("change") or {}
        removes = change.request.type is MessageType.REMOVE_SERVER
        is_early = current.get("stage") in ("invite", "feed")
        return removes and is_early and current.get("server") == change.server_id

    def _submit_exclusive(
        self, request: Request, deadline_ms: int
    ) -> Generator[Step, None, Response]:
        """The leader's immediate answer to a request."""
        command = FarmCommand(request.type, tuple(request.entries), deadline_ms, is_exclusive=True)
        self.client.submit(command)
        try:
            yield _done(command)
        finally:
            self.client.cancel([] if command.done else [command])
        self._check(command)
        assert command.response is not None
        return command.response

    def _change_error(self, change: _MemberChange, is_started: bool) -> FarmError:
        if is_started:
            text = f"the change of {change.name} is still in progress; kelek farm status shows it"
            if change.request.type is MessageType.ADD_SERVER:
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
        if change.request.type is MessageType.REMOVE_SERVER:
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
            user, farm = self.client.setup.user, self.client.setup.farm
            raise FarmDenied(
                f"user {user} is no administrator of the farm {farm}; "
                f"name it under `farms: {{{farm}: {{admins: [..]}}}}` on the servers, "
                f"or use another user"
            )


def _done(view: FarmCommand | ViewQuery) -> Wait:
    """Waits until it is done; the client state machine has the deadline."""
    return Wait(lambda: view.done, limited=False)


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


def _problem(query: ViewQuery) -> str:
    return "" if query.failure is None else query.failure.text
