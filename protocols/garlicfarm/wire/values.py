"""What the entries of the Garlic Farm wire hold besides application data: five layouts, both ways.

Every size is checked against what is there, and against a limit, before anything is made of it; a
LogPack is unpacked no further than its limit.
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
PACKED_ENTRY_BYTES = _PACKED_ENTRY.size  # What an entry takes in a log besides its value.
GZIP_BITS = 31  # zlib: a gzip header and nothing else.


class Address(NamedTuple):
    """What counts of an endpoint."""

    host: str
    port: int


class LogPack(NamedTuple):
    """Consecutive entries, and where the first of them begins in its sender's file of the log."""

    entries: tuple[FarmLogEntry, ...]
    base: int


class _Reader:
    """Reads a value from the front; what is not there raises RemoteProtocolError."""

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
        """Like unpack, where nothing may be negative."""
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
    """The value of the only entry of a request. Raises RemoteProtocolError."""
    if len(request.entries) != 1 or request.entries[0].value_type is not value_type:
        raise RemoteProtocolError(f"{request.type.name} holds one {value_type.name}")
    return request.entries[0].value


# ---- servers ----


def parse_address(endpoint: str) -> Address:
    """Host and port of an endpoint: "tcp://localhost:9001"; whatever scheme it names.

    Raises RemoteProtocolError when there is no host, or no port from 1 to 65535.
    """
    _, _, rest = endpoint.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise RemoteProtocolError(f"{endpoint!r} names no host and port")
    if not 0 < int(port) < 65536:
        raise RemoteProtocolError(f"{endpoint!r} has no port that there is")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine is there, as far as a host can be told by its looks."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def encode_cluster_server(server: ClusterServer) -> bytes:
    """Encodes a ClusterServer; the layout is under decode_cluster_server.

    Raises LocalProtocolError on an endpoint that is not ASCII, or too long.
    """
    if not server.endpoint.isascii() or len(server.endpoint) > ENDPOINT_BYTES_MAX:
        raise LocalProtocolError(f"no server is at {server.endpoint!r}")
    endpoint = server.endpoint.encode("ascii")
    return _SERVER_HEADER.pack(check_id(server.id), len(endpoint)) + endpoint


def decode_cluster_server(value: bytes) -> ClusterServer:
    """Decodes the value of an AddServerRequest's entry (text, "ClusterServer").

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
        raise RemoteProtocolError(f"a server to remove in {len(value)} bytes")
    (server_id,) = _ID.unpack(value)
    return int(server_id)


def encode_configuration(configuration: FarmConfiguration) -> bytes:
    """Encodes a Configuration; the layout is under decode_configuration."""
    log_index, previous_log_index, servers = configuration
    header = _CONFIGURATION_HEADER.pack(check_number(log_index), check_number(previous_log_index))
    return header + b"".join(map(encode_cluster_server, servers))


def decode_configuration(value: bytes) -> FarmConfiguration:
    """Decodes a Configuration (text, "Configuration").

     8 bytes  index of this entry
     8 bytes  index of the Configuration before it
     then, to the end, for each server what decode_cluster_server says

    Raises RemoteProtocolError on wrong sizes, numbers or endpoints, more than SERVERS_MAX servers,
    or an id that stands there twice.
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


# ---- pieces of a log ----


def log_file_bytes(entries: Sequence[FarmLogEntry]) -> int:
    """How much further a file of the log is behind these entries, in bytes."""
    return sum(PACKED_ENTRY_BYTES + len(entry.value) for entry in entries)


def encode_log_pack(pack: LogPack) -> bytes:
    """Encodes a LogPack; the layout is under decode_log_pack.

    pack.base   what packed_size() says of all entries that the receiver's log already has, so that
                the offsets are positions in its own file: JRaft takes them for those
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
    """Decodes a LogPack (text, "LogPack"), which is gzipped as a whole.

     4 bytes  size of the index data, 8 an entry
     4 bytes  size of the log data
     n bytes  index data: where each entry begins in the sender's file, 8 bytes each
     n bytes  log data: of each entry term (8), value type (1) and value; its size is not there but
              as the distance to where the next entry begins

    bytes_max   of all this unpacked

    Raises RemoteProtocolError on what is no gzip, does not end where it should, is larger than
    bytes_max, or has offsets that do not fit the log data.
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
        raise RemoteProtocolError(f"a LogPack is no gzip: {error}") from None
    if len(data) > bytes_max:
        raise RemoteProtocolError(f"a LogPack of more than {bytes_max} bytes unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise RemoteProtocolError("the gzip of a LogPack does not end with it")
    return data


# ---- pieces of a snapshot ----


def encode_snapshot_sync(sync: SnapshotSync) -> bytes:
    """Encodes a SnapshotSyncRequest; the layout is under decode_snapshot_sync."""
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
    """Decodes a SnapshotSyncRequest (text, "SnapshotSyncRequest").

     8 bytes  last log index
     8 bytes  last log term
     4 bytes  size of the Configuration
     n bytes  the Configuration that was in force there
     8 bytes  offset of the data, in bytes
     4 bytes  size of the data
     n bytes  data
     1 byte   1 when this is the last piece

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
        raise RemoteProtocolError(f"a piece of a snapshot has {done} for done")
    return SnapshotSync(index, term, configuration, offset, data, done == 1)
