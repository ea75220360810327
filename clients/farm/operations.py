"""What a Farm does, once for both of its faces: each step waits for the machine alone.

A step is driven to its end by whoever has the connections: kelek.Farm turns them (farm.py),
kelek.AsyncFarm leaves them to asyncio (async_farm.py). Nothing here reads, sends or sleeps.
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
from ..io.driver import Sleep, Step, Wait
from .links import ONLY_HERE, Reach
from .values import (
    APPLICATION,
    FarmEntry,
    FarmPage,
    FarmServer,
    Servers,
    checked_endpoint,
    checked_hash,
    checked_id,
    checked_places,
    make_tls,
    page_of,
    read_secret,
    server_of,
)

TIMEOUT_MS = 10_000
OUTSTANDING_MAX = 256  # Wishes of one append() that wait.
PAGE_ENTRIES = 1000  # The most that a server gives in one answer.
POLL_MS = 200  # At the end of the log.
FRESH_POLLS = 10  # Each so many looks for more the leader is asked, not just any server.
LOOK_MS = 2000  # For what each server says of itself.
CHANGE_REST_MS = 200
VALUE_BYTES_MAX = ENTRIES_BYTES_MAX - ENTRY_HEADER.size  # Servers may accept less.
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

_ERRORS: dict[FailureKind, type[FarmError]] = {
    FailureKind.LOST: FarmUnavailable,
    FailureKind.LEADERLESS: FarmNoLeader,
    FailureKind.TIMEOUT: FarmTimeout,
    FailureKind.DENIED: FarmDenied,
    FailureKind.UNTRUSTED: FarmUntrusted,
    FailureKind.NO_FARM: FarmRefused,
    FailureKind.NO_HTTP_API: FarmRefused,
}
_WAYS_OUT = {
    FailureKind.TIMEOUT: "what was to be appended may still be",
    FailureKind.DENIED: "the password file of the servers has to name this user for this farm",
    FailureKind.NO_FARM: "is this its name?",
}


class FarmTuning(NamedTuple):
    """How servers are reached.

    tls              "1.3", or "1.2" for servers that know no other
    server_name      whom their certificates name; "": the host that is connected to
    proxy            HOST:PORT of an HTTP proxy, as I2P has one: no TLS, servers' hosts as it knows
                     them
    i2p              no TLS: the address is that of a tunnel on this machine
    insecure_jraft   neither TLS nor user: a server of JRaft, on this machine
    reach_ms         a call fails after so long, not after its timeout, while no server was ever
                     reached; with a proxy it does not
    """

    tls: str = "1.3"
    server_name: str = ""
    proxy: str = ""
    i2p: bool = False
    insecure_jraft: bool = False
    reach_ms: int = 2000


class Credentials(NamedTuple):
    """Who we are: a password, or the file that holds it alone."""

    user: str
    password: str | None
    secret_file: str | os.PathLike[str] | None


def make_client(
    servers: Servers, farm: str, credentials: Credentials, tuning: FarmTuning
) -> FarmClient:
    """The machine for a Farm with these arguments. Raises ValueError, TypeError, FarmError,
    OSError: the secret file can't be read."""
    places = checked_places(servers)
    if not farm or not NAME_CHARACTERS.issuperset(farm):
        raise ValueError(f"{farm!r} is no farm's name: it has letters, digits, '.', '_' and '-'")
    setup = FarmClientSetup(farm, places.known, ids=places.ids, plain=tuning.insecure_jraft)
    if tuning.insecure_jraft or (tuning.i2p and not tuning.proxy):
        for host, _ in places.known:
            if not is_loopback(host):
                raise ValueError(f"{host}: {ONLY_HERE}")
    if not tuning.insecure_jraft:
        user, password, secret_file = credentials
        if not user or ":" in user or not user.isprintable():
            raise ValueError(f"{user!r} is no user; give the one that the servers know")
        if (password is None) == (secret_file is None):
            raise ValueError("give the password's file, secret_file, or password; not both")
        if secret_file is not None:
            password = read_secret(secret_file)
        setup = setup._replace(user=user, password=password or "")
    if tuning.proxy:
        setup = setup._replace(via_proxy=True, connect_timeout_ms=60_000)
    else:
        setup = setup._replace(unreachable_timeout_ms=tuning.reach_ms)
    return FarmClient(setup, os.urandom)


def make_reach(ca_file: str | os.PathLike[str] | None, tuning: FarmTuning) -> Reach:
    """How it connects. Raises ValueError, FarmError."""
    if tuning.proxy:
        return Reach(proxy=checked_places(tuning.proxy).known[0])
    if tuning.i2p or tuning.insecure_jraft:
        return Reach()
    return Reach(make_tls(ca_file, tuning.tls), tuning.server_name)


def checked_values(values: Iterable[bytes]) -> Iterable[bytes]:
    """Raises TypeError, FarmTooLarge."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise TypeError("values are several, in a list: append([value])")
    return values


class _Change:
    """A change of the members that somebody waits for."""

    def __init__(
        self, request: Request, server_id: int, is_done: Callable[[Mapping[int, str]], bool]
    ) -> None:
        self.request = request
        self.server_id = server_id
        self.name = f"server {server_id}"
        self.is_done = is_done  # Told who is where.
        self.term = 0  # In which the leader has answered.

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """Whether the very leader that has begun it does it no longer. Who leaves hands over first,
        and is left out by the next leader; another one may have to be asked anew."""
        adds = self.request.type is MessageType.ADD_SERVER
        return adds and status.get("state") == "leader" and status.get("term") == self.term


class FarmOperations:
    """The steps of one Farm over its machine."""

    def __init__(self, client: FarmClient, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= 86_400_000:
            raise ValueError(f"a timeout is 1 to 86400000 ms, not {timeout_ms}")
        self.client = client
        self.timeout_ms = timeout_ms

    @property
    def _until_ms(self) -> int:
        return monotonic_ms() + self.timeout_ms

    # ---- appending ----

    def append(self, values: Iterable[bytes]) -> Generator[Step, None, int]:
        """Appends values, and waits until all are committed."""
        waiting: deque[FarmCommand] = deque()
        next_index = 0

        def settle() -> None:
            nonlocal next_index
            wish = waiting.popleft()
            self._check(wish)
            assert wish.response is not None
            if not wish.response.is_accepted:
                raise FarmRefused(
                    f"the leader, server {wish.response.source}, takes no such entry of "
                    f"{self.client.setup.user or 'a client'}: it is larger than servers accept, or "
                    f"a server's status or an order, which this user may not post"
                )
            next_index = wish.response.next_index

        try:
            for entries in self._requests(values):
                if len(waiting) == OUTSTANDING_MAX:
                    yield _done(waiting[0])
                    settle()
                wish = FarmCommand(MessageType.CLIENT_REQUEST, entries, self._until_ms)
                waiting.append(self.client.submit(wish))
            while waiting:
                yield _done(waiting[0])
                settle()
        finally:
            self.client.cancel(wish for wish in waiting if not wish.done)
        return next_index

    def _requests(self, values: Iterable[bytes]) -> Iterable[tuple[FarmLogEntry, ...]]:
        """By as many as go into a request."""
        entries: list[FarmLogEntry] = []
        size = 0
        for value in checked_values(values):
            if not isinstance(value, bytes):
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
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

    def _check(self, wish: FarmCommand) -> None:
        if wish.failure is not None:
            raise self.error_of(wish.failure)

    def error_of(self, trouble: ConnectFailure) -> FarmError:
        """What has gone wrong, as users are told."""
        way_out = _WAYS_OUT.get(trouble.kind, "")
        return _ERRORS[trouble.kind](f"{trouble.text}; {way_out}" if way_out else trouble.text)

    # ---- questions ----

    def reach(self, timeout_ms: int) -> Generator[Step, None, None]:
        """Waits until a server lets us in."""
        if not self.client.setup.plain:
            yield from self.get("status", timeout_ms)

    def get(
        self, what: str, timeout_ms: int | None = None
    ) -> Generator[Step, None, dict[str, Any]]:
        """What a server answers, whichever it is."""
        until_ms = self._until_ms if timeout_ms is None else monotonic_ms() + timeout_ms
        question = self.client.query(ViewQuery(what, until_ms))
        try:
            yield _done(question)
        finally:
            self.client.cancel_query(question)
        if question.failure is not None:
            raise self.error_of(question.failure)
        return _object(question.body)

    def status(self) -> Generator[Step, None, dict[str, Any]]:
        """The leader's status, if one is known and answers, else that of whoever does."""
        found = yield from self._seen()
        if found.get("state") == "leader":
            return found
        return (yield from self._of_leader("status", found)) or found

    def _seen(self) -> Generator[Step, None, dict[str, Any]]:
        """The status of any server; of one that knows who leads, if there is such a one."""
        found = yield from self.get("status")
        self.client.learn_servers(_members(found))
        if found.get("leader") is not None:
            return found
        others = yield from self._all(self.client.servers)
        known = [_object(each.body) for each in others if each.body is not None]
        known.sort(key=lambda each: (each.get("leader") is None, each.get("state") == "waiting"))
        best = known[0] if known else found
        self.client.learn_servers(_members(best))
        return best

    def _all(self, places: Iterable[Address]) -> Generator[Step, None, list[ViewQuery]]:
        """Asks each of them for its status, at the same time and once."""
        until_ms = monotonic_ms() + min(LOOK_MS, self.timeout_ms)
        asked = [ViewQuery("status", until_ms, place, is_once=True) for place in places]
        for question in asked:
            self.client.query(question)
        try:
            yield Wait(lambda: all(question.done for question in asked), limited=False)
        finally:
            for question in asked:
                self.client.cancel_query(question)
        return asked

    def fresh(self, what: str) -> Generator[Step, None, dict[str, Any]]:
        """What the leader answers, which is behind nothing that was confirmed; without one, what
        any server does."""
        found = yield from self._of_leader(what, (yield from self._seen()))
        return found if found is not None else (yield from self.get(what))

    def _of_leader(
        self, what: str, status: Mapping[str, Any]
    ) -> Generator[Step, None, dict[str, Any] | None]:
        """None: nobody leads, or it does not answer."""
        leader_id = status.get("leader")
        place = self.client.ids.get(leader_id) if isinstance(leader_id, int) else None
        if place is None:
            return None
        question = ViewQuery(what, monotonic_ms() + LOOK_MS, place, is_once=True)
        self.client.query(question)
        try:
            yield _done(question)
        finally:
            self.client.cancel_query(question)
        return None if question.body is None else _object(question.body)

    def servers(self) -> Generator[Step, None, list[FarmServer]]:
        """Each member, with what it says of itself."""
        found = yield from self._seen()
        members = found.get("members", [])
        asked = yield from self._all(parse_address(each.endpoint) for each in _members(found))
        return [
            server_of(member, _problem(question) or _object(question.body))
            for member, question in zip(members, asked, strict=True)
        ]

    def commit_index(self) -> Generator[Step, None, int]:
        """How far the log is committed, as the leader knows it."""
        found = yield from self.status()
        return int(found.get("commit", 0))

    def documents(self, server_id: int | None) -> Generator[Step, None, dict[str, Any]]:
        """What the log amounts to; with one document, or all that there is room for."""
        one = "" if server_id is None else f"?id={checked_id(server_id)}"
        return (yield from self.fresh(f"documents{one}"))

    def publisher(self) -> Generator[Step, None, int | None]:
        """Who publishes the MetaLS."""
        found = yield from self.fresh("documents")
        publisher = found.get("publisher")
        return None if publisher is None else int(publisher)

    # ---- entries ----

    def read(
        self,
        from_index: int,
        count: int = PAGE_ENTRIES,
        all_kinds: bool = False,
        fresh: bool = False,
    ) -> Generator[Step, None, FarmPage]:
        """One page of the log; fresh: of the leader, if there is any."""
        if from_index < 1:
            raise ValueError(f"the first entry is 1, not {from_index}")
        count = max(1, min(count, PAGE_ENTRIES))
        what = f"entries?from={from_index}&count={count}&raw=1"
        found = yield from (self.fresh(what) if fresh else self.get(what))
        page = page_of(found)
        if page.first_index > from_index:
            raise FarmCompacted(page.first_index)
        if not all_kinds:
            own = tuple(entry for entry in page.entries if entry.kind == APPLICATION)
            page = page._replace(entries=own)
        # A server that lags behind the one before has nothing for us yet.
        return page._replace(next_index=max(page.next_index, from_index))

    def entries(
        self, from_index: int, follow: bool, all_kinds: bool
    ) -> Generator[Step | list[FarmEntry], None, None]:
        """Lists of entries, in the order of the log."""
        end = 0 if follow else (yield from self.commit_index()) + 1
        polls = 0  # Without anything new: a server that is no member has nothing, ever.
        while follow or from_index < end:
            fresh = polls % FRESH_POLLS == FRESH_POLLS - 1
            page = yield from self.read(from_index, all_kinds=all_kinds, fresh=fresh)
            is_whole = page.next_index == from_index
            polls = polls + 1 if is_whole else 0
            from_index = page.next_index
            entries = list(page.entries)
            if not follow:
                entries = [entry for entry in entries if entry.index < end]
            if entries:
                yield entries
            if is_whole and (follow or from_index < end):
                yield Sleep(POLL_MS)

    # ---- orders ----

    def publish(self, server: int | str | None) -> Generator[Step, None, None]:
        """Says who publishes."""
        if server is None:
            choice: int | PublishChoice = PublishChoice.NOBODY
        elif server == PublishChoice.AUTO.value:
            choice = PublishChoice.AUTO
        elif isinstance(server, str):
            raise ValueError(f"a server's id, 'auto' or None says who publishes, not {server!r}")
        else:
            choice = checked_id(server)
            yield from self._check_publisher(choice)
        yield from self._order(OrderKind.PUBLISH, publish=choice)

    def _check_publisher(self, server_id: int) -> Generator[Step, None, None]:
        """Raises FarmRefused when it is no member: the order would change nothing."""
        if self.client.setup.plain:
            return
        status = yield from self.status()
        self._check_admin(status)
        members = [server.id for server in _members(status)]
        if server_id not in members:
            listed = ", ".join(map(str, members))
            raise FarmRefused(f"server {server_id} can't publish, as it is no member: {listed} are")

    def leave_out(
        self, kind: OrderKind, hashes: Iterable[str], servers: Iterable[int]
    ) -> Generator[Step, None, None]:
        """Leaves destinations and servers out, or takes them in again."""
        if isinstance(hashes, str):
            raise TypeError("hashes are several, in a list")
        known = tuple(map(checked_hash, hashes))
        ids = tuple(map(checked_id, servers))
        if not known and not ids:
            raise ValueError("give the hash of a destination, or a server's id")
        yield from self._order(kind, hashes=known, servers=ids)

    def take_over(self, configuration: Mapping[str, Any]) -> Generator[Step, None, None]:
        """Sets what an export has kept."""
        try:
            export = decode_export(configuration)
        except RemoteProtocolError as error:
            raise ValueError(f"it is no exported configuration: {error}") from None
        yield from self._order(OrderKind.IMPORT, configuration=export)

    def _order(self, kind: OrderKind, **what: Any) -> Generator[Step, None, None]:
        """Has an order of an administrator committed."""
        setup, until_ms = self.client.setup, self._until_ms
        if setup.plain:
            raise FarmRefused("servers of JRaft know no administrators: nobody would obey it")
        try:
            value = encode_order(Order(kind, setup.farm, wall_ms(), setup.user, **what))
        except LocalProtocolError as error:
            raise ValueError(str(error)) from None
        entry = FarmLogEntry(0, ValueType.APPLICATION, value)
        request = Request(MessageType.CLIENT_REQUEST, entries=(entry,))
        while True:
            status = yield from self.status()
            self._check_admin(status)
            response = yield from self._ask_leader(request, until_ms)
            if response.is_accepted:
                return
            if status.get("change") is None or monotonic_ms() >= until_ms:
                leader = response.source
                raise FarmDenied(f"the leader, server {leader}, takes no orders of {setup.user}")
            yield Sleep(CHANGE_REST_MS)  # It hands over.

    # ---- members ----

    def add_server(self, server_id: int, endpoint: str, wait: bool) -> Generator[Step, None, bool]:
        """Has the leader take a server in."""
        server = ClusterServer(checked_id(server_id), checked_endpoint(endpoint))

        def is_done(found: Mapping[int, str]) -> bool:
            return found.get(server_id) == server.endpoint

        change = _Change(add_server_request(server), server_id, is_done)
        return (yield from self._change(change, wait))

    def remove_server(self, server_id: int, wait: bool) -> Generator[Step, None, bool]:
        """Has the leader leave a server out."""
        request = remove_server_request(checked_id(server_id))
        change = _Change(request, server_id, lambda found: server_id not in found)
        return (yield from self._change(change, wait))

    def _change(self, change: _Change, wait: bool) -> Generator[Step, None, bool]:
        """Asks for a change until it is begun, or done; whether there was anything to be done."""
        until_ms, begun = self._until_ms, False
        has_face = not self.client.setup.plain
        while True:
            if has_face:
                status = yield from self.status()
                members = {each.id: each.endpoint for each in _members(status)}
                if change.is_done(members) and not self._is_joining(change, status):
                    return begun
                if begun and status.get("change") is None and change.is_over(status):
                    raise FarmRefused(
                        f"the leader has given {change.name} up; has it been started, and does it "
                        f"wait to be taken in? if it was removed while it was away it does not "
                        f"know: stop it, empty its directory, start it again"
                    )
                self._check_change(change, status)
            is_busy = has_face and status.get("change") is not None
            is_busy = is_busy and not self._is_joining(change, status)
            if not is_busy:
                response = yield from self._ask_leader(change.request, until_ms)
                begun = begun or response.is_accepted
                change.term = response.term
                if begun and not (wait and has_face):
                    return True
            if monotonic_ms() >= until_ms or not (has_face or begun):
                raise self._not_done(change, begun)
            yield Sleep(CHANGE_REST_MS)

    def _is_joining(self, change: _Change, status: Mapping[str, Any]) -> bool:
        """Whether a server that is to be removed is being added: that is given up then."""
        joining = status.get("change") or {}
        removes = change.request.type is MessageType.REMOVE_SERVER
        is_early = joining.get("stage") in ("invite", "feed")
        return removes and is_early and joining.get("server") == change.server_id

    def _ask_leader(self, request: Request, until_ms: int) -> Generator[Step, None, Response]:
        """What the leader says to something that it does, or refuses, at once."""
        wish = FarmCommand(request.type, tuple(request.entries), until_ms, is_exclusive=True)
        self.client.submit(wish)
        try:
            yield _done(wish)
        finally:
            self.client.cancel([] if wish.done else [wish])
        self._check(wish)
        assert wish.response is not None
        return wish.response

    def _not_done(self, change: _Change, begun: bool) -> FarmError:
        if begun:
            text = f"the change of {change.name} is still in work; kelek farm status shows it"
            if change.request.type is MessageType.ADD_SERVER:
                text += f", kelek farm remove {change.server_id} cancels it"
            return FarmTimeout(text)
        return FarmRefused(
            f"the leader takes no change of {change.name}: another one is in work, or its own "
            f"election is not over, or this user is no administrator"
        )

    def _check_change(self, change: _Change, status: Mapping[str, Any]) -> None:
        """Raises what would be refused for good."""
        self._check_admin(status)
        members = _members(status)
        if change.request.type is MessageType.REMOVE_SERVER:
            if [server.id for server in members] == [change.server_id]:
                raise FarmRefused(f"{change.name} is the only member: a farm of none can't be")
            return
        for server in members:
            if server.id == change.server_id:
                where = f"at {server.endpoint}; to move it remove it first"
                raise FarmRefused(f"{change.name} is a member already, {where}")

    def _check_admin(self, status: Mapping[str, Any]) -> None:
        asker = status.get("asked_by")
        if isinstance(asker, dict) and asker.get("admin") is False:
            user, farm = self.client.setup.user, self.client.setup.farm
            raise FarmDenied(
                f"user {user} is no administrator of the farm {farm}; "
                f"name him under `farms: {{{farm}: {{admins: [..]}}}}` on the servers, "
                f"or be somebody who is"
            )


def _done(what: FarmCommand | ViewQuery) -> Wait:
    """The machine knows when it has taken too long."""
    return Wait(lambda: what.done, limited=False)


def _object(body: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(body or b"")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FarmError("a server's answer is no JSON object: is it a server of kelek?")
    return found


def _members(status: Mapping[str, Any]) -> Sequence[ClusterServer]:
    try:
        return [ClusterServer(int(it["id"]), str(it["endpoint"])) for it in status["members"]]
    except (KeyError, TypeError, ValueError):
        raise FarmError("a server's answer is no status: is it a server of kelek?") from None


def _problem(question: ViewQuery) -> str:
    return "" if question.failure is None else question.failure.text
