"""Values of a farm client: its setup, its callers' commands and queries, and its owner's
actions.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ...failover.limits import CONNECT_RETRY_MS, CONNECT_TIMEOUT_MS, FARM_RETRY_MS_MAX
from ...failover.requests import ClientRequest
from ..wire.messages import FarmLogEntry, MessageType, Response
from ..wire.values import Address

ENTRIES_PER_REQUEST = 1000
REQUEST_BYTES = 1 << 20  # A larger value is sent alone.


class FarmClientSetup(NamedTuple):
    """The settings of a client. Times are in milliseconds.

    farm                     the farm's name, the realm of the digest
    addresses                servers, in the order in which they are tried
    ids                      known addresses by server id
    via_proxy                the owner connects to an HTTP proxy instead
    plain                    no handshake: a JRaft server, which has no HTTP API either
    connect_timeout_ms       for a connection with its handshake, and for a query's response
    response_timeout_ms      without an answer the client reconnects and repeats its requests
    unreachable_timeout_ms   calls fail after so long if no server was ever reached
    notice                   whether to warn of commands that wait for a leader
    retry_ms                 delay of the next attempt without a leader; for an unreachable server
                             it doubles with each failure, up to retry_ms_max
    """

    farm: str
    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""
    ids: tuple[tuple[int, Address], ...] = ()
    via_proxy: bool = False
    plain: bool = False
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    response_timeout_ms: int = CONNECT_TIMEOUT_MS
    unreachable_timeout_ms: int = 1 << 62
    notice: bool = False
    retry_ms: int = CONNECT_RETRY_MS
    retry_ms_max: int = FARM_RETRY_MS_MAX


class FailureKind(IntEnum):
    """Why a server is of no use now. From DENIED on, a retry does not help."""

    LOST = 0
    LEADERLESS = 1
    TIMEOUT = 2  # The request was sent and may still be executed.
    DENIED = 3  # Wrong user or password.
    UNTRUSTED = 4  # Its certificate is not trusted, or it has no TLS.
    NO_FARM = 5  # The server does not serve this farm.
    NO_HTTP_API = 6  # A JRaft server has no HTTP API.
    FORBIDDEN = 7  # The user lacks the right, or must wait.


class ConnectFailure(NamedTuple):
    kind: FailureKind
    text: str

    @property
    def is_final(self) -> bool:
        return self.kind >= FailureKind.DENIED


class OpenConnection(NamedTuple):
    """Connect to an address; then call on_open() or on_lost()."""

    number: int
    address: Address


class CloseConnection(NamedTuple):
    """Close a connection; report nothing more about it."""

    number: int


@dataclass(slots=True, eq=False)
class FarmCommand(ClientRequest):
    """A caller's command for the leader: append entries, or change the members.

    deadline_ms     when it fails
    is_exclusive    it shares no request and ends when a leader refuses it: an order
    was_split       it shares no request: a shared request was refused for its contents
    entries_after   entries behind its own in its request
    """

    type: MessageType
    entries: tuple[FarmLogEntry, ...]
    deadline_ms: int
    is_exclusive: bool = False
    was_split: bool = field(init=False, default=False)
    entries_after: int = field(init=False, default=0)
    response: Response | None = field(init=False, default=None)
    failure: ConnectFailure | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.size = sum(len(entry.value) for entry in self.entries)

    @property
    def is_shareable(self) -> bool:
        """Whether it may share a request with others."""
        return not (self.is_exclusive or self.was_split)

    @property
    def done(self) -> bool:
        return self.response is not None or self.failure is not None


@dataclass(slots=True, eq=False)
class ViewQuery:
    """A caller's query to a server's HTTP API.

    deadline_ms   when it fails
    address       the only server to ask; None: any
    is_once       no server is asked twice
    failures      by server, since it started
    """

    view: str
    deadline_ms: int
    address: Address | None = None
    is_once: bool = False
    body: bytes | None = field(init=False, default=None)
    source: Address | None = field(init=False, default=None)  # The server that answered.
    failure: ConnectFailure | None = field(init=False, default=None)
    failures: dict[Address, ConnectFailure] = field(init=False, default_factory=dict)
    connection_number: int | None = field(init=False, default=None)
    retry_at_ms: int = field(init=False, default=0)

    @property
    def done(self) -> bool:
        return self.body is not None or self.failure is not None
