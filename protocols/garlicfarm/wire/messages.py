"""The messages of the Garlic Farm wire (JRaft's messages) as values. codec.py encodes them."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

NO_LEADER = -1  # In place of a leader's id when none is known.
ID_MIN, ID_MAX = -(2**31), 2**31 - 1
NUMBER_MAX = 2**63 - 1  # Terms and indexes: Java has no unsigned numbers.
ENTRIES_BYTES_MAX = 64 << 20  # Default limit of the entries of one request.
ENTRIES_MAX = 1 << 16  # Per request, and per LogPack.
SERVERS_MAX = 64  # Per Configuration.
ENDPOINT_BYTES_MAX = 1024


class MessageType(IntEnum):
    """The first byte of a message."""

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


# The response type of each request type.
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
    APPLICATION = 1
    CONFIGURATION = 2
    CLUSTER_SERVER = 3
    LOG_PACK = 4
    SNAPSHOT_SYNC = 5


class FarmLogEntry(NamedTuple):
    """A log entry, or another value that a request carries in an entry's layout."""

    term: int
    value_type: ValueType
    value: bytes


class Request(NamedTuple):
    """A message from the opener of a connection."""

    type: MessageType
    source: int = 0  # The sender's id; a client says 0.
    destination: int = 0
    term: int = 0
    last_log_term: int = 0
    last_log_index: int = 0
    commit_index: int = 0
    entries: Sequence[FarmLogEntry] = ()  # A tuple, or packed.PackedEntries.


class Response(NamedTuple):
    """A message from the acceptor of a connection.

    `next_index` and `is_accepted` differ by type; see docs/protocols/garlic-farm.md, "What the
    answers say".
    """

    type: MessageType
    source: int
    destination: int
    term: int
    next_index: int
    is_accepted: bool


class ClusterServer(NamedTuple):
    id: int
    endpoint: str  # "tcp://127.0.0.1:9001"


class FarmConfiguration(NamedTuple):
    """The members of a farm, as a log entry states them.

    log_index            index of this entry
    previous_log_index   index of the Configuration before it; 0: it is the first
    """

    log_index: int
    previous_log_index: int
    servers: tuple[ClusterServer, ...]


class SnapshotSync(NamedTuple):
    """A chunk of a snapshot whose last entry is (last_log_index, last_log_term)."""

    last_log_index: int
    last_log_term: int
    configuration: FarmConfiguration
    offset: int  # Of the data within the snapshot, in bytes.
    data: bytes
    is_done: bool
