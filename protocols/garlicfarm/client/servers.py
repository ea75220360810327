"""The servers that a farm client knows: their addresses, the order of tries, and their failures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...errors import RemoteProtocolError
from ...failover.limits import SERVERS_MAX
from ..wire.handshake import ChallengeCache
from ..wire.messages import ClusterServer
from ..wire.values import Address, parse_address
from .values import ConnectFailure, FailureKind, FarmClientSetup

FAILURES_SHOWN_MAX = 3  # Failures named in one error.
NO_ANSWER = ConnectFailure(FailureKind.LOST, "no server has answered")


@dataclass(slots=True, eq=False)
class KnownServer:
    """A server's address and the history of attempts."""

    address: Address
    challenges: ChallengeCache = field(default_factory=ChallengeCache)
    failures: int = 0  # Consecutive.
    retry_at_ms: int = 0  # No new attempt before.

    def __str__(self) -> str:
        return str(self.address)


class KnownServers(dict[Address, KnownServer]):
    """All servers of one client, by address."""

    def __init__(self, setup: FarmClientSetup) -> None:
        self.ids: dict[int, Address] = dict(setup.ids)
        self.failures: dict[Address, ConnectFailure] = {}  # Of the search for the leader.
        self.last_good: Address | None = None  # The last server that answered.
        self._setup = setup
        self._next_index = 0  # Where the search continues.
        for address in setup.addresses:
            self.add(address)

    def find(self, address: Address | None) -> KnownServer | None:
        return None if address is None else self.get(address)

    def add(self, address: Address) -> KnownServer | None:
        """The server at an address; None: too many are known."""
        if address not in self and len(self) < SERVERS_MAX:
            self[address] = KnownServer(address)
        return self.get(address)

    def learn(self, servers: Iterable[ClusterServer]) -> None:
        """Learns endpoints from a Configuration. Endpoints given by the user have priority."""
        given = dict(self._setup.ids)
        for server_id, endpoint in servers:
            try:
                address = parse_address(endpoint)
            except RemoteProtocolError:
                continue
            if server_id not in given and self.add(address) is not None:
                self.ids[server_id] = address

    def choose(self, now_ms: int) -> KnownServer | None:
        """The next server in turn that may be tried now."""
        servers = list(self.values())
        for offset in range(len(servers)):
            server = servers[(self._next_index + offset) % len(servers)]
            if now_ms >= server.retry_at_ms:
                self._next_index = (self._next_index + offset + 1) % len(servers)
                return server
        return None

    def on_good(self, server: KnownServer) -> None:
        """A server answers."""
        server.failures = server.retry_at_ms = 0
        self.last_good = server.address

    def back_off(self, server: KnownServer, now_ms: int) -> None:
        """A server has failed: each time it is left alone for longer."""
        setup = self._setup
        server.retry_at_ms = now_ms + min(setup.retry_ms << server.failures, setup.retry_ms_max)
        server.failures = min(server.failures + 1, 16)

    @property
    def retry_at_ms(self) -> int:
        return min(server.retry_at_ms for server in self.values())

    @property
    def all_failed(self) -> bool:
        """Whether every server has been tried and none has worked since."""
        return all(server.failures for server in self.values())

    def redirect_problem(self, server: KnownServer, leader_id: int | None, now_ms: int) -> str:
        """Why a server's redirect to the leader cannot be followed now; "" if it can."""
        source = next((key for key, at in self.ids.items() if at == server.address), None)
        name = "it" if source is None else f"server {source}"
        if leader_id is None:
            return f"{name} knows no leader"
        if leader_id == source:
            return f"{name} is handing the leadership over"
        leader = self.find(self.ids.get(leader_id))
        if leader is not None and now_ms < leader.retry_at_ms:
            error = self.failures.get(leader.address, NO_ANSWER).text
            return f"{name} says that server {leader_id} leads; {leader}: {error}"
        return ""


def worst_failure(failures: Mapping[Address, ConnectFailure]) -> ConnectFailure:
    """The most serious kind of failure, with the servers and reasons."""
    kind = max((failure.kind for failure in failures.values()), default=None)
    if kind is None:
        return NO_ANSWER
    by_text: dict[str, list[str]] = {}
    for address, failure in failures.items():
        if failure.kind is kind:
            by_text.setdefault(failure.text, []).append(str(address))
    parts = [f"{', '.join(servers)}: {text}" for text, servers in by_text.items()]
    return ConnectFailure(kind, "; ".join(parts[:FAILURES_SHOWN_MAX]))
