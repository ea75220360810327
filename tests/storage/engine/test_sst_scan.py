"""The tables' files read in C, against Python twins and against RocksDB."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import rocksdict
from hypothesis import settings

from kelek.native.errors import NativeError
from kelek.native.tables import sst
from kelek.native.tables.ops import cut_column
from kelek.protocols.zerodb.server.scan_chunks import ChunkSource, PairChunks
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import Delete, DeleteRange, Op, Open, Put, Truncate
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import RocksTables, open_checkpoint, open_tables
from kelek.storage.engine.sst_scan import FileScan, TableScan
from kelek.storage.engine.walk import files_of
from kelek.storage.errors import Damaged, StorageError
from kelek.tests.storage.engine import sst_twin as twin

SHARED = Resources.of(8 << 20, 32 << 20)
TABLE = 3
SIZES = [*range(260), 511, 512, 1023, 1024, 1025, 1088, 1089, 2048, 5000]


def test_hash_equals_its_twin() -> None:
    rng = Random(1)
    for size in SIZES:
        data = rng.randbytes(size)
        assert sst.xxh3(data) == twin.xxh3(data), size


@pytest.mark.parametrize("seed", range(40))
def test_snappy_equals_its_twin(seed: int) -> None:
    """Random tags, many of them valid: both return the same bytes, or both refuse."""
    rng = Random(seed)
    for _ in range(50):
        data = random_snappy(rng)
        try:
            expected = twin.snappy_decode(data)
        except ValueError:
            with pytest.raises(NativeError):
                sst.snappy_decode(data)
        else:
            assert sst.snappy_decode(data) == expected


def random_snappy(rng: Random) -> bytes:
    out, size = bytearray(), 0
    for _ in range(rng.randrange(12)):
        kind = rng.randrange(4) if size else 0
        count = rng.randint(1, 300) if kind == 0 else rng.randint(1, 64)
        offset = rng.randint(1, min(size, 60_000)) if size else 0
        if kind == 0:
            extra = b"" if count <= 60 else (count - 1).to_bytes(rng.randint(2, 4), "little")
            tag = count - 1 if count <= 60 else 59 + len(extra)
            out += bytes([tag << 2]) + extra + rng.randbytes(count)
        elif kind == 1:
            offset, count = min(offset, 2047), rng.randint(4, 11)
            out += bytes([offset >> 8 << 5 | count - 4 << 2 | 1, offset & 0xFF])
        else:
            out += bytes([count - 1 << 2 | kind]) + offset.to_bytes(2 * kind - 2, "little")
        size += count
    size += rng.choice((0, 0, 0, 0, -1, 1, 1000))
    head = bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    data = bytes(head) + bytes([max(size, 0)]) + bytes(out)
    return data[: rng.randint(0, len(data))] if rng.random() < 0.2 else data


# ---- tables ----


def checkpoint_of(
    folder: Path, steps: Iterator[list[Op] | None], options: TableOptions
) -> RocksTables:
    """A checkpoint behind entries; None: flush the entries so far."""
    tables = open_tables(f"{folder}/tables", SHARED, replicated=True)
    tables.write([TableEntry(1, 1, [Open(TABLE, options)])])
    for number, ops in enumerate(steps, 2):
        if ops is None:
            tables.flush()
        else:
            tables.write([TableEntry(number, 1, ops)])
    tables.checkpoint(f"{folder}/checkpoint")
    tables.close()
    return open_checkpoint(f"{folder}/checkpoint", SHARED)


def random_steps(rng: Random) -> Iterator[list[Op] | None]:
    keys = [b"%04d" % rng.randrange(10**4) + bytes(rng.choice((0, 0, 1, 9))) for _ in range(500)]
    keys += [b"", b"\xff" * 7, rng.randbytes(2000)]
    for _ in range(rng.randint(1, 60)):
        chosen = rng.sample(keys, rng.randint(1, 60))
        sizes = [rng.choice((0, 5, 100, 100, 3000)) for _ in chosen]
        yield [Put(TABLE, chosen, [rng.randbytes(size // 3) * 3 for size in sizes])]
        if rng.random() < 0.5:
            yield [Delete(TABLE, rng.sample(keys, rng.randint(1, 60)))]
        if rng.random() < 0.3:
            yield None


def read_all(scan: ChunkSource, rng: Random) -> list[tuple[bytes, bytes]]:
    """All pairs, in chunks of any size, in both forms."""
    found: list[tuple[bytes, bytes]] = []
    ended = False
    while not ended:
        limits = rng.choice((1, 7, 1000)), rng.choice((1, 500, 1 << 20))
        if rng.random() < 0.5:
            one, columns = scan.columns(*limits)
            keys, values = (cut_column(*columns[column : column + 2]) for column in (0, 2))
            chunk = list(zip(keys, values, strict=True))
        else:
            frames: list[bytes] = []
            one = scan.read(*limits, frames.extend)
            chunk = list(zip(frames[::2], frames[1::2], strict=True))
        sizes = [len(key) + len(value) for key, value in chunk]
        assert (one.pairs, one.size) == (len(chunk), sum(sizes))
        assert len(chunk) <= limits[0]
        assert sum(sizes[:-1]) < limits[1]
        assert one.ended or len(chunk) == limits[0] or sum(sizes) >= limits[1]
        ended = one.ended
        found += chunk
    return found


@pytest.mark.parametrize("seed", range(12))
def test_merge_equals_its_twin(tmp_path: Path, seed: int) -> None:
    """Files of several levels, read in C, in Python, and by RocksDB."""
    rng = Random(seed)
    options = TableOptions(
        block_bytes=rng.choice((256, 4096)),
        write_buffer_bytes=64 << 10,
        bloom_bits=rng.choice((0, 10)),
        compression=rng.random() < 0.5,
    )
    tables = checkpoint_of(tmp_path, random_steps(rng), options)
    family = tables.families[TABLE]
    files = files_of(family.data.property_value("rocksdb.sstables") or "")
    names = [Path(f"{tables.path}/{file.number:06}.sst") for file in files]
    pairs = twin.merged(names, tables.database().latest_sequence_number())
    assert read_all(tables.pieces(TABLE), rng) == list(tables.scan(TABLE)) == pairs
    keys = [key for key, _ in pairs] or [b"x"]
    for _ in range(settings().max_examples // 5):
        start, end = (rng.choice([b"", rng.choice(keys), rng.randbytes(2)]) for _ in range(2))
        scan = tables.pieces(TABLE, start, end)
        assert read_all(scan, rng) == list(tables.scan(TABLE, start, end))
        scan = tables.pieces(TABLE, start, end, with_values=False)
        keys_within = list(tables.keys(TABLE, start, end))
        assert [key for key, _ in read_all(scan, rng)] == keys_within
        assert tables.count_range(TABLE, start, end) == len(keys_within)
    points = [b"", *sorted(set(rng.sample(keys, min(len(keys), 5))) - {b""}), b""]
    assert sum(tables.count_range(TABLE, *part) for part in pairwise(points)) == len(pairs)
    assert not sum(scan.files for scan in tables.file_scans)
    tables.close()


def test_levels_are_read(tmp_path: Path) -> None:
    """Compacted data, later deletes, and files with overlapping keys."""
    keys = [b"%05d" % number for number in range(20_000)]
    tables = open_tables(f"{tmp_path}/tables", SHARED, replicated=True)
    tables.write([TableEntry(1, 1, [Put(TABLE, keys, [key * 20 for key in keys])])])
    tables.compact(TABLE)
    for index in (2, 3, 4):
        chosen = keys[index::7]
        tables.write(
            [
                TableEntry(
                    index, 1, [Delete(TABLE, chosen[::2]), Put(TABLE, chosen[::3], chosen[::3])]
                )
            ]
        )
        tables.flush()
    tables.checkpoint(f"{tmp_path}/checkpoint")
    tables.close()
    found = open_checkpoint(f"{tmp_path}/checkpoint", SHARED)
    levels = [one.level for one in found.table_files(found.families[TABLE]) or []]
    assert 0 in levels
    assert max(levels) > 0
    assert read_all(found.pieces(TABLE), Random(1)) == list(found.scan(TABLE))
    found.close()


def test_counts_are_remembered_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another checkpoint only the ranges with other files are counted, as its twin does."""
    keys = [b"%05d" % number for number in range(4000)]
    ranges = [*pairwise((b"", b"01000", b"02000", b"03000", b""))]
    read: list[object] = []

    def count(scan: FileScan, plain: Callable[[FileScan], int] = FileScan.count) -> int:
        read.append(scan)
        return plain(scan)

    monkeypatch.setattr(FileScan, "count", count)
    tables = open_tables(f"{tmp_path}/tables", SHARED, replicated=True)
    steps: list[tuple[list[Op], int, int]] = [
        ([Put(TABLE, keys, keys)], 4000, 4),
        ([Put(TABLE + 1, keys, keys)], 4000, 0),
        ([Put(TABLE, [b"01500"], [b"changed"])], 4000, 1),
        ([Delete(TABLE, [b"01500", b"01501", b"02000"])], 3997, 2),
        ([Truncate(TABLE)], 0, 0),
        ([Put(TABLE, keys[:5], keys[:5])], 5, 1),
    ]
    for number, (ops, expected, counted) in enumerate(steps, 1):
        tables.write([TableEntry(number, 1, ops)])
        tables.checkpoint(f"{tmp_path}/{number}")
        found = open_checkpoint(f"{tmp_path}/{number}", SHARED, TABLE)
        for _ in range(2):
            assert sum(found.count_range(TABLE, *part) for part in ranges) == expected
        assert len([*found.keys(TABLE)]) == expected
        assert len(read) == counted, number
        assert found.tables().keys() <= {TABLE}
        read.clear()
        found.close()
    tables.close()


def three_files(tmp_path: Path, compression: bool = True) -> RocksTables:
    keys = [b"%05d" % number for number in range(3000)]
    puts = [Put(TABLE, keys[at : at + 1000], [b"value" * 9] * 1000) for at in (0, 1000, 2000)]
    steps: list[list[Op] | None] = [[puts[0]], None, [puts[1]], None, [puts[2]]]
    return checkpoint_of(
        tmp_path, iter(steps), TableOptions(block_bytes=256, compression=compression)
    )


def test_an_empty_or_missing_table(tmp_path: Path) -> None:
    tables = checkpoint_of(tmp_path, iter([]), TableOptions())
    for table in (TABLE, TABLE + 1):
        assert read_all(tables.pieces(table), Random(1)) == []
    tables.close()


@pytest.mark.parametrize("seed", range(30))
def test_damage_is_an_error(tmp_path: Path, seed: int) -> None:
    """A flipped bit, or a file that is cut off: correct pairs, or an error."""
    rng = Random(seed)
    tables = three_files(tmp_path, compression=bool(seed % 2))
    expected = list(tables.scan(TABLE))
    files = tables.table_files(tables.families[TABLE]) or []
    path = Path(f"{tables.path}/{rng.choice(files).number:06}.sst")
    data = bytearray(path.read_bytes())
    at = rng.choice((rng.randrange(len(data)), len(data) - rng.randint(1, 1500)))
    if seed % 3:
        data[at] ^= 1 << rng.randrange(8)
    else:
        del data[at:]
    path.unlink()  # The database has another link to it.
    path.write_bytes(data)
    tables.close()
    reopened = open_or_none(tables.path)
    if reopened is None:
        return
    found, damaged = until_damage(reopened.pieces(TABLE))
    assert found == expected[: len(found)]
    assert damaged or found == expected
    reopened.close()


def until_damage(scan: ChunkSource) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The pairs, and whether the scan has ended."""
    found: list[tuple[bytes, bytes]] = []
    ended = False
    with suppress(Damaged):
        while not ended:
            frames: list[bytes] = []
            ended = scan.read(100, 1 << 20, frames.extend).ended
            found += zip(frames[::2], frames[1::2], strict=True)
    return found, not ended


def open_or_none(path: str) -> RocksTables | None:
    try:
        return open_checkpoint(path, SHARED)
    except StorageError:
        return None  # RocksDB checks the sizes of files.


def test_a_flipped_bit_of_a_block_is_damage(tmp_path: Path) -> None:
    tables = three_files(tmp_path)
    for file in tables.table_files(tables.families[TABLE]) or []:
        path = Path(f"{tables.path}/{file.number:06}.sst")
        data = bytearray(path.read_bytes())
        data[100] ^= 4
        path.write_bytes(data)
    words = r"\d{6}\.sst: a block does not match its checksum"
    with pytest.raises(Damaged, match=words):
        tables.pieces(TABLE).columns(1000, 1 << 20)
    with pytest.raises(Damaged, match=words):
        tables.count_range(TABLE, b"", b"00100")
    tables.close()


# ---- files that only RocksDB reads ----


def test_unflushed_data_is_scanned(tmp_path: Path) -> None:
    tables = open_tables(f"{tmp_path}/tables", SHARED, replicated=True)
    tables.write([TableEntry(1, 1, [Put(TABLE, [b"a"], [b"1"])])])
    scan = tables.pieces(TABLE)
    assert isinstance(scan, PairChunks)
    assert read_all(scan, Random(1)) == [(b"a", b"1")]
    tables.close()


@pytest.mark.parametrize("kind", ["range", "checksum", "format", "compression", "index", "files"])
def test_unsupported_files_are_scanned_by_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """RocksDB continues at the first unsupported file: here the second one."""
    folder = f"{tmp_path}/tables"
    shared = SHARED._replace(files_max=0) if kind == "files" else SHARED
    tables = open_tables(folder, shared, replicated=True)
    keys = [b"%05d" % number for number in range(3000)]
    tables.write([TableEntry(1, 1, [Put(TABLE, keys, [b"v" * 40] * 3000)])])
    tables.compact(TABLE)
    tables.close()
    write_other_files(monkeypatch, kind)
    tables = open_tables(folder, shared, replicated=True)
    more = [b"%05d" % number for number in range(5000, 7000)]
    ops: list[Op] = [Put(TABLE, more, [b"w" * 40] * 2000)]
    if kind == "range":
        ops.append(DeleteRange(TABLE, b"02500", b"05100"))
    tables.write([TableEntry(2, 1, ops)])
    if kind != "range":  # A compaction would remove it.
        tables.compact(TABLE, more[0], more[-1])
    tables.checkpoint(f"{tmp_path}/checkpoint")
    tables.close()
    found = open_checkpoint(f"{tmp_path}/checkpoint", shared)
    scan = found.pieces(TABLE)
    expected = list(found.scan(TABLE))
    assert len(expected) == (4400 if kind == "range" else 5000)
    assert read_all(scan, Random(1)) == expected
    assert found.count_range(TABLE, b"", b"") == len(expected)
    assert isinstance(scan, PairChunks) if kind == "files" else isinstance(scan, TableScan)
    if isinstance(scan, TableScan):
        assert scan.engine_scan is not None
    found.close()


def write_other_files(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    plain = rocksdict.BlockBasedOptions.set_format_version

    def otherwise(blocks: rocksdict.BlockBasedOptions, version: int) -> None:
        plain(blocks, 6 if kind == "format" else version)
        if kind == "checksum":
            blocks.set_checksum_type(rocksdict.ChecksumType.crc32c())
        if kind == "index":
            blocks.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())

    monkeypatch.setattr(rocksdict.BlockBasedOptions, "set_format_version", otherwise)
    if kind == "compression":
        monkeypatch.setattr(rocksdict.DBCompressionType, "snappy", rocksdict.DBCompressionType.lz4)
