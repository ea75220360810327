"""A farm client without sockets or clocks: it finds the leader, repeats requests, and collects
results.

Requests go to the leader over one connection, many at a time. Each query to an HTTP API has a
connection of its own. The owner performs the actions of ready(), sends each connection's `out`, and
reports events.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from ...errors import RemoteProtocolError
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
from ..wire.values import Address, parse_address
from .fetch import ClientFetch
from .values import (
    ENTRIES_PER_REQUEST,
    REQUEST_BYTES,
    CloseConnection,
    ConnectFailure,
    FailureKind,
    FarmClientSetup,
    FarmCommand,
    KnownServer,
    OpenConnection,
    ViewQuery,
    format_address,
)

REFUSALS_MAX = 3  # By a server that knows no leader; then the client tries the next server.
CHALLENGE_RETRIES_MAX = 4  # Consecutive new challenges of one server.
REDIRECTS_MAX = 3  # Redirects without a pause.
SERVERS_KNOWN_MAX = 256
FAILURES_SHOWN_MAX = 3  # Failures named in one error.
NO_ANSWER = ConnectFailure(FailureKind.LOST, "no server has answered")


class ClientConnection:
    """One connection; the subclasses say what it is for."""

    def __init__(self, number: int, server: KnownServer, deadline_ms: int) -> None:
        self.number = number
        self.server = server
        # The handshake's deadline; None: the handshake is complete.
        self.deadline_ms: int | None = deadline_ms
        self.out = bytearray()  # The owner sends and clears it.
        self.handshake: ClientHandshake | None = None
        self.tries = 1  # Attempts with newer challenges.


class _QueryConnection(ClientConnection):
    def __init__(
        self, number: int, server: KnownServer, deadline_ms: int, query: ViewQuery
    ) -> None:
        super().__init__(number, server, deadline_ms)
        self.query = query


class _LeaderConnection(ClientConnection):
    """The connection to the leader, or to a server that may know it."""

    def __init__(self, number: int, server: KnownServer, deadline_ms: int) -> None:
        super().__init__(number, server, deadline_ms)
        self.link = Link(str(server))
        # By request; an empty list asks for the leader.
        self.sent: deque[list[FarmCommand]] = deque()
        self.refused: list[FarmCommand] = []  # Commands to repeat, in order.
        self.is_leader = False
        self.refusals = 0
        self.retry_at_ms: int | None = None  # When to ask for the leader again.

    @property
    def commands(self) -> list[FarmCommand]:
        """Commands that are not done, in order."""
        return [*self.refused, *(command for commands in self.sent for command in commands)]


class FarmClient:
    """One client of one farm."""

    def __init__(self, setup: FarmClientSetup, random_bytes: Callable[[int], bytes]) -> None:
        assert setup.addresses, "a client needs a server's address"
        self.setup = setup
        self.counters: Counter[str] = Counter()
        self.connections: dict[int, ClientConnection] = {}
        self.servers: dict[Address, KnownServer] = {}
        self.ids: dict[int, Address] = {}
        self.leader_id: int | None = None  # By the last answer.
        self.failures: dict[Address, ConnectFailure] = {}  # Failures of the search for the leader.
        self.queries: list[ViewQuery] = []
        self._random_bytes = random_bytes
        self._actions: list[OpenConnection | CloseConnection] = []
        self._number = 0
        self._queue: deque[FarmCommand] = deque()
        self._leader_connection: _LeaderConnection | None = None
        self._leader_address: Address | None = None  # The leader's address by the last redirect.
        self._last_good: Address | None = None  # The last server that answered.
        # When calls fail because no server was ever reached.
        self._unreachable_ms: int | None = None
        self._next_server_index = 0  # Where the search continues.
        self._redirects = 0  # Redirects since a leader accepted a request.
        self._redirect_pause_ms = 0  # No new attempt before.
        self._next_expiry_ms: int | None = None  # No command expires before.
        self._members_query: ViewQuery | None = None  # The query for the named leader's address.
        for address in setup.addresses:
            self._add_server(address)
        for server_id, address in setup.ids:
            self.ids[server_id] = address

    # ---- callers ----

    def submit(self, command: FarmCommand) -> FarmCommand:
        """Queues a command for the leader."""
        self._queue.append(command)
        self._next_expiry_ms = min(self._next_expiry_ms or command.deadline_ms, command.deadline_ms)
        return command

    def cancel(self, commands: Iterable[FarmCommand]) -> None:
        """Cancels commands: those that are not sent yet are never sent."""
        unwanted = set(map(id, commands))
        if not unwanted:
            return
        self._queue = deque(command for command in self._queue if id(command) not in unwanted)
        leader_conn = self._leader_connection
        if leader_conn is not None:
            leader_conn.refused = [
                command for command in leader_conn.refused if id(command) not in unwanted
            ]
            for index, sent in enumerate(leader_conn.sent):
                if any(id(command) in unwanted for command in sent):
                    # Its answer is still due: other commands may share the request.
                    leader_conn.sent[index] = [
                        command for command in sent if id(command) not in unwanted
                    ]

    @property
    def outstanding(self) -> int:
        """Commands without a result."""
        sent = len(self._leader_connection.commands) if self._leader_connection is not None else 0
        return len(self._queue) + sent

    def query(self, query: ViewQuery) -> ViewQuery:
        """Starts a query to a server's HTTP API."""
        if self.setup.plain:
            text = "JRaft servers have no HTTP API; ask a kelek server that has the handshake"
            query.failure = ConnectFailure(FailureKind.NO_HTTP_API, text)
        else:
            self.queries.append(query)
        return query

    def cancel_query(self, query: ViewQuery) -> None:
        """Cancels a query."""
        if query in self.queries:
            self.queries.remove(query)
            if query.connection_number is not None:
                self._close_connection(self.connections[query.connection_number])

    def learn_servers(self, servers: Iterable[ClusterServer]) -> None:
        """Learns endpoints from a Configuration. Endpoints given by the user have priority."""
        given = dict(self.setup.ids)
        for server_id, endpoint in servers:
            try:
                address = parse_address(endpoint)
            except RemoteProtocolError:
                continue
            if server_id not in given and self._add_server(address) is not None:
                self.ids[server_id] = address

    def explain(self) -> ConnectFailure:
        """Why there is no progress, as far as known."""
        leader_conn = self._leader_connection
        if leader_conn is not None and leader_conn.is_leader:
            text = f"{leader_conn.server} leads but has not committed it; a majority must run"
            return ConnectFailure(FailureKind.TIMEOUT, text)
        return worst_failure(self.failures)

    def _add_server(self, address: Address) -> KnownServer | None:
        if address not in self.servers and len(self.servers) < SERVERS_KNOWN_MAX:
            self.servers[address] = KnownServer(address)
        return self.servers.get(address)

    # ---- the owner ----

    def ready(self, now_ms: int) -> list[OpenConnection | CloseConnection]:
        """The actions for the owner; afterwards it sends each connection's `out`."""
        self._expire(now_ms)
        self._expire_unreached(now_ms)
        for query in self.queries:
            if query.connection_number is None and now_ms >= query.retry_at_ms:
                self._start_query(query, now_ms)
        if self._leader_connection is None and self._queue and self._members_query is None:
            self._connect_leader(now_ms)
        if self._leader_connection is not None:
            self._send_requests(self._leader_connection, now_ms)
        actions, self._actions = self._actions, []
        return actions

    @property
    def deadline_ms(self) -> int | None:
        """The latest time for the next ready()."""
        times = [connection.deadline_ms for connection in self.connections.values()]
        times += [each.retry_at_ms for each in self.queries if each.connection_number is None]
        times += [each.deadline_ms for each in self.queries]
        times += [self._next_expiry_ms, self._unreachable_ms if self._all_failed else None]
        leader_conn = self._leader_connection
        if leader_conn is not None:
            times += [
                leader_conn.retry_at_ms if self._queue else None,
                leader_conn.link.deadline_ms,
            ]
        elif self._queue and self._members_query is None:
            retry_at_ms = min(server.retry_at_ms for server in self.servers.values())
            times.append(max(retry_at_ms, self._redirect_pause_ms))
        known = [each for each in times if each is not None]
        return min(known) if known else None

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
        host, target = str(connection.server), self._target
        if isinstance(connection, _QueryConnection):
            target = target._replace(host=host, path=path_to(target.cluster, connection.query.view))
            kind: type[ClientHandshake] = ClientFetch
        else:
            target, kind = target._replace(host=host), ClientHandshake
        connection.handshake = kind(
            target, connection.server.challenges, now_ms, self._random_bytes
        )
        connection.out += connection.handshake.request

    @property
    def _target(self) -> ConnectTarget:
        setup = self.setup
        return ConnectTarget("", setup.farm, setup.user, setup.password, setup.via_proxy)

    def on_data(self, number: int, data: bytes, now_ms: int) -> None:
        """Bytes have arrived."""
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
        self._actions.append(OpenConnection(connection.number, connection.server.address))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _close_connection(self, connection: ClientConnection) -> None:
        """Closes a connection that is no longer needed."""
        del self.connections[connection.number]
        self._actions.append(CloseConnection(connection.number))

    def _expire(self, now_ms: int) -> None:
        for connection in list(self.connections.values()):
            if connection.deadline_ms is not None and now_ms >= connection.deadline_ms:
                self._close_connection(connection)
                text = f"no answer within {self.setup.connect_timeout_ms / 1000:g} s"
                self._on_failure(connection, ConnectFailure(FailureKind.LOST, text), now_ms)
        for query in [each for each in self.queries if now_ms >= each.deadline_ms]:
            self.cancel_query(query)
            query.failure = worst_failure(query.failures or self.failures)
            self._on_members_found(query)
        if self._next_expiry_ms is not None and now_ms >= self._next_expiry_ms:
            self._expire_commands(now_ms)
        leader_conn = self._leader_connection
        deadline_ms = None if leader_conn is None else leader_conn.link.deadline_ms
        if leader_conn is not None and deadline_ms is not None and now_ms >= deadline_ms:
            self._close_connection(leader_conn)
            text = f"no answer within {self.setup.response_timeout_ms / 1000:g} s"
            self._on_failure(leader_conn, ConnectFailure(FailureKind.LOST, text), now_ms)

    @property
    def _all_failed(self) -> bool:
        """Whether every server has been tried and none has worked since."""
        return all(server.failures for server in self.servers.values())

    def _expire_unreached(self, now_ms: int) -> None:
        """Fails all commands and queries when no server was ever reached and all were tried."""
        if self._last_good is not None or not (self._queue or self.queries):
            self._unreachable_ms = None
            return
        if self._unreachable_ms is None:
            self._unreachable_ms = now_ms + self.setup.unreachable_timeout_ms
        if now_ms < self._unreachable_ms or not self._all_failed:
            return
        self._unreachable_ms = None
        for query in list(self.queries):
            self.cancel_query(query)
            query.failure = worst_failure(query.failures or self.failures)
            self._on_members_found(query)
        self._fail_commands()

    def _expire_commands(self, now_ms: int) -> None:
        sent = self._leader_connection.commands if self._leader_connection is not None else []
        failure = self.explain()
        expired = [command for command in (*sent, *self._queue) if now_ms >= command.deadline_ms]
        self.cancel(expired)
        for command in expired:
            command.failure = failure
        remaining = self._leader_connection.commands if self._leader_connection is not None else []
        self._next_expiry_ms = min(
            (command.deadline_ms for command in (*remaining, *self._queue)), default=None
        )

    def _choose_server(self, now_ms: int) -> KnownServer | None:
        """The next server in turn that may be tried now."""
        servers = list(self.servers.values())
        for offset in range(len(servers)):
            server = servers[(self._next_server_index + offset) % len(servers)]
            if now_ms >= server.retry_at_ms:
                self._next_server_index = (self._next_server_index + offset + 1) % len(servers)
                return server
        return None

    def _on_handshake(
        self, connection: ClientConnection, result: HandshakeResult, now_ms: int
    ) -> None:
        if result.outcome is HandshakeOutcome.RETRY and connection.tries < CHALLENGE_RETRIES_MAX:
            self._close_connection(connection)
            connection.number, connection.tries = self._next_number(), connection.tries + 1
            connection.out.clear()
            connection.handshake = None
            if isinstance(connection, _QueryConnection):
                connection.query.connection_number = connection.number
            self._open(connection)
            return
        if result.outcome is HandshakeOutcome.OPEN:
            connection.server.failures = 0
            connection.server.retry_at_ms = 0
            self._last_good = connection.server.address
            if isinstance(connection, _QueryConnection):
                self._close_connection(connection)
                self._on_query_answer(connection.query, connection.server, result.rest)
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
        if result.status == 404 and not self.setup.via_proxy:
            return ConnectFailure(FailureKind.NO_FARM, f"it has no farm {self.setup.farm}")
        return ConnectFailure(
            FailureKind.LOST, result.error or "it rejects each new challenge's answer"
        )

    def _on_failure(
        self, connection: ClientConnection, failure: ConnectFailure, now_ms: int
    ) -> None:
        """A connection has failed."""
        server = connection.server
        self.counters["lost"] += 1
        if isinstance(connection, _QueryConnection):
            query = connection.query
            query.connection_number = None
            query.failures[server.address] = failure
            self._back_off(server, now_ms)
            self._retry_query(query, now_ms)
            return
        assert isinstance(connection, _LeaderConnection)
        self._leader_connection = None
        if connection.is_leader and not connection.commands:  # It was idle: the server may be fine.
            self._leader_address = server.address
            return
        self._requeue(connection)
        self.failures[server.address] = failure
        self._back_off(server, now_ms)
        kinds = {each.kind for each in self.failures.values()}
        tried = len(self.failures) == len(self.servers)
        if tried and self.explain().is_final and FailureKind.LEADERLESS not in kinds:
            self._fail_commands()

    def _back_off(self, server: KnownServer, now_ms: int) -> None:
        setup = self.setup
        server.retry_at_ms = now_ms + min(setup.retry_ms << server.failures, setup.retry_ms_max)
        server.failures = min(server.failures + 1, 16)

    def _fail_commands(self) -> None:
        """Fails all commands: no retry will help."""
        failure = self.explain()
        for command in self._queue:
            command.failure = failure
        self._queue.clear()
        self.failures.clear()

    # ---- queries ----

    def _start_query(self, query: ViewQuery, now_ms: int) -> None:
        if query.address is not None:
            server = self._add_server(query.address)
        else:
            good = self.servers.get(self._last_good) if self._last_good is not None else None
            is_fit = good is not None and good.address not in query.failures
            server = good if is_fit else self._choose_server(now_ms)
        if server is None:  # All servers were tried recently.
            query.retry_at_ms = min(each.retry_at_ms for each in self.servers.values())
            return
        deadline_ms = now_ms + self.setup.connect_timeout_ms
        connection = _QueryConnection(self._next_number(), server, deadline_ms, query)
        query.connection_number = connection.number
        self._open(connection)

    def _retry_query(self, query: ViewQuery, now_ms: int) -> None:
        """Retries a query at the servers that have not failed it, or ends it."""
        wanted = {query.address} if query.address is not None else set(self.servers)
        query.retry_at_ms = now_ms
        if wanted <= query.failures.keys():
            failure = worst_failure(query.failures)
            if failure.is_final or query.is_once:
                self._remove_query(query)
                query.failure = failure
                self._on_members_found(query)
            else:
                query.retry_at_ms = now_ms + self.setup.retry_ms

    def _on_query_answer(self, query: ViewQuery, server: KnownServer, body: bytes) -> None:
        self._remove_query(query)
        query.body, query.source = body, server.address
        self._on_members_found(query)

    def _remove_query(self, query: ViewQuery) -> None:
        query.connection_number = None
        if query in self.queries:
            self.queries.remove(query)

    def _on_members_found(self, query: ViewQuery) -> None:
        """Learns the leader's address if this was the query for it."""
        if query is not self._members_query:
            return
        self._members_query = None
        self.learn_servers(parse_members(query.body or b""))
        if self.leader_id is not None:
            self._leader_address = self.ids.get(self.leader_id)

    # ---- the leader ----

    def _connect_leader(self, now_ms: int) -> None:
        if now_ms < self._redirect_pause_ms:
            return
        wanted, self._leader_address = self._leader_address, None
        server = self.servers.get(wanted) if wanted is not None else None
        if server is None or now_ms < server.retry_at_ms:
            server = self._choose_server(now_ms)
        if server is not None:
            deadline_ms = now_ms + self.setup.connect_timeout_ms
            self._leader_connection = _LeaderConnection(self._next_number(), server, deadline_ms)
            self._open(self._leader_connection)

    def _on_messages_begin(self, leader_conn: _LeaderConnection, now_ms: int) -> None:
        """The handshake is complete: asks for the leader."""
        leader_conn.deadline_ms = None
        self._last_good = leader_conn.server.address
        leader_conn.link.on_connected()
        leader_conn.retry_at_ms = now_ms

    def _send_requests(self, leader_conn: _LeaderConnection, now_ms: int) -> None:
        link, deadline_ms = leader_conn.link, now_ms + self.setup.response_timeout_ms
        if (
            self._queue
            and leader_conn.retry_at_ms is not None
            and now_ms >= leader_conn.retry_at_ms
        ):
            leader_conn.retry_at_ms = None
            link.send(Request(MessageType.CLIENT_REQUEST), deadline_ms)
            leader_conn.sent.append([])
        while leader_conn.is_leader and self._queue and link.outstanding < OUTSTANDING_MAX:
            commands = self._next_batch()
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
        """The commands of the next request."""
        queue = self._queue
        commands = [queue.popleft()]
        count, size = len(commands[0].entries), commands[0].size
        while queue and commands[0].is_shareable and queue[0].is_shareable:
            count += len(queue[0].entries)
            size += queue[0].size
            if count > ENTRIES_PER_REQUEST or size > REQUEST_BYTES:
                break
            commands.append(queue.popleft())
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
        if (
            self._leader_connection is leader_conn
            and not leader_conn.is_leader
            and not leader_conn.sent
        ):
            self._follow_redirect(leader_conn, now_ms)

    def _on_response(self, leader_conn: _LeaderConnection, response: Response, now_ms: int) -> None:
        commands = leader_conn.sent.popleft()
        address = leader_conn.server.address
        self.ids[response.source] = address
        self.leader_id = None if response.destination == NO_LEADER else response.destination
        is_own = response.destination == response.source
        is_judged = is_own and not response.next_index  # The leader refuses these entries for good.
        if response.is_accepted or (is_own and commands and commands[0].is_exclusive):
            for command in commands:
                command.response = response._replace(
                    next_index=response.next_index - command.entries_after
                )
        elif is_judged and len(commands) == 1:
            commands[0].response = response
        elif is_judged and commands:
            for command in commands:
                command.was_split = True
            self._queue.extendleft(reversed(commands))
        else:
            leader_conn.is_leader = False
            leader_conn.refused += commands
            if commands:
                self.counters["refused"] += 1
        if response.is_accepted:
            leader_conn.refusals = self._redirects = 0
            leader_conn.is_leader = not leader_conn.refused
            self.failures.clear()

    def _follow_redirect(self, leader_conn: _LeaderConnection, now_ms: int) -> None:
        """This server does not lead: continues with the leader it names."""
        server, leader_id = leader_conn.server, self.leader_id
        self._requeue(leader_conn)
        address = None if leader_id is None else self.ids.get(leader_id)
        problem = self._redirect_problem(server, address, now_ms)
        if problem:
            self.failures[server.address] = ConnectFailure(FailureKind.LEADERLESS, problem)
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
            self.failures[server.address] = ConnectFailure(FailureKind.LEADERLESS, text)
            if not self.setup.plain:
                deadline_ms = now_ms + 2 * self.setup.connect_timeout_ms
                query = ViewQuery("status", deadline_ms, server.address, is_once=True)
                self._members_query = self.query(query)

    def _redirect_problem(self, server: KnownServer, address: Address | None, now_ms: int) -> str:
        """Why the redirect cannot be followed now; "" if it can."""
        leader_id = self.leader_id
        source = next((key for key, at in self.ids.items() if at == server.address), None)
        name = "it" if source is None else f"server {source}"
        if leader_id is None:
            return f"{name} knows no leader"
        if leader_id == source:
            return f"{name} is handing the leadership over"
        leader = self.servers.get(address) if address is not None else None
        if leader is not None and now_ms < leader.retry_at_ms:
            error = self.failures.get(leader.address, NO_ANSWER).text
            return f"{name} says that server {leader_id} leads; {leader}: {error}"
        return ""

    def _requeue(self, leader_conn: _LeaderConnection) -> None:
        """Puts unfinished commands before newer ones."""
        self._queue.extendleft(reversed(leader_conn.commands))
        leader_conn.refused.clear()
        leader_conn.sent.clear()


def worst_failure(failures: Mapping[Address, ConnectFailure]) -> ConnectFailure:
    """The most serious kind of failure, with the servers and reasons."""
    kind = max((failure.kind for failure in failures.values()), default=None)
    if kind is None:
        return NO_ANSWER
    by_text: dict[str, list[str]] = {}
    for address, failure in failures.items():
        if failure.kind is kind:
            by_text.setdefault(failure.text, []).append(format_address(address))
    parts = [f"{', '.join(servers)}: {text}" for text, servers in by_text.items()]
    return ConnectFailure(kind, "; ".join(parts[:FAILURES_SHOWN_MAX]))


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
