"""The messages of the Garlic Farm wire, which is JRaft's, as plain values (bytes: codec.py)."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

NO_LEADER = -1  # Stands where a leader's id belongs and none is known.
ID_MIN, ID_MAX = -(2**31), 2**31 - 1
NUMBER_MAX = 2**63 - 1  # Of terms and indexes: Java has no unsigned numbers.
ENTRIES_BYTES_MAX = 64 << 20  # The default limit of what the log entries of one request take.
ENTRIES_MAX = 1 << 16  # In one request, and in one LogPack.
SERVERS_MAX = 64  # In one Configuration.
ENDPOINT_BYTES_MAX = 1024
FIRST_INDEX = 1  # Of the log; 0 stands for nothing.


class MessageType(IntEnum):
    """What the first byte of a message says: requests and responses take turns, bar two."""

    REQUEST_VOTE = 1
    REQUEST_VOTE_RESPONSE = 2
    APPEND_ENTRIES = 3
    APPEND_ENTRIES_RESPONSE = 4
    CLIENT_REQUEST = 5
    ADD_SERVER = 6
    ADD_SERVER_RESPONSE = 7
    REMOVE_SERVER = 8
    REMOVE_SERVER_RESPONSE = 9
    SYNC_LOG = 10
    SYNC_LOG_RESPONSE = 11
    JOIN_CLUSTER = 12
    JOIN_CLUSTER_RESPONSE = 13
    LEAVE_CLUSTER = 14
    LEAVE_CLUSTER_RESPONSE = 15
    INSTALL_SNAPSHOT = 16
    INSTALL_SNAPSHOT_RESPONSE = 17


# What answers what: each request type, and the type of its response.
RESPONSE_TYPES = {
    MessageType.REQUEST_VOTE: MessageType.REQUEST_VOTE_RESPONSE,
    MessageType.APPEND_ENTRIES: MessageType.APPEND_ENTRIES_RESPONSE,
    MessageType.CLIENT_REQUEST: MessageType.APPEND_ENTRIES_RESPONSE,
    MessageType.ADD_SERVER: MessageType.ADD_SERVER_RESPONSE,
    MessageType.REMOVE_SERVER: MessageType.REMOVE_SERVER_RESPONSE,
    MessageType.SYNC_LOG: MessageType.SYNC_LOG_RESPONSE,
    MessageType.JOIN_CLUSTER: MessageType.JOIN_CLUSTER_RESPONSE,
    MessageType.LEAVE_CLUSTER: MessageType.LEAVE_CLUSTER_RESPONSE,
    MessageType.INSTALL_SNAPSHOT: MessageType.INSTALL_SNAPSHOT_RESPONSE,
}


class ValueType(IntEnum):
    """What an entry holds."""

    APPLICATION = 1
    CONFIGURATION = 2
    CLUSTER_SERVER = 3
    LOG_PACK = 4
    SNAPSHOT_SYNC = 5


class FarmLogEntry(NamedTuple):
    """One log entry, or what a request carries in the shape of one."""

    term: int
    value_type: ValueType
    value: bytes


class Request(NamedTuple):
    """What whoever has opened a connection sends on it."""

    type: MessageType
    source: int = 0  # The id of the sender; whoever is no server says 0.
    destination: int = 0
    term: int = 0
    last_log_term: int = 0
    last_log_index: int = 0
    commit_index: int = 0
    entries: Sequence[FarmLogEntry] = ()  # A tuple, or packed.PackedEntries.


class Response(NamedTuple):
    """What whoever has accepted a connection answers on it.

    `next_index` and `is_accepted` mean something else in each type (docs/protocols/garlic-farm.md,
    "What the answers say").
    """

    type: MessageType
    source: int
    destination: int
    term: int
    next_index: int
    is_accepted: bool


class ClusterServer(NamedTuple):
    """A server and where it listens."""

    id: int
    endpoint: str  # "tcp://127.0.0.1:9001"


class FarmConfiguration(NamedTuple):
    """Who belongs to the cluster, as an entry of the log says it.

    log_index            the entry's own index
    previous_log_index   that of the Configuration before it, 0 when it is the first
    """

    log_index: int
    previous_log_index: int
    servers: tuple[ClusterServer, ...]


class SnapshotSync(NamedTuple):
    """A piece of a snapshot that ends with entry (last_log_index, last_log_term)."""

    last_log_index: int
    last_log_term: int
    configuration: FarmConfiguration
    offset: int  # Of the data within the snapshot, in bytes.
    data: bytes
    is_done: bool
