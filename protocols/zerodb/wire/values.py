"""Numbers of ZeroDB's wire: request types, codes, flags, limits, table options, and kelek's header
extension (docs/protocols/zerodb.md)."""

import re
import struct
from typing import NamedTuple

from ...limits import TABLE_MAX as TABLE_MAX
from ...reqids import REQID_BYTES

MAGIC = 0x31
VERSION = 0x01
HEADER_BYTES_MIN = 3

# Request types; an answer has the type of its request.
SERVER_INFO = 0x00
OPEN_TABLE = 0x01
CLOSE_TABLE = 0x02
COMPACT_TABLE = 0x03
TRUNCATE_TABLE = 0x04
READ = 0x10
COUNT = 0x11
EXISTS = 0x12
SCAN = 0x13
PUT = 0x20
DELETE = 0x21
DELETE_RANGE = 0x22
DELETE_LIMITED = 0x23
WRITE_TABLES = 0x24
FORWARD_RANGE = 0x40
MAP_TABLE = 0x41  # SSTSMIR
RANGE_JOB = 0x42  # CSPTMIR
JOB_STATUS = 0x48
CLIENT_DATA = 0x50
PROTOCOL_ERROR = 0xFF
# kelek's types, in codes that the specification leaves free.
SPLIT_POINTS = 0x14
TABLE_INFO = 0x15
WATCH = 0x16
LIFETIMES = 0x17
TRANSACTION = 0x25
SESSION = 0x26
LOAD = 0x27
LEASE = 0x43
COPY_TABLE = 0x44
LIST_JOBS = 0x45
END_JOB = 0x46

# Requests that PULL and SUB accept; they are not answered.
ONE_WAY_TYPES = frozenset((*range(OPEN_TABLE, TRUNCATE_TABLE + 1), *range(PUT, WRITE_TABLES + 1)))
# Requests that the endpoint for data jobs answers, too.
JOB_TYPES = frozenset((*range(FORWARD_RANGE, END_JOB + 1), JOB_STATUS, CLIENT_DATA))
WRITE_TYPES = frozenset(range(PUT, LOAD + 1))

# Response codes.
OK = 0x00
ERROR = 0x01
DATABASE_ERROR = 0x02
GONE = 0x03  # kelek: a watch asks for changes that are no longer kept.
SESSION_ENDED = 0x04  # kelek: the session of the write has ended; nothing was written.
NOT_ALLOWED = 0x05  # kelek: the client's key has no grant for the request, which did nothing.
REQUEST_ERROR = 0x10

# Flags of write requests.
PARTSYNC = 0x01
FULLSYNC = 0x02
# Flags of a table open request.
NOCOMPRESSION = 0x01
KEEP_VERSIONS = 0x02
# Flags of a chunk of data.
NO_MORE_DATA = 0x01
PARTIAL_DATA = 0x02
# Types of the modifications within a multi-table write.
MODIFY_PUT = 0x00
MODIFY_DELETE = 0x01

# Features in the answer to a server info request; the specification has the first three.
FEATURE_OPEN = 0x01  # A write opens its table.
FEATURE_PARTSYNC = 0x02
FEATURE_FULLSYNC = 0x04
FEATURE_PACKED = 0x100  # Packed puts, reads and scans; reverse and keys-only scans.
FEATURE_STALE = 0x200
FEATURE_TABLE_INFO = 0x400
FEATURE_SPLIT_POINTS = 0x800
FEATURE_TRANSACTIONS = 0x1000
FEATURE_WATCH = 0x2000
FEATURE_TTL = 0x4000
FEATURE_LEASES = 0x8000  # Sessions of keys and leases of snapshots.
FEATURE_COPY = 0x10000
FEATURE_JOBS = 0x20000  # Data jobs are listed and ended.
FEATURE_SHARED_LEASES = 0x40000  # Leases of snapshots on all nodes.
FEATURE_NAMES = 0x80000  # Tables have names.
FEATURE_LIFETIMES = 0x100000  # The time that keys have left is read.
FEATURE_SCHEMAS = 0x200000  # Named tables have schemas.
FEATURE_SUMS = 0x400000  # Increments, appends and reads of ranges in transactions.
FEATURE_EXCHANGE = 0x800000  # Two tables exchange their names.
FEATURE_INDEXES = 0x1000000  # Answers tell the LOG INDEX of writes and reads.
FEATURE_VERSIONS = 0x2000000  # Tables keep versions of their keys.
FEATURE_KEPT_SNAPSHOTS = 0x4000000  # Leases on all nodes are kept until a time.
FEATURE_LOADS = 0x8000000  # Bulk loads.
FEATURES = 0xFFFFF07  # All of them.

# Beside the features, a state: this node knows no leader now.
NO_LEADER = 0x8000_0000_0000_0000

# Flags of the extension.
STALE = 0x01  # Read what this node has, without asking the leader.
PACKED = 0x02  # Keys and values as columns, in the request (put, read) and in the answer.
KEYS_ONLY = 0x04  # Scan: values are empty.
REVERSE = 0x08  # Scan: from the end key downwards.
WITH_LEASE = 0x10  # The field `lease` is valid, even if it is 0.
WITH_TIMES = 0x20  # Watch: the answer has the times of entries.
WITH_INDEX = 0x40  # Write or read of keys: the answer has its LOG INDEX.
WITH_VERSIONS = 0x80  # Packed read: the answer has the versions of the keys.

KEY_BYTES_MAX = 64 << 10
VALUE_BYTES_MAX = 64 << 20
PAIR_BYTES_MAX = KEY_BYTES_MAX + VALUE_BYTES_MAX  # An answer may hold one pair whatever its limit.
REQUEST_BYTES_MAX = 128 << 20  # Of all frames.
REQUEST_FRAMES_MAX = 1 << 20
BYTES_A_MS = 4 << 10  # A busy server receives at least this; larger requests get more time.
TABLES_MAX = 10_000  # Of a cluster, without local ones; servers make no more.
NEW_TABLES_MAX = 1024  # Made by one write.
LIMIT_MAX = 2**64 - 1
CHUNK_PAIRS_MAX = 1 << 20  # In one chunk of a range job.
MAPPER_BYTES_MAX = 16 << 20
THREADS_MAX = 256
LISTED_JOBS_MAX = 1000  # In one answer.
SPLIT_POINTS_MAX = 1 << 16
KEPT_SNAPSHOTS_MAX = 64  # Of a cluster: a third of the leases that nodes share.
TTL_MS_MAX = 10 * 365 * 24 * 3600 * 1000  # Ten years.
COMPARES_MAX = 8192  # In one transaction; so many operations, too, in each branch.
NUMBER_DIGITS_MAX = 1000  # Of a number that is incremented.
APPENDED_BYTES_MAX = VALUE_BYTES_MAX  # Of all values that one transaction appends to.
CHUNK_BYTES_MAX = (1 << 20) - (4 << 10)  # A chunk of a bulk load, which is in one entry of the log.
CHUNK_ROWS_BYTES_MAX = 8 << 20  # What it holds when it is decompressed.
BUILD_CHUNKS_MAX = 64  # Of one step of a bulk load.
LOAD_ID_BYTES = 16
LOAD_BYTES_MAX = 256 << 30  # Of all chunks of a bulk load.
LOAD_MS_MAX = 24 * 3600 * 1000  # From a chunk to the end of its bulk load.
TEXT_BYTES_MAX = 1024  # Of an error text or a server's name.

# Reserved tables have numbers from here on (docs/protocols/zerodb.md, "Reserved tables").
RESERVED_FIRST = 0xC000_0000
# Each worker has tables with these numbers for its bulk loads (tables/loads.py).
LOADED_FIRST = 0xFFFF_FE00  # The rows of a load, before they replace those of its table.
LOADS_MAX = 64  # So many loads build rows at once.
CHUNK_TABLE = LOADED_FIRST + LOADS_MAX
LOAD_TABLE = CHUNK_TABLE + 1
FRESH_LAST = LOADED_FIRST - 1  # Clients make reserved tables up to here.
SNAPSHOT_TABLE = 0xFFFF_FFFA  # Kept snapshots (kept.py).
CATALOGUE_TABLE = 0xFFFF_FFFB  # Names and schemas of tables (catalogue.py).
NO_TABLE = 0xFFFF_FFFC  # Never written: clients read it in place of a table without a number.
OWNER_TABLE = 0xFFFF_FFFD  # The owners of reserved tables, by table number.
# Not in the list of all tables.
HIDDEN_TABLES = (
    SNAPSHOT_TABLE, CATALOGUE_TABLE, OWNER_TABLE, *range(LOADED_FIRST, LOAD_TABLE + 1)
)  # fmt: skip
BROKER_TABLE = 0xFFFF_FFFE  # Durable requests, unless the topology names another table.

# Tables that get their number from the catalogue.
NAMED_FIRST = 0x8000_0000
NAMED_LAST = 0x8FFF_FFFF
TABLE_NAME_BYTES_MAX = 128

# Set in the number of a lease that all nodes have, beside the log index of its entry.
SHARED_LEASE = 1 << 63

NO_REQID = bytes(REQID_BYTES)


# Texts of refusals that clients know.
SUMS_UNKNOWN = (
    "a member of the cluster may not know increments and appends yet: upgrade all nodes, "
    "start those that are down"
)
VERSIONS_UNKNOWN = (
    "a member of the cluster may not know versions of keys yet: upgrade all nodes, start those "
    "that are down"
)
LOADS_UNKNOWN = (
    "a member of the cluster may not know bulk loads yet: upgrade all nodes, start those that are "
    "down"
)
VALUES_TOO_LARGE = "the values have more than"
NO_NUMBER = "is no whole number in decimal digits"
_NUMBER = re.compile(rb"-?[0-9]{1,%d}" % NUMBER_DIGITS_MAX)


def is_number(data: bytes) -> bool:
    """Whether it is a whole number in decimal digits, as increments need it."""
    return _NUMBER.fullmatch(data) is not None


class TableOptions(NamedTuple):
    """RocksDB's options of a table. A table keeps those that it was created with.

    cache_bytes          LRU cache of blocks
    block_bytes          size of a block
    write_buffer_bytes   size of a memtable
    bloom_bits           bits per key of a bloom filter; 0: no filter
    compression          Snappy
    """

    cache_bytes: int = 10 << 20
    block_bytes: int = 4 << 10
    write_buffer_bytes: int = 64 << 20
    bloom_bits: int = 0
    compression: bool = True


# Limits of the options; a table with others is refused.
OPTION_LIMITS = (
    ("LRU cache size", 0, 1 << 40),
    ("block size", 1, 1 << 30),
    ("write buffer size", 1, 1 << 40),
    ("bloom filter bits per key", 0, 64),
)


class Extension(NamedTuple):
    """kelek's fields behind the header of the specification (docs/protocols/zerodb.md,
    "Extensions")."""

    flags: int = 0
    # How long the server may take, or a watch may wait; 0: the server's default.
    deadline_ms: int = 0
    reqid: bytes = b""  # 12 bytes, or empty: the request has no extension.
    bytes_max: int = 0  # Of keys and values in the answer; 0: the server's default.
    ttl_ms: int = 0  # Put: time to live of the keys; 0: no limit.
    lease: int = 0  # Put: the session that the keys end with. Range job: a lease of a snapshot.
    owner: bytes = b""  # 16 bytes: the owner of a reserved table; empty: none.


NO_EXTENSION = Extension()
EXTENSION_MAGIC = b"\x6b\x4c\x4b\x01"
OWNER_BYTES = 16
_NO_OWNER = bytes(OWNER_BYTES)
_FIELDS = struct.Struct(f"<BI12sIQQ{OWNER_BYTES}s")
# Ends of the fields behind the reqid: the extension may end at each.
_EXTENSION_ENDS = (21, 25, 33, 41, 57)
# Before the field `owner` existed, bytes behind this end were allowed.
_LAST_END = _EXTENSION_ENDS[-2]
EXTENSION_BYTES = 4 + _FIELDS.size
EXTENSION_BYTES_MIN = _EXTENSION_ENDS[0]


def encode_extension(extension: Extension) -> bytes:
    """Encodes the extension without trailing fields of 0; decode_extension() has the layout.
    NO_EXTENSION is empty."""
    if extension == NO_EXTENSION:
        return b""
    if not extension.reqid:
        extension = extension._replace(reqid=NO_REQID)
    data = _FIELDS.pack(*extension)
    used = len(data.rstrip(b"\0")) + 4
    size = next(end for end in _EXTENSION_ENDS if end >= used)
    return EXTENSION_MAGIC + data[: size - 4]


def echoed(header: bytes, offset: int) -> Extension:
    """The reqid of an extension that cannot be decoded, as far as it is there, for the error's
    header."""
    data = header[offset:]
    if not data.startswith(EXTENSION_MAGIC) or len(data) < EXTENSION_BYTES_MIN:
        return NO_EXTENSION
    return Extension(reqid=data[EXTENSION_BYTES_MIN - REQID_BYTES : EXTENSION_BYTES_MIN])


def is_packed(header: bytes, offset: int) -> int:
    """The flag PACKED of the extension, unchecked; 0: it has none."""
    behind = offset + len(EXTENSION_MAGIC)
    if len(header) <= behind or header[offset:behind] != EXTENSION_MAGIC:
        return 0
    return header[behind] & PACKED


def decode_extension(header: bytes, offset: int) -> Extension:
    """Decodes the extension behind the header of the specification.

     4 bytes  6b 4c 4b and the version, 1; other bytes are ignored, as the specification says
     u8       flags: 1 stale, 2 packed, 4 keys only, 8 reverse, 16 lease, 32 times, 64 index,
              128 versions
     u32      deadline, ms; 0: the server's default
    12 bytes  reqid, echoed in the answer
     u32      limit of keys and values in the answer, bytes; 0: the server's default
     u64      time to live, ms; 0: no limit
     u64      session, or lease of a snapshot; 0: none
    16 bytes  owner of a reserved table; zeros: none

    The last four fields may be missing from the end; bytes behind them are ignored. Raises
    ValueError if the extension ends within a field, has another version, or a time to live above
    ten years.
    """
    size = len(header) - offset
    if not header.startswith(EXTENSION_MAGIC, offset):
        if not header.startswith(EXTENSION_MAGIC[:3], offset):
            return NO_EXTENSION
        raise ValueError(f"an extension of version {header[offset + 3 :][:1].hex()}")
    if _LAST_END < size < EXTENSION_BYTES:
        size = _LAST_END
    if size < EXTENSION_BYTES and size not in _EXTENSION_ENDS:
        ends = ", ".join(map(str, _EXTENSION_ENDS))
        raise ValueError(f"expected an extension of {ends} bytes or more, found {size}")
    data = header[offset + 4 : offset + min(size, EXTENSION_BYTES)]
    *fields, owner = _FIELDS.unpack(data.ljust(_FIELDS.size, b"\0"))
    extension = Extension._make((*fields, b"" if owner == _NO_OWNER else owner))
    if extension.ttl_ms > TTL_MS_MAX:
        raise ValueError(
            f"expected a time to live of {TTL_MS_MAX} at most, found {extension.ttl_ms}"
        )
    return extension


def shared_lease(log_index: int) -> int:
    """The number of the lease that an entry opens on all nodes. Leases of one node count from 1 and
    never reach it."""
    return SHARED_LEASE | log_index


def is_shared(lease: int) -> bool:
    """Whether all nodes have the lease."""
    return bool(lease & SHARED_LEASE)
