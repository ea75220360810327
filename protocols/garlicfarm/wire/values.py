"""Layouts of the entry values that are not application data.

A decoder checks each size against the data and a limit before it allocates. It decompresses a
LogPack no further than its limit.
"""

import zlib
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from ...errors import LocalProtocolError, RemoteProtocolError
from ...wire import Frame
from ...wire_bytes import ByteLayout, listed, mapped, number, several, sized
from .codec import check_id, check_number
from .messages import (
    ENDPOINT_BYTES_MAX,
    ENTRIES_BYTES_MAX,
    ENTRIES_MAX,
    NUMBER_MAX,
    SERVERS_MAX,
    ClusterServer,
    FarmConfiguration,
    FarmLogEntry,
    Request,
    SnapshotSync,
    ValueType,
)

_ID = Struct(">i")
_NUMBER = Struct(">q")
_PACK_HEADER = Struct(">II")
_PACKED_ENTRY = Struct(">qB")
PACKED_ENTRY_BYTES = _PACKED_ENTRY.size  # Bytes of an entry in a JRaft log file besides its value.
GZIP_BITS = 31  # zlib's number for: gzip header required.


class Address(NamedTuple):
    """The parts of an endpoint that matter. As text: HOST:PORT, as in Host headers."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class LogPack(NamedTuple):
    """Consecutive entries. `base` is the offset of the first one in the log file that the offsets
    describe.
    """

    entries: tuple[FarmLogEntry, ...]
    base: int


def single_value(request: Request, value_type: ValueType) -> bytes:
    """The value of a request's only entry. Raises RemoteProtocolError."""
    if len(request.entries) != 1 or request.entries[0].value_type is not value_type:
        raise RemoteProtocolError(f"a {request.type.name} must hold exactly one {value_type.name}")
    return request.entries[0].value


# ---- servers ----


def parse_address(endpoint: str) -> Address:
    """Host and port of an endpoint such as "tcp://localhost:9001", with any scheme.

    Raises RemoteProtocolError without a host, or without a port from 1 to 65535.
    """
    _, _, rest = endpoint.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise RemoteProtocolError(f"{endpoint!r} has no host and port")
    if not 0 < int(port) < 65536:
        raise RemoteProtocolError(f"{endpoint!r} has a port outside 1 to 65535")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or "localhost". It is not looked up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _endpoint(data: bytes) -> str:
    endpoint = data.decode()
    parse_address(endpoint)
    return endpoint


def _number(value: int) -> int:
    if value > NUMBER_MAX:
        raise RemoteProtocolError("a number is 2**63 or more")
    return value


def _boolean(value: int) -> bool:
    if value > 1:
        raise RemoteProtocolError(f"{value}, not 0 or 1")
    return value == 1


SIZE = number(4)
BYTES = sized(SIZE, ENTRIES_BYTES_MAX, "size 4, bytes")
ID = number(4, signed=True)
NUMBER = mapped(number(8), check_number, _number)
BOOLEAN = mapped(number(1), int, _boolean)
ENDPOINT = mapped(
    sized(SIZE, ENDPOINT_BYTES_MAX, "size 4, string"), lambda text: text.encode("ascii"), _endpoint
)
SERVER = mapped(several(ID, ENDPOINT), tuple, lambda found: ClusterServer(*found))

CLUSTER_SERVER = ByteLayout(
    "ClusterServer",
    ClusterServer,
    Frame("id", ID, "id"),
    Frame("endpoint", ENDPOINT, "endpoint"),
)
encode_cluster_server, decode_cluster_server = CLUSTER_SERVER.pack, CLUSTER_SERVER.unpack


def _repeated_id(configuration: FarmConfiguration) -> str:
    ids = [server.id for server in configuration.servers]
    return next((f"server {each} twice" for each in ids if ids.count(each) > 1), "")


CONFIGURATION = ByteLayout(
    "Configuration",
    FarmConfiguration,
    Frame("log_index", NUMBER, "index of this entry"),
    Frame("previous_log_index", NUMBER, "index of the Configuration before it"),
    Frame("servers", listed(SERVER, SERVERS_MAX), "servers, each as a ClusterServer"),
    check=_repeated_id,
)
encode_configuration, decode_configuration = CONFIGURATION.pack, CONFIGURATION.unpack

SNAPSHOT_SYNC = ByteLayout(
    "SnapshotSyncRequest",
    SnapshotSync,
    Frame("last_log_index", NUMBER, "last log index"),
    Frame("last_log_term", NUMBER, "last log term"),
    Frame(
        "configuration",
        mapped(BYTES, encode_configuration, decode_configuration),
        "the Configuration at that index",
    ),
    Frame("offset", NUMBER, "offset of the data, in bytes"),
    Frame("data", BYTES, "data"),
    Frame("is_done", BOOLEAN, "1: the last chunk"),
)
encode_snapshot_sync, decode_snapshot_sync = SNAPSHOT_SYNC.pack, SNAPSHOT_SYNC.unpack


def encode_server_id(server_id: int) -> bytes:
    """Encodes the value of a RemoveServerRequest's entry: the id alone, 4 bytes."""
    return _ID.pack(check_id(server_id))


def decode_server_id(value: bytes) -> int:
    """Decodes the value of a RemoveServerRequest's entry. Raises RemoteProtocolError."""
    if len(value) != _ID.size:
        raise RemoteProtocolError(f"a server id has 4 bytes, not {len(value)}")
    (server_id,) = _ID.unpack(value)
    return int(server_id)


# ---- LogPack ----


def log_file_bytes(entries: Sequence[FarmLogEntry]) -> int:
    """The bytes that these entries take in a JRaft log file."""
    return sum(PACKED_ENTRY_BYTES + len(entry.value) for entry in entries)


def encode_log_pack(pack: LogPack) -> bytes:
    """Encodes a LogPack; decode_log_pack has the layout.

    pack.base   log_file_bytes() of all entries that the receiver already has: JRaft uses the
                offsets as positions in its own file
    """
    entries, offset = pack.entries, check_number(pack.base)
    if not 0 < len(entries) <= ENTRIES_MAX:
        raise LocalProtocolError(f"a LogPack of {len(entries)} entries")
    index: list[bytes] = []
    log: list[bytes] = []
    for term, value_type, value in entries:
        index.append(_NUMBER.pack(offset))
        log += (_PACKED_ENTRY.pack(check_number(term), value_type), value)
        offset += PACKED_ENTRY_BYTES + len(value)
    index_data, log_data = b"".join(index), b"".join(log)
    packer = zlib.compressobj(wbits=GZIP_BITS)
    parts = (_PACK_HEADER.pack(len(index_data), len(log_data)), index_data, log_data)
    return b"".join((*map(packer.compress, parts), packer.flush()))


def decode_log_pack(value: bytes, bytes_max: int = ENTRIES_BYTES_MAX) -> LogPack:
    """Decodes a LogPack (specification, "LogPack"), a gzip stream.

     4 bytes  size of the index data
     4 bytes  size of the log data
     n bytes  index data: where each entry begins in the sender's file, 8 bytes each
     n bytes  log data: for each entry its term (8), value type (1) and value; the size of the
              value follows from the offset of the next entry

    bytes_max   limit of the decompressed size

    Raises RemoteProtocolError if the gzip stream is malformed, has trailing bytes, or exceeds
    bytes_max, or if the offsets do not fit the log data.
    """
    data = _unzip(value, bytes_max)
    if len(data) < _PACK_HEADER.size:
        raise RemoteProtocolError(f"a LogPack of {len(data)} bytes")
    index_size, log_size = _PACK_HEADER.unpack_from(data)
    if index_size % _NUMBER.size or not 0 < index_size <= ENTRIES_MAX * _NUMBER.size:
        raise RemoteProtocolError(f"a LogPack with {index_size} bytes of index data")
    log_at = _PACK_HEADER.size + index_size
    if len(data) != log_at + log_size:
        raise RemoteProtocolError(f"a LogPack of {len(data)}, not {log_at + log_size} bytes")
    log_data = data[log_at:]
    offsets = Struct(f">{index_size // _NUMBER.size}q").unpack_from(data, _PACK_HEADER.size)
    base = offsets[0]
    if min(offsets) < 0:
        raise RemoteProtocolError("an offset of a LogPack is 2**63 or more")
    entries: list[FarmLogEntry] = []
    for begin, end in pairwise((*offsets, base + log_size)):
        if end - begin < PACKED_ENTRY_BYTES:
            raise RemoteProtocolError(f"an entry of a LogPack from {begin} to {end}")
        at = begin - base
        term, kind = _PACKED_ENTRY.unpack_from(log_data, at)
        if term < 0 or kind not in (ValueType.APPLICATION, ValueType.CONFIGURATION):
            raise RemoteProtocolError(f"an entry of a LogPack has term {term}, type {kind}")
        value = log_data[at + PACKED_ENTRY_BYTES : end - base]
        entries.append(FarmLogEntry(term, ValueType(kind), value))
    return LogPack(tuple(entries), base)


def _unzip(value: bytes, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=GZIP_BITS)
    try:
        data = unpacker.decompress(value, bytes_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"a LogPack is not gzip: {error}") from None
    if len(data) > bytes_max:
        raise RemoteProtocolError(f"a LogPack of more than {bytes_max} bytes unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise RemoteProtocolError("the gzip stream of a LogPack is cut off or has trailing bytes")
    return data
