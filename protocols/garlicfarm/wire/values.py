"""Layouts of the entry values that are not application data: encoders and decoders.

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
from .codec import check_id, check_number
from .messages import (
    ENDPOINT_BYTES_MAX,
    ENTRIES_BYTES_MAX,
    ENTRIES_MAX,
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
_SERVER_HEADER = Struct(">iI")
_CONFIGURATION_HEADER = Struct(">qq")
_SNAPSHOT_HEADER = Struct(">qqI")
_CHUNK_HEADER = Struct(">qI")
_PACK_HEADER = Struct(">II")
_PACKED_ENTRY = Struct(">qB")
PACKED_ENTRY_BYTES = _PACKED_ENTRY.size  # Bytes of an entry in a JRaft log file besides its value.
GZIP_BITS = 31  # zlib's number for: gzip header required.


class Address(NamedTuple):
    """The parts of an endpoint that matter."""

    host: str
    port: int


class LogPack(NamedTuple):
    """Consecutive entries. `base` is the offset of the first one in the log file that the offsets
    describe.
    """

    entries: tuple[FarmLogEntry, ...]
    base: int


class _Reader:
    """Reads values from the front. Raises RemoteProtocolError when the data ends early."""

    __slots__ = ("_at", "_data", "_name")

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        return layout.unpack(self.read(layout.size))

    def unpack_unsigned(self, layout: Struct) -> tuple[int, ...]:
        """Like unpack(), but refuses negative numbers."""
        found = self.unpack(layout)
        if min(found) < 0:
            raise RemoteProtocolError(f"a number in a {self._name} is 2**63 or more")
        return found

    def read(self, size: int) -> bytes:
        if size > self.remaining:
            raise RemoteProtocolError(f"a {self._name} ends {size - self.remaining} bytes early")
        self._at += size
        return self._data[self._at - size : self._at]

    def check_end(self) -> None:
        if self.remaining:
            raise RemoteProtocolError(f"{self.remaining} bytes behind a {self._name}")


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


def encode_cluster_server(server: ClusterServer) -> bytes:
    """Encodes a ClusterServer; decode_cluster_server has the layout.

    Raises LocalProtocolError if the endpoint is not ASCII or too long.
    """
    if not server.endpoint.isascii() or len(server.endpoint) > ENDPOINT_BYTES_MAX:
        raise LocalProtocolError(
            f"{server.endpoint!r} is not ASCII or longer than {ENDPOINT_BYTES_MAX} bytes"
        )
    endpoint = server.endpoint.encode("ascii")
    return _SERVER_HEADER.pack(check_id(server.id), len(endpoint)) + endpoint


def decode_cluster_server(value: bytes) -> ClusterServer:
    """Decodes the value of an AddServerRequest's entry (specification, "ClusterServer").

     4 bytes  id
     4 bytes  size of the endpoint, at most ENDPOINT_BYTES_MAX
     n bytes  endpoint, UTF-8

    Raises RemoteProtocolError on wrong sizes or characters, or an endpoint without host and port.
    """
    reader = _Reader(value, "ClusterServer")
    server = _read_server(reader)
    reader.check_end()
    return server


def _read_server(reader: _Reader) -> ClusterServer:
    server_id, size = reader.unpack(_SERVER_HEADER)
    if size > ENDPOINT_BYTES_MAX:
        raise RemoteProtocolError(f"an endpoint of {size} bytes")
    try:
        endpoint = reader.read(size).decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("an endpoint is not UTF-8") from None
    parse_address(endpoint)
    return ClusterServer(server_id, endpoint)


def encode_server_id(server_id: int) -> bytes:
    """Encodes the value of a RemoveServerRequest's entry: the id alone, 4 bytes."""
    return _ID.pack(check_id(server_id))


def decode_server_id(value: bytes) -> int:
    """Decodes the value of a RemoveServerRequest's entry. Raises RemoteProtocolError."""
    if len(value) != _ID.size:
        raise RemoteProtocolError(f"a server id has 4 bytes, not {len(value)}")
    (server_id,) = _ID.unpack(value)
    return int(server_id)


def encode_configuration(configuration: FarmConfiguration) -> bytes:
    """Encodes a Configuration; decode_configuration has the layout."""
    log_index, previous_log_index, servers = configuration
    header = _CONFIGURATION_HEADER.pack(check_number(log_index), check_number(previous_log_index))
    return header + b"".join(map(encode_cluster_server, servers))


def decode_configuration(value: bytes) -> FarmConfiguration:
    """Decodes a Configuration (specification, "Configuration").

     8 bytes  index of this entry
     8 bytes  index of the Configuration before it
     then, to the end, each server as in decode_cluster_server

    Raises RemoteProtocolError on wrong sizes, numbers or endpoints, more than SERVERS_MAX servers,
    or a repeated id.
    """
    reader = _Reader(value, "Configuration")
    log_index, previous_log_index = reader.unpack_unsigned(_CONFIGURATION_HEADER)
    servers: dict[int, ClusterServer] = {}
    while reader.remaining:
        server = _read_server(reader)
        if server.id in servers:
            raise RemoteProtocolError(f"a Configuration has server {server.id} twice")
        if len(servers) == SERVERS_MAX:
            raise RemoteProtocolError(f"a Configuration of more than {SERVERS_MAX} servers")
        servers[server.id] = server
    return FarmConfiguration(log_index, previous_log_index, tuple(servers.values()))


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
    reader = _Reader(_unzip(value, bytes_max), "LogPack")
    index_size, log_size = reader.unpack(_PACK_HEADER)
    if index_size % _NUMBER.size or not 0 < index_size <= ENTRIES_MAX * _NUMBER.size:
        raise RemoteProtocolError(f"a LogPack with {index_size} bytes of index data")
    offsets = reader.unpack_unsigned(Struct(f">{index_size // _NUMBER.size}q"))
    log_data = reader.read(log_size)
    reader.check_end()
    base = offsets[0]
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


# ---- SnapshotSyncRequest ----


def encode_snapshot_sync(sync: SnapshotSync) -> bytes:
    """Encodes a SnapshotSyncRequest; decode_snapshot_sync has the layout."""
    configuration = encode_configuration(sync.configuration)
    index, term = check_number(sync.last_log_index), check_number(sync.last_log_term)
    return b"".join(
        (
            _SNAPSHOT_HEADER.pack(index, term, len(configuration)),
            configuration,
            _CHUNK_HEADER.pack(check_number(sync.offset), len(sync.data)),
            sync.data,
            bytes([sync.is_done]),
        )
    )


def decode_snapshot_sync(value: bytes) -> SnapshotSync:
    """Decodes a SnapshotSyncRequest (specification, "SnapshotSyncRequest").

     8 bytes  last log index
     8 bytes  last log term
     4 bytes  size of the Configuration
     n bytes  the Configuration at that index
     8 bytes  offset of the data, in bytes
     4 bytes  size of the data
     n bytes  data
     1 byte   1: the last chunk

    Raises RemoteProtocolError on wrong sizes or numbers.
    """
    reader = _Reader(value, "SnapshotSyncRequest")
    index, term, size = reader.unpack_unsigned(_SNAPSHOT_HEADER)
    configuration = decode_configuration(reader.read(size))
    offset, size = reader.unpack_unsigned(_CHUNK_HEADER)
    data = reader.read(size)
    (done,) = reader.read(1)
    reader.check_end()
    if done > 1:
        raise RemoteProtocolError(f"done of a snapshot chunk is {done}, not 0 or 1")
    return SnapshotSync(index, term, configuration, offset, data, done == 1)
