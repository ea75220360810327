"""How the engine is told what a table is: options, names of column families, what its errors
mean."""

import resource
from types import TracebackType
from typing import NamedTuple

import rocksdict

from ...protocols.zerodb.wire.values import TableOptions
from ..errors import Damaged, StorageError, StorageFull, StorageLocked

FILE_BYTES = 16 << 20  # Of a file of the engine: its bounds are where ranges are split.
ARENA_BYTES = 64 << 10  # By which a write buffer grows: the engine's 1 MiB is much for many tables.
LOG_FILE_BYTES_MAX = 4 << 20  # The engine's own notes, of which it keeps ...
LOG_FILES_MAX = 4  # ... so many files.

_FULL = ("No space left on device", "Disk quota exceeded")
_DAMAGED = ("Corruption", "checksum mismatch")
_STALLED = "Write stall"
_LOCKED = ("lock hold by current process", "While lock file", "Resource temporarily unavailable")


class Stalled(StorageError):
    """The engine can't take this write before it has flushed or compacted something."""


class Shared(NamedTuple):
    """What all tables of a process share."""

    cache: rocksdict.Cache
    buffers: rocksdict.WriteBufferManager
    files_max: int  # That a database may hold open.

    @classmethod
    def of(cls, cache_bytes: int, write_buffer_bytes: int) -> "Shared":
        """A cache of blocks and a bound for what is not flushed yet, in bytes; an eighth of the
        files that the process may open for each of its databases. Beside these each table that
        was made since the start has the database's folder open."""
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
    cache: rocksdict.Cache | None  # Its own; None: it shares one, or has none.
    data: rocksdict.Rdict
    handle: rocksdict.ColumnFamily


class Guard:
    """Turns what the engine raises into a StorageError; it has one type for everything."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or kind not in (Exception, rocksdict.DbClosedError):
            return
        error.__traceback__ = None
        raise storage_error(self.place, str(error)) from None


def bare(error: StorageError) -> StorageError:
    """An error without what it passed on its way: that would hold the database open."""
    error.__context__ = None
    return error.with_traceback(None)


def storage_error(place: str, text: str) -> StorageError:
    """The StorageError that tells of what the engine said."""
    text = " ".join(text.split())
    if any(words in text for words in _FULL):
        return StorageFull(place)
    if _STALLED in text:
        return Stalled(
            place, "the engine does not keep up with what is written", "it is tried again"
        )
    if any(words in text for words in _LOCKED):
        return StorageLocked(place, "another process writes these tables", "end it first")
    if any(words in text for words in _DAMAGED):
        return Damaged(place, text, "move it away: it is made anew from the log and its peers")
    return StorageError(place, text, "see the kernel's log")


# ---- names and options ----


def family_name(number: int, options: TableOptions) -> str:
    return ".".join(map(str, (number, *options[:4], int(options.compression))))


def parse_family(name: str) -> tuple[int, TableOptions]:
    """Raises ValueError when it is none of ours."""
    number, cache, block, buffer, bloom, compression = map(int, name.split("."))
    return number, TableOptions(cache, block, buffer, bloom, bool(compression))


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def family_options(
    options: TableOptions, shared: Shared, replicated: bool
) -> tuple[rocksdict.Options, rocksdict.Cache | None]:
    """Beyond what the engine can take a number is as large, or small, as it can."""
    found = database_options(shared, replicated)
    blocks = rocksdict.BlockBasedOptions()
    own = None
    if options.cache_bytes == 0:
        blocks.disable_cache()
    else:
        if options.cache_bytes != TableOptions().cache_bytes:
            own = rocksdict.Cache(options.cache_bytes)
        blocks.set_block_cache(own or shared.cache)
        blocks.set_cache_index_and_filter_blocks(True)  # So they are bounded, too.
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_block_size(_clamp(options.block_bytes, 256, 64 << 20))
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


def database_options(shared: Shared, replicated: bool) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(replicated)
    options.set_write_buffer_manager(shared.buffers)
    options.set_max_open_files(shared.files_max)
    options.set_table_cache_num_shard_bits(4)  # Each shard takes a file more than its share.
    options.set_target_file_size_base(FILE_BYTES)
    options.set_max_write_buffer_number(3)  # From 4 on the engine slows writes down, and we ...
    options.set_level_zero_slowdown_writes_trigger(36)  # ... wait only where it has to stop them.
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
