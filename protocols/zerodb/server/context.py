"""What all requests of one server share: settings, the time, deadlines, workers and answers."""

from collections.abc import Callable
from typing import NamedTuple

from ....native.tables.channels import ReadChannels
from ....native.tables.row_cache import RowReaders
from ...reqids import MACHINE_BYTES
from ...zmqraft.client.client import LogClientMachine
from ..wire import values
from .clients import Clients
from .outbox import Outbox
from .worker_channel import WorkerChannel


def features_of(open_on_the_fly: bool) -> int:
    """The features in the answer to a server info request, on any endpoint."""
    return values.FEATURES - (0 if open_on_the_fly else values.FEATURE_OPEN)


class SessionSetup(NamedTuple):
    """Settings of the topology (docs/reference/topology.md, `zerodb`)."""

    software: str
    workers: int = 1
    local: frozenset[int] = frozenset()
    stale_allowed: bool = False
    request_timeout_ms: int = 5000
    open_on_the_fly: bool = True
    entry_bytes_max: int = 10 << 20
    own_url: str = ""  # Of this node's raft_peer.
    first_ticket: int = 1  # Above all earlier ones: workers may still know those.
    secret: bytes = b""  # Identifies processes of this node (ownership.py).
    reserved: frozenset[int] = frozenset()  # More tables that only these processes write.
    # 3 bytes of machine, u16 process in request ids that C makes: no other maker has them.
    maker: bytes = bytes(MACHINE_BYTES + 2)


class Now(NamedTuple):
    """The clocks."""

    ms: int  # Monotonic.
    unix_ms: int
    us: int = 0  # Of latency.monotonic_us(), for durations.


class ServerContext:
    """What the modules of one server share."""

    def __init__(
        self,
        setup: SessionSetup,
        client: LogClientMachine,
        leased_index: Callable[[], int] = lambda: 0,
    ) -> None:
        """leased_index: how far a read must see the log now; 0: only the leader knows"""
        self.setup = setup
        self.client = client
        self.leased_index = leased_index
        self.reads = ReadChannels(setup.workers, setup.first_ticket)
        self.rows = RowReaders(setup.workers)
        self.channels = [
            WorkerChannel(number, setup.request_timeout_ms, setup.first_ticket, reads)
            for number, reads in enumerate(self.reads.all)
        ]
        self.outbox = Outbox(setup.workers)
        self.clients = Clients()
        self.now = Now(0, 0)
        self.backlog_ms = 0  # Added to deadlines for the writes that wait already.

    def channel_of(self, table: int) -> WorkerChannel:
        """The channel of the worker that has the table."""
        return self.channels[table % len(self.channels)]

    def deadline(self, asked_ms: int = 0, size: int = 0) -> int:
        """The deadline of a request. Larger requests get more time, since clients would only retry
        them."""
        timeout_ms = self.setup.request_timeout_ms + self.backlog_ms + size // values.BYTES_A_MS
        return self.now.ms + (min(asked_ms, timeout_ms) if asked_ms else timeout_ms)

    @property
    def reason(self) -> str:
        """Why the log does not commit, for errors of expired requests."""
        if self.client.leader is None:
            return (
                "no leader was found: an election goes on, or no majority of the nodes runs and has"
                " room on its disks; `kelek status` says which"
            )
        return (
            f"the leader at {self.client.leader} did not commit: it has no majority, or its disk"
            " takes no writes; `kelek status` says which"
        )
