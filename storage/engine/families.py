"""RocksDB's options of tables, names of column families, and the meaning of its errors."""

import resource
from typing import NamedTuple

import rocksdict

from ...protocols.zerodb.wire.values import TableOptions
from ..errors import Damaged, StorageError, StorageFull, StorageLocked, SystemCall

FILE_BYTES = 16 << 20  # Of a database file; ranges are split at the bounds of files.
ARENA_BYTES = 64 << 10  # A write buffer grows by it; RocksDB's 1 MiB is too much for many tables.
LOG_FILE_BYTES_MAX = 4 << 20  # Of a file of the database's own log.
LOG_FILES_MAX = 4  # Number of these files that are kept.

_FULL = ("No space left on device", "Disk quota exceeded")
_DAMAGED = ("Corruption", "checksum mismatch")
_MISSING = "No such file or directory"
_REPAIR = "move it away: it is made again from the log and its peers"
_STALLED = "Write stall"
_LOCKED = ("lock hold by current process", "While lock file", "Resource temporarily unavailable")


class Stalled(StorageError):
    """RocksDB cannot take this write before it has flushed or compacted."""


class Resources(NamedTuple):
    """Resources that all tables of a process share."""

    cache: rocksdict.Cache
    buffers: rocksdict.WriteBufferManager
    files_max: int  # Files that a database may hold open.

    @classmethod
    def of(cls, cache_bytes: int, write_buffer_bytes: int) -> "Resources":
        """Shares a block cache and a limit of unflushed data, in bytes. Each database may hold an
        eighth of the process's open files; each table made since the start also holds the
        database's folder open."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(
            rocksdict.Cache(cache_bytes),
            rocksdict.WriteBufferManager(write_buffer_bytes, False),
            max(min(files // 8, 1 << 16), 64),
        )


class Family(NamedTuple):
    """An open column family."""

    name: str
    options: TableOptions
    cache: rocksdict.Cache | None  # Its own cache; None: it shares one, or has none.
    data: rocksdict.Rdict
    handle: rocksdict.ColumnFamily


class Guard(SystemCall):
    """Converts exceptions of rocksdict, which have one type, into StorageError."""

    __slots__ = ("opens",)

    def __init__(self, place: str, opens: bool = False) -> None:
        """opens: a database that exists is opened; a file that it names and lacks is damage"""
        self.place, self.opens = place, opens

    def translate(self, error: BaseException) -> None:
        if type(error) in (Exception, rocksdict.DbClosedError):
            error.__traceback__ = None
            text = " ".join(str(error).split())
            if self.opens and _MISSING in text:
                raise Damaged(self.place, text, _REPAIR) from None
            raise storage_error(self.place, text) from None


def without_traceback(error: StorageError) -> StorageError:
    """The error without its traceback, which would hold the database open."""
    error.__context__ = None
    return error.with_traceback(None)


def storage_error(place: str, text: str) -> StorageError:
    """The StorageError for an error text of RocksDB, in one line."""
    if any(words in text for words in _FULL):
        return StorageFull(place)
    if _STALLED in text:
        return Stalled(place, "the database cannot keep up with the writes", "it is tried again")
    if any(words in text for words in _LOCKED):
        return StorageLocked(place, "another process writes these tables", "end it first")
    if any(words in text for words in _DAMAGED):
        return Damaged(place, text, _REPAIR)
    return StorageError(place, text, "see the kernel's log")


# ---- names and options ----


def family_name(number: int, options: TableOptions) -> str:
    return ".".join(map(str, (number, *options[:4], int(options.compression))))


def parse_family(name: str) -> tuple[int, TableOptions]:
    """Raises ValueError: it is not a table's name."""
    number, cache, block, buffer, bloom, compression = map(int, name.split("."))
    return number, TableOptions(cache, block, buffer, bloom, bool(compression))


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def block_bytes(options: TableOptions) -> int:
    return _clamp(options.block_bytes, 256, 64 << 20)


def family_options(
    options: TableOptions, shared: Resources, replicated: bool
) -> tuple[rocksdict.Options, rocksdict.Cache | None]:
    """Numbers beyond RocksDB's limits are set to the limits."""
    found = database_options(shared, replicated)
    blocks = rocksdict.BlockBasedOptions()
    own = None
    if options.cache_bytes == 0:
        blocks.disable_cache()
    else:
        if options.cache_bytes != TableOptions().cache_bytes:
            own = rocksdict.Cache(options.cache_bytes)
        blocks.set_block_cache(own or shared.cache)
        blocks.set_cache_index_and_filter_blocks(True)  # This bounds their memory, too.
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_block_size(block_bytes(options))
    blocks.set_format_version(5)
    if options.bloom_bits:
        blocks.set_bloom_filter(_clamp(options.bloom_bits, 1, 64), False)
    found.set_block_based_table_factory(blocks)
    buffer_bytes = _clamp(options.write_buffer_bytes, 64 << 10, 4 << 30)
    found.set_write_buffer_size(buffer_bytes)
    found.set_arena_block_size(min(ARENA_BYTES, buffer_bytes // 8))
    kinds = rocksdict.DBCompressionType
    found.set_compression_type(kinds.snappy() if options.compression else kinds.none())
    return found, own


def database_options(shared: Resources, replicated: bool) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(replicated)
    options.set_write_buffer_manager(shared.buffers)
    options.set_max_open_files(shared.files_max)
    options.set_table_cache_num_shard_bits(4)  # Each shard may exceed its share by a file.
    options.set_target_file_size_base(FILE_BYTES)
    options.set_max_write_buffer_number(3)  # With 4 or more RocksDB slows writes down.
    # Writes wait only where RocksDB must stop them.
    options.set_level_zero_slowdown_writes_trigger(36)
    options.set_level_zero_stop_writes_trigger(36)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(1 << 20)
    options.set_max_total_wal_size(256 << 20)
    options.set_manifest_preallocation_size(64 << 10)
    options.set_max_log_file_size(LOG_FILE_BYTES_MAX)
    options.set_keep_log_file_num(LOG_FILES_MAX)
    options.set_stats_dump_period_sec(0)
    return options
