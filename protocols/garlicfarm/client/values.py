"""What a client of a farm is told, what its callers wait for, and what it wants of its owner."""

from enum import IntEnum
from typing import NamedTuple

from ..wire.handshake import ChallengeCache
from ..wire.messages import FarmLogEntry, MessageType, Response
from ..wire.values import Address

ENTRIES_PER_REQUEST = 1000
REQUEST_BYTES = 1 << 20  # One larger value goes alone.


class FarmClientSetup(NamedTuple):
    """What a client is told once; times in milliseconds.

    farm         its name, the realm of the digest
    places       where servers are, in the order in which they are tried
    ids          what is known of them: id -> place
    via_proxy    the owner connects to an HTTP proxy instead
    plain        no handshake: a server of JRaft; it has no HTTP face either
    reach_ms     for a connection, its handshake, and the answer to a question
    silence_ms   without an answer: the leader is asked elsewhere, and again
    unreached_ms  where no server was ever reached, calls fail after so long
    retry_ms     to the next try where nobody leads; of what can't be reached twice as long each
                 time, up to retry_ms_max
    """

    farm: str
    addresses: tuple[Address, ...]
    user: str = ""
    password: str = ""
    ids: tuple[tuple[int, Address], ...] = ()
    via_proxy: bool = False
    plain: bool = False
    connect_timeout_ms: int = 5000
    response_timeout_ms: int = 5000
    unreachable_timeout_ms: int = 1 << 62
    retry_ms: int = 100
    retry_ms_max: int = 2000


class FailureKind(IntEnum):
    """Why a place is of no use now; from DENIED on no other try will help."""

    LOST = 0
    LEADERLESS = 1
    TIMEOUT = 2  # It was sent, and may still happen.
    DENIED = 3  # User or password.
    UNTRUSTED = 4  # Its certificate, or no TLS at all.
    NO_FARM = 5  # No such farm is there.
    NO_HTTP_API = 6  # A server of JRaft, which shows nothing over HTTP.


class ConnectFailure(NamedTuple):
    """Why something can't be had, in words."""

    kind: FailureKind
    text: str

    @property
    def is_final(self) -> bool:
        return self.kind >= FailureKind.DENIED


class OpenConnection(NamedTuple):
    """Connect to a place; then comes on_open(), or on_lost()."""

    number: int
    address: Address


class CloseConnection(NamedTuple):
    """End a connection; nothing more is heard of it."""

    number: int


def format_address(address: Address) -> str:
    """As users write it, and Host headers say it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class KnownServer:
    """A server's address, and what has become of trying it."""

    __slots__ = ("address", "challenges", "failures", "retry_at_ms")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.challenges = ChallengeCache()
        self.failures = 0  # One behind the other.
        self.retry_at_ms = 0  # Not before.

    def __str__(self) -> str:
        return format_address(self.address)


class FarmCommand:
    """What a caller wants the leader to do: append entries, or change the members.

    until_ms   then it has failed
    is_alone   it shares no request, and a leader's refusal is its end: an order
    is_apart   it shares no request: a request that it shared was refused for what is in it
    behind     entries behind its own in its request
    """

    __slots__ = (
        "deadline_ms",
        "entries",
        "entries_after",
        "failure",
        "is_exclusive",
        "response",
        "size",
        "type",
        "was_split",
    )  # fmt: skip

    def __init__(
        self,
        type_: MessageType,
        entries: tuple[FarmLogEntry, ...],
        deadline_ms: int,
        is_exclusive: bool = False,
    ) -> None:
        self.type = type_
        self.entries = entries
        self.size = sum(len(entry.value) for entry in entries)
        self.deadline_ms = deadline_ms
        self.is_exclusive = is_exclusive
        self.was_split = False
        self.entries_after = 0
        self.response: Response | None = None
        self.failure: ConnectFailure | None = None

    @property
    def is_shareable(self) -> bool:
        """Whether it may travel in one request with others."""
        return not (self.is_exclusive or self.was_split)

    @property
    def done(self) -> bool:
        return self.response is not None or self.failure is not None


class ViewQuery:
    """What a caller wants to know of a server's HTTP face.

    until_ms   then it has failed
    place      the only one to be asked; None: any
    is_once    no place is asked a second time
    troubles   by place, since it was begun
    """

    __slots__ = (
        "address",
        "body",
        "connection_number",
        "deadline_ms",
        "failure",
        "failures",
        "is_once",
        "retry_at_ms",
        "source",
        "view",
    )

    def __init__(
        self, view: str, deadline_ms: int, address: Address | None = None, is_once: bool = False
    ) -> None:
        self.view = view
        self.deadline_ms = deadline_ms
        self.address = address
        self.is_once = is_once
        self.body: bytes | None = None
        self.source: Address | None = None  # Who has answered.
        self.failure: ConnectFailure | None = None
        self.failures: dict[Address, ConnectFailure] = {}
        self.connection_number: int | None = None
        self.retry_at_ms = 0

    @property
    def done(self) -> bool:
        return self.body is not None or self.failure is not None
