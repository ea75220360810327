"""A farm client without sockets or clocks: it finds the leader, repeats requests, and collects
results.

Requests go to the leader over one connection, many at a time. Each query to an HTTP API has a
connection of its own. The owner performs the actions of ready(), sends each connection's `out`, and
reports events.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable

from ...connections import Warn
from ...errors import RemoteProtocolError
from ...failover.limits import NEVER_MS
from ...failover.requests import RequestWindow
from ...failover.servers import StallNotice
from ..wire.handshake import (
    NO_CHALLENGE,
    ClientHandshake,
    ConnectTarget,
    HandshakeOutcome,
    HandshakeResult,
    path_to,
)
from ..wire.link import OUTSTANDING_MAX, Link
from ..wire.messages import NO_LEADER, ClusterServer, MessageType, Request, Response
from ..wire.values import Address
from .fetch import ClientFetch
from .servers import KnownServer, KnownServers, worst_failure
from .values import (
    ENTRIES_PER_REQUEST,
    REQUEST_BYTES,
    CloseConnection,
    ConnectFailure,
    FailureKind,
    FarmClientSetup,
    FarmCommand,
    OpenConnection,
    ViewQuery,
)

REFUSALS_MAX = 3  # By a server that knows no leader; then the client tries the next server.
CHALLENGE_RETRIES_MAX = 4  # Consecutive new challenges of one server.
REDIRECTS_MAX = 3  # Redirects without a pause.
FarmAction = OpenConnection | CloseConnection | Warn


class ClientConnection:
    """A connection for one query; the subclass is that to the leader."""

    def __init__(
        self, number: int, server: KnownServer, deadline_ms: int, query: ViewQuery | None = None
    ) -> None:
        self.number = number
        self.server = server
        self.query = query
        self.deadline_ms = deadline_ms  # Of the handshake.
        self.out = bytearray()  # The owner sends and clears it.
        self.handshake: ClientHandshake | None = None
        self.tries = 1  # Attempts with newer challenges.


class _LeaderConnection(ClientConnection):
    """The connection to the leader, or to a server that may know it."""

    def __init__(self, number: int, server: KnownServer, deadline_ms: int) -> None:
        super().__init__(number, server, deadline_ms)
        self.link = Link(str(server))
        # By request; an empty list asks for the leader.
        self.sent: deque[list[FarmCommand]] = deque()
        self.has_refused = False  # Some commands wait to be repeated.
        self.is_leader = False
        self.refusals = 0
        self.retry_at_ms = NEVER_MS  # When to ask for the leader again.


class FarmClient:
    def __init__(self, setup: FarmClientSetup, random_bytes: Callable[[int], bytes]) -> None:
        assert setup.addresses, "a client needs a server's address"
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.connections: dict[int, ClientConnection] = {}
        self.servers = KnownServers(setup)
        self.commands: RequestWindow[FarmCommand] = RequestWindow(NEVER_MS, NEVER_MS)
        self.leader_id: int | None = None  # By the last answer.
        self.queries: list[ViewQuery] = []
        self._random_bytes = random_bytes
        self._actions: list[FarmAction] = []
        self._number = 0
        self._leader_connection: _LeaderConnection | None = None
        self._leader_address: Address | None = None  # The leader's address by the last redirect.
        self._unreachable_ms = NEVER_MS  # When calls fail as no server was ever reached.
        self._redirects = 0  # Redirects since a leader accepted a request.
        self._redirect_pause_ms = 0  # No new attempt before.
        self._notice = StallNotice()
        self._members_query: ViewQuery | None = None  # The query for the named leader's address.

    # ---- callers ----

    def submit(self, command: FarmCommand) -> FarmCommand:
        """Queues a command for the leader."""
        self.commands.add(self.commands.added, command, command.deadline_ms)
        return command

    def cancel(self, commands: Iterable[FarmCommand]) -> None:
        """Cancels commands: those that are not sent yet are never sent."""
        for command in commands:
            self.commands.drop(command)

    def query(self, query: ViewQuery) -> ViewQuery:
        """Starts a query to a server's HTTP API."""
        if self.setup.plain:
            text = "JRaft servers have no HTTP API; ask a kelek server that has the handshake"
            query.failure = ConnectFailure(FailureKind.NO_HTTP_API, text)
        else:
            self.queries.append(query)
        return query

    def cancel_query(self, query: ViewQuery) -> None:
        if query in self.queries:
            self.queries.remove(query)
            if query.connection_number is not None:
                self._close_connection(self.connections[query.connection_number])

    def explain(self) -> ConnectFailure:
        """Why there is no progress, as far as known."""
        leader_conn = self._leader_connection
        if leader_conn is not None and leader_conn.is_leader:
            text = f"{leader_conn.server} leads but has not committed it; a majority must run"
            return ConnectFailure(FailureKind.TIMEOUT, text)
        return worst_failure(self.servers.failures)

    # ---- the owner ----

    def ready(self, now_ms: int) -> list[FarmAction]:
        """The actions for the owner; afterwards it sends each connection's `out`."""
        self._expire(now_ms)
        self._expire_unreached(now_ms)
        for query in self.queries:
            if query.connection_number is None and now_ms >= query.retry_at_ms:
                self._start_query(query, now_ms)
        if self._leader_connection is None and self._wants_leader:
            self._connect_leader(now_ms)
        if self._leader_connection is not None:
            self._send_requests(self._leader_connection, now_ms)
        if self.setup.notice:
            self._warn_if_due(now_ms)
        actions, self._actions = self._actions, []
        return actions

    def _warn_if_due(self, now_ms: int) -> None:
        """Warns of commands that wait for a leader. Calls without any server fail by themselves."""
        conn, farm = self._leader_connection, self.setup.farm
        can_reach = self.servers.last_good is not None or self.setup.via_proxy
        waits = can_reach and (conn is None or not conn.is_leader) and bool(self.commands.unsent)
        if self._notice.is_due(waits, now_ms):
            text = f"{self.explain().text}; does a majority of farm {farm!r} run?"
            self._actions.append(Warn(f"requests wait: {text}"))

    @property
    def _wants_leader(self) -> bool:
        return bool(self.commands.unsent) and self._members_query is None

    @property
    def deadline_ms(self) -> int | None:
        """The latest time for the next ready()."""
        times = [connection.deadline_ms for connection in self.connections.values()]
        times += [each.retry_at_ms for each in self.queries if each.connection_number is None]
        times += [each.deadline_ms for each in self.queries]
        times += [self.commands.expiry_ms, self._notice.deadline_ms]
        times.append(self._unreachable_ms if self.servers.all_failed else NEVER_MS)
        if self._leader_connection is not None:
            times.append(self._leader_connection.link.deadline_ms or NEVER_MS)
            times.append(self._leader_connection.retry_at_ms if self.commands.unsent else NEVER_MS)
        elif self._wants_leader:
            times.append(max(self.servers.retry_at_ms, self._redirect_pause_ms))
        earliest_ms = min(times)
        return earliest_ms if earliest_ms < NEVER_MS else None

    def on_open(self, number: int, now_ms: int) -> None:
        """A connection is established, including TLS."""
        connection = self.connections.get(number)
        if connection is None:
            return
        self.counters["connections"] += 1
        if self.setup.plain:
            assert isinstance(connection, _LeaderConnection), "a JRaft server has no HTTP API"
            self._on_messages_begin(connection, now_ms)
            return
        setup, server = self.setup, connection.server
        path = "" if connection.query is None else path_to(setup.farm, connection.query.view)
        target = ConnectTarget(
            str(server), setup.farm, setup.user, setup.password, setup.via_proxy, path
        )
        kind = ClientFetch if path else ClientHandshake
        connection.handshake = kind(target, server.challenges, now_ms, self._random_bytes)
        connection.out += connection.handshake.request

    def on_data(self, number: int, data: bytes, now_ms: int) -> None:
        connection = self.connections.get(number)
        if connection is None:
            return
        if connection.handshake is not None:
            result = connection.handshake.feed(data, now_ms)
            if result is not None:
                self._on_handshake(connection, result, now_ms)
        elif isinstance(connection, _LeaderConnection):
            self._on_responses(connection, data, now_ms)

    def on_lost(self, number: int, failure: ConnectFailure | None, now_ms: int) -> None:
        """A connection failed or ended; None: the server closed it."""
        connection = self.connections.get(number)
        if connection is not None and failure is None and connection.handshake is not None:
            self.on_data(number, b"", now_ms)  # The end of the connection may complete an answer.
            connection = self.connections.get(number)
        if connection is not None:
            del self.connections[number]
            self._on_failure(
                connection,
                failure or ConnectFailure(FailureKind.LOST, "it closed the connection"),
                now_ms,
            )

    # ---- connections ----

    def _open(self, connection: ClientConnection) -> None:
        self.connections[connection.number] = connection
        if connection.query is not None:
            connection.query.connection_number = connection.number
        self._actions.append(OpenConnection(connection.number, connection.server.address))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _close_connection(self, connection: ClientConnection) -> None:
        del self.connections[connection.number]
        self._actions.append(CloseConnection(connection.number))

    def _expire(self, now_ms: int) -> None:
        for connection in list(self.connections.values()):
            if now_ms >= connection.deadline_ms:
                self._on_silent(connection, self.setup.connect_timeout_ms, now_ms)
        for query in [each for each in self.queries if now_ms >= each.deadline_ms]:
            self._fail_query(query)
        for command in self.commands.expired(now_ms):
            command.failure = self.explain()
            self.commands.drop(command)
        leader_conn = self._leader_connection
        if leader_conn is not None and now_ms >= (leader_conn.link.deadline_ms or NEVER_MS):
            self._on_silent(leader_conn, self.setup.response_timeout_ms, now_ms)

    def _on_silent(self, connection: ClientConnection, timeout_ms: int, now_ms: int) -> None:
        text = f"no answer within {timeout_ms / 1000:g} s"
        self._close_connection(connection)
        self._on_failure(connection, ConnectFailure(FailureKind.LOST, text), now_ms)

    def _expire_unreached(self, now_ms: int) -> None:
        """Fails all commands and queries when no server was ever reached and all were tried."""
        if self.servers.last_good is not None or not (self.commands.unsent or self.queries):
            self._unreachable_ms = NEVER_MS
            return
        give_up_ms = now_ms + self.setup.unreachable_timeout_ms
        self._unreachable_ms = min(self._unreachable_ms, give_up_ms)
        if now_ms < self._unreachable_ms or not self.servers.all_failed:
            return
        self._unreachable_ms = NEVER_MS
        for query in list(self.queries):
            self._fail_query(query)
        self._fail_commands()

    def _on_handshake(
        self, connection: ClientConnection, result: HandshakeResult, now_ms: int
    ) -> None:
        if result.outcome is HandshakeOutcome.RETRY and connection.tries < CHALLENGE_RETRIES_MAX:
            self._close_connection(connection)
            connection.number, connection.tries = self._next_number(), connection.tries + 1
            connection.out.clear()
            connection.handshake = None
            self._open(connection)
            return
        if result.outcome is HandshakeOutcome.OPEN:
            self.servers.on_good(connection.server)
            if connection.query is not None:
                self._close_connection(connection)
                query, query.source = connection.query, connection.server.address
                self._end_query(query, result.rest)
            else:
                assert isinstance(connection, _LeaderConnection)
                connection.handshake = None
                self._on_messages_begin(connection, now_ms)
                if result.rest:
                    self._on_responses(connection, result.rest, now_ms)
            return
        self._close_connection(connection)
        self._on_failure(connection, self._handshake_failure(result), now_ms)

    def _handshake_failure(self, result: HandshakeResult) -> ConnectFailure:
        if result.error == NO_CHALLENGE:
            return ConnectFailure(FailureKind.DENIED, NO_CHALLENGE)
        if result.status == 401:
            text = f"user {self.setup.user} or the password is wrong for the farm {self.setup.farm}"
            return ConnectFailure(FailureKind.DENIED, text)
        if result.status in (403, 429):
            return ConnectFailure(FailureKind.FORBIDDEN, result.error)
        if result.status == 404 and not self.setup.via_proxy:
            return ConnectFailure(FailureKind.NO_FARM, f"it has no farm {self.setup.farm}")
        return ConnectFailure(
            FailureKind.LOST, result.error or "it rejects each new challenge's answer"
        )

    def _on_failure(
        self, connection: ClientConnection, failure: ConnectFailure, now_ms: int
    ) -> None:
        server = connection.server
        self.counters["lost"] += 1
        if (query := connection.query) is not None:
            query.connection_number = None
            query.failures[server.address] = failure
            self.servers.back_off(server, now_ms)
            self._retry_query(query, now_ms)
            return
        assert isinstance(connection, _LeaderConnection)
        self._leader_connection = None
        if connection.is_leader and not self.commands.sent:  # It was idle: the server may be fine.
            self._leader_address = server.address
            return
        self.commands.rewind()
        failures = self.servers.failures
        failures[server.address] = failure
        self.servers.back_off(server, now_ms)
        kinds = {each.kind for each in failures.values()}
        tried = len(failures) == len(self.servers)
        if tried and self.explain().is_final and FailureKind.LEADERLESS not in kinds:
            self._fail_commands()

    def _fail_commands(self) -> None:
        """Fails all commands: no retry will help."""
        failure = self.explain()
        for command in list(self.commands.unsent.values()):
            command.failure = failure
            self.commands.drop(command)
        self.servers.failures.clear()

    # ---- queries ----

    def _start_query(self, query: ViewQuery, now_ms: int) -> None:
        if query.address is not None:
            server = self.servers.add(query.address)
        else:
            good = self.servers.find(self.servers.last_good)
            is_fit = good is not None and good.address not in query.failures
            server = good if is_fit else self.servers.choose(now_ms)
        if server is None:  # All servers were tried recently.
            query.retry_at_ms = self.servers.retry_at_ms
            return
        deadline_ms = now_ms + self.setup.connect_timeout_ms
        self._open(ClientConnection(self._next_number(), server, deadline_ms, query))

    def _retry_query(self, query: ViewQuery, now_ms: int) -> None:
        """Retries a query at the servers that have not failed it, or ends it."""
        wanted = {query.address} if query.address is not None else set(self.servers)
        query.retry_at_ms = now_ms
        if wanted <= query.failures.keys():
            failure = worst_failure(query.failures)
            if failure.is_final or query.is_once:
                self._end_query(query, failure)
            else:
                query.retry_at_ms = now_ms + self.setup.retry_ms

    def _fail_query(self, query: ViewQuery) -> None:
        self.cancel_query(query)
        self._end_query(query, worst_failure(query.failures or self.servers.failures))

    def _end_query(self, query: ViewQuery, result: bytes | ConnectFailure) -> None:
        """Ends a query whose connection is closed. It learns the leader's address if that was the
        query for it.
        """
        query.connection_number = None
        if query in self.queries:
            self.queries.remove(query)
        if isinstance(result, bytes):
            query.body = result
        else:
            query.failure = result
        if query is not self._members_query:
            return
        self._members_query = None
        self.servers.learn(parse_members(query.body or b""))
        if self.leader_id is not None:
            self._leader_address = self.servers.ids.get(self.leader_id)

    # ---- the leader ----

    def _connect_leader(self, now_ms: int) -> None:
        if now_ms < self._redirect_pause_ms:
            return
        wanted, self._leader_address = self._leader_address, None
        server = self.servers.find(wanted)
        if server is None or now_ms < server.retry_at_ms:
            server = self.servers.choose(now_ms)
        if server is not None:
            deadline_ms = now_ms + self.setup.connect_timeout_ms
            self._leader_connection = _LeaderConnection(self._next_number(), server, deadline_ms)
            self._open(self._leader_connection)

    def _on_messages_begin(self, leader_conn: _LeaderConnection, now_ms: int) -> None:
        """The handshake is complete: asks for the leader."""
        leader_conn.deadline_ms = NEVER_MS
        self.servers.last_good = leader_conn.server.address
        leader_conn.link.on_connected()
        leader_conn.retry_at_ms = now_ms

    def _send_requests(self, leader_conn: _LeaderConnection, now_ms: int) -> None:
        link, deadline_ms = leader_conn.link, now_ms + self.setup.response_timeout_ms
        if self.commands.unsent and now_ms >= leader_conn.retry_at_ms:
            leader_conn.retry_at_ms = NEVER_MS
            link.send(Request(MessageType.CLIENT_REQUEST), deadline_ms)
            leader_conn.sent.append([])
        while leader_conn.is_leader and link.outstanding < OUTSTANDING_MAX:
            commands = self._next_batch()
            if not commands:
                break
            entries = tuple(entry for command in commands for entry in command.entries)
            entries_after = len(entries)
            for command in commands:
                entries_after -= len(command.entries)
                command.entries_after = entries_after
            link.send(Request(commands[0].type, entries=entries), deadline_ms)
            leader_conn.sent.append(commands)
            self.counters["requests"] += 1
        leader_conn.out += link.out
        link.out.clear()

    def _next_batch(self) -> list[FarmCommand]:
        """The commands of the next request, which are marked as sent."""
        commands: list[FarmCommand] = []
        count = size = 0
        for command in self.commands.unsent.values():
            count += len(command.entries)
            size += command.size
            is_full = count > ENTRIES_PER_REQUEST or size > REQUEST_BYTES
            is_alone = not (command.is_shareable and commands and commands[0].is_shareable)
            if commands and (is_full or is_alone):
                break
            commands.append(command)
        for command in commands:
            self.commands.mark_sent(command)
        return commands

    def _on_responses(self, leader_conn: _LeaderConnection, data: bytes, now_ms: int) -> None:
        try:
            for _, response in leader_conn.link.feed(data):
                self._on_response(leader_conn, response, now_ms)
        except RemoteProtocolError as error:
            self.counters["junk"] += 1
            if self._leader_connection is leader_conn:
                self._close_connection(leader_conn)
                self._on_failure(leader_conn, ConnectFailure(FailureKind.LOST, str(error)), now_ms)
            return
        is_current = self._leader_connection is leader_conn
        if is_current and not leader_conn.is_leader and not leader_conn.sent:
            self._follow_redirect(leader_conn, now_ms)

    def _on_response(self, leader_conn: _LeaderConnection, response: Response, now_ms: int) -> None:
        # Cancelled ones have left; the others of their request go on.
        commands = [it for it in leader_conn.sent.popleft() if it.id in self.commands.sent]
        address = leader_conn.server.address
        self.servers.ids[response.source] = address
        self.leader_id = None if response.destination == NO_LEADER else response.destination
        is_own = response.destination == response.source
        is_judged = is_own and not response.next_index  # The leader refuses these entries for good.
        if response.is_accepted or (is_own and commands and commands[0].is_exclusive):
            for command in commands:
                next_index = response.next_index - command.entries_after
                command.response = response._replace(next_index=next_index)
                self.commands.drop(command)
        elif is_judged and len(commands) == 1:
            commands[0].response = response
            self.commands.drop(commands[0])
        elif is_judged and commands:
            for command in commands:
                command.was_split = True
            self.commands.requeue(commands)
        else:
            leader_conn.is_leader = False
            if commands:
                leader_conn.has_refused = True
                self.counters["refused"] += 1
        if response.is_accepted:
            leader_conn.refusals = self._redirects = 0
            leader_conn.is_leader = not leader_conn.has_refused
            self.servers.failures.clear()

    def _follow_redirect(self, leader_conn: _LeaderConnection, now_ms: int) -> None:
        """This server does not lead: continues with the leader it names."""
        server, leader_id = leader_conn.server, self.leader_id
        self.commands.rewind()
        leader_conn.has_refused = False
        address = None if leader_id is None else self.servers.ids.get(leader_id)
        problem = self.servers.redirect_problem(server, leader_id, now_ms)
        if problem:
            self.servers.failures[server.address] = ConnectFailure(FailureKind.LEADERLESS, problem)
            leader_conn.refusals += 1
            if leader_conn.refusals < REFUSALS_MAX or len(self.servers) == 1:
                leader_conn.retry_at_ms = now_ms + self.setup.retry_ms
                return
        self._leader_connection = None
        self._close_connection(leader_conn)
        server.retry_at_ms = now_ms + self.setup.retry_ms
        if problem:
            return
        self.counters["redirects"] += 1
        self._redirects += 1
        if self._redirects > REDIRECTS_MAX:  # The servers redirect in circles.
            self._redirect_pause_ms = now_ms + self.setup.retry_ms
        self._leader_address = address
        if address is None:
            text = f"it says that server {leader_id} leads, but no server knows its address"
            self.servers.failures[server.address] = ConnectFailure(FailureKind.LEADERLESS, text)
            if not self.setup.plain:
                deadline_ms = now_ms + 2 * self.setup.connect_timeout_ms
                query = ViewQuery("status", deadline_ms, server.address, is_once=True)
                self._members_query = self.query(query)


def parse_members(body: bytes) -> list[ClusterServer]:
    """The members in a server's status; none if it is not a status."""
    try:
        status = json.loads(body)
        members = status["members"]
        return [
            ClusterServer(each["id"], each["endpoint"])
            for each in members
            if isinstance(each["id"], int) and isinstance(each["endpoint"], str)
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
