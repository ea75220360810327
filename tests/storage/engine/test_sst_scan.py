"""The tables' files read in C, against Python twins and against RocksDB."""

from collections.abc import Iterator
from contextlib import suppress
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
from kelek.protocols.zerodb.wire.ops import Delete, DeleteRange, Op, Open, Put
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import RocksTables, open_checkpoint, open_tables
from kelek.storage.engine.sst_scan import TableScan
from kelek.storage.engine.walk import files_of
from kelek.storage.errors import Damaged, StorageError
from kelek.tests.storage.engine import sst_twin as twin

SHARED = Resources.of(8 << 20, 32 << 20)
TABLE = 3
SIZES = [*range(260), 511, 512, 1023, 1024, 1025, 1088, 1089, 2048, 5000]


def test_hash_equals_its_twin() -> None:
    dice = Random(1)
    for size in SIZES:
        data = dice.randbytes(size)
        assert sst.xxh3(data) == twin.xxh3(data), size


@pytest.mark.parametrize("seed", range(40))
def test_snappy_equals_its_twin(seed: int) -> None:
    """Random tags, many of them valid: both return the same bytes, or both refuse."""
    dice = Random(seed)
    for _ in range(50):
        data = _some_snappy(dice)
        try:
            wanted = twin.snappy_decode(data)
        except ValueError:
            with pytest.raises(NativeError):
                sst.snappy_decode(data)
        else:
            assert sst.snappy_decode(data) == wanted


def _some_snappy(dice: Random) -> bytes:
    out, size = bytearray(), 0
    for _ in range(dice.randrange(12)):
        kind = dice.randrange(4) if size else 0
        count = dice.randint(1, 300) if kind == 0 else dice.randint(1, 64)
        offset = dice.randint(1, min(size, 60_000)) if size else 0
        if kind == 0:
            extra = b"" if count <= 60 else (count - 1).to_bytes(dice.randint(2, 4), "little")
            tag = count - 1 if count <= 60 else 59 + len(extra)
            out += bytes([tag << 2]) + extra + dice.randbytes(count)
        elif kind == 1:
            offset, count = min(offset, 2047), dice.randint(4, 11)
            out += bytes([offset >> 8 << 5 | count - 4 << 2 | 1, offset & 0xFF])
        else:
            out += bytes([count - 1 << 2 | kind]) + offset.to_bytes(2 * kind - 2, "little")
        size += count
    size += dice.choice((0, 0, 0, 0, -1, 1, 1000))
    head = bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    data = bytes(head) + bytes([max(size, 0)]) + bytes(out)
    return data[: dice.randint(0, len(data))] if dice.random() < 0.2 else data


# ---- tables ----


def made(folder: Path, steps: Iterator[list[Op] | None], options: TableOptions) -> RocksTables:
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


def some_steps(dice: Random) -> Iterator[list[Op] | None]:
    keys = [b"%04d" % dice.randrange(10**4) + bytes(dice.choice((0, 0, 1, 9))) for _ in range(500)]
    keys += [b"", b"\xff" * 7, dice.randbytes(2000)]
    for _ in range(dice.randint(1, 60)):
        some = dice.sample(keys, dice.randint(1, 60))
        sizes = [dice.choice((0, 5, 100, 100, 3000)) for _ in some]
        yield [Put(TABLE, some, [dice.randbytes(size // 3) * 3 for size in sizes])]
        if dice.random() < 0.5:
            yield [Delete(TABLE, dice.sample(keys, dice.randint(1, 60)))]
        if dice.random() < 0.3:
            yield None


def taken(scan: ChunkSource, dice: Random) -> list[tuple[bytes, bytes]]:
    """All pairs, in chunks of any size, in both forms."""
    found: list[tuple[bytes, bytes]] = []
    ended = False
    while not ended:
        room = dice.choice((1, 7, 1000)), dice.choice((1, 500, 1 << 20))
        if dice.random() < 0.5:
            one, columns = scan.columns(*room)
            keys, values = (cut_column(*columns[place : place + 2]) for place in (0, 2))
            piece = list(zip(keys, values, strict=True))
        else:
            frames: list[bytes] = []
            one = scan.read(*room, frames.extend)
            piece = list(zip(frames[::2], frames[1::2], strict=True))
        sizes = [len(key) + len(value) for key, value in piece]
        assert (one.pairs, one.size) == (len(piece), sum(sizes))
        assert len(piece) <= room[0]
        assert sum(sizes[:-1]) < room[1]
        assert one.ended or len(piece) == room[0] or sum(sizes) >= room[1]
        ended = one.ended
        found += piece
    return found


@pytest.mark.parametrize("seed", range(12))
def test_merge_equals_its_twin(tmp_path: Path, seed: int) -> None:
    """Files of several levels, read in C, in Python, and by RocksDB."""
    dice = Random(seed)
    options = TableOptions(
        block_bytes=dice.choice((256, 4096)),
        write_buffer_bytes=64 << 10,
        bloom_bits=dice.choice((0, 10)),
        compression=dice.random() < 0.5,
    )
    tables = made(tmp_path, some_steps(dice), options)
    family = tables.families[TABLE]
    files = files_of(family.data.property_value("rocksdb.sstables") or "")
    names = [Path(f"{tables.path}/{file.number:06}.sst") for file in files]
    pairs = twin.merged(names, tables.database().latest_sequence_number())
    assert taken(tables.pieces(TABLE), dice) == list(tables.scan(TABLE)) == pairs
    keys = [key for key, _ in pairs] or [b"x"]
    for _ in range(settings().max_examples // 5):
        start, end = (dice.choice([b"", dice.choice(keys), dice.randbytes(2)]) for _ in range(2))
        scan = tables.pieces(TABLE, start, end)
        assert taken(scan, dice) == list(tables.scan(TABLE, start, end))
        scan = tables.pieces(TABLE, start, end, with_values=False)
        assert [key for key, _ in taken(scan, dice)] == list(tables.keys(TABLE, start, end))
    assert not sum(scan.files for scan in tables.file_scans)
    tables.close()


def test_levels_are_read(tmp_path: Path) -> None:
    """Compacted data, later deletes, and files with overlapping keys."""
    keys = [b"%05d" % number for number in range(20_000)]
    tables = open_tables(f"{tmp_path}/tables", SHARED, replicated=True)
    tables.write([TableEntry(1, 1, [Put(TABLE, keys, [key * 20 for key in keys])])])
    tables.compact(TABLE)
    for index in (2, 3, 4):
        some = keys[index::7]
        tables.write(
            [TableEntry(index, 1, [Delete(TABLE, some[::2]), Put(TABLE, some[::3], some[::3])])]
        )
        tables.flush()
    tables.checkpoint(f"{tmp_path}/checkpoint")
    tables.close()
    found = open_checkpoint(f"{tmp_path}/checkpoint", SHARED)
    levels = [one.level for one in found.table_files(found.families[TABLE]) or []]
    assert 0 in levels
    assert max(levels) > 0
    assert taken(found.pieces(TABLE), Random(1)) == list(found.scan(TABLE))
    found.close()


def some_pairs(tmp_path: Path, compression: bool = True) -> RocksTables:
    keys = [b"%05d" % number for number in range(3000)]
    puts = [Put(TABLE, keys[at : at + 1000], [b"value" * 9] * 1000) for at in (0, 1000, 2000)]
    steps: list[list[Op] | None] = [[puts[0]], None, [puts[1]], None, [puts[2]]]
    return made(tmp_path, iter(steps), TableOptions(block_bytes=256, compression=compression))


def test_an_empty_or_missing_table(tmp_path: Path) -> None:
    tables = made(tmp_path, iter([]), TableOptions())
    for table in (TABLE, TABLE + 1):
        assert taken(tables.pieces(table), Random(1)) == []
    tables.close()


@pytest.mark.parametrize("seed", range(30))
def test_damage_is_an_error(tmp_path: Path, seed: int) -> None:
    """A flipped bit, or a file that is cut off: correct pairs, or an error."""
    dice = Random(seed)
    tables = some_pairs(tmp_path, compression=bool(seed % 2))
    wanted = list(tables.scan(TABLE))
    files = tables.table_files(tables.families[TABLE]) or []
    path = Path(f"{tables.path}/{dice.choice(files).number:06}.sst")
    data = bytearray(path.read_bytes())
    at = dice.choice((dice.randrange(len(data)), len(data) - dice.randint(1, 1500)))
    if seed % 3:
        data[at] ^= 1 << dice.randrange(8)
    else:
        del data[at:]
    path.unlink()  # The database has another link to it.
    path.write_bytes(data)
    tables.close()
    again = open_or_none(tables.path)
    if again is None:
        return
    found, damaged = until_damage(again.pieces(TABLE))
    assert found == wanted[: len(found)]
    assert damaged or found == wanted
    again.close()


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
    tables = some_pairs(tmp_path)
    for file in tables.table_files(tables.families[TABLE]) or []:
        path = Path(f"{tables.path}/{file.number:06}.sst")
        data = bytearray(path.read_bytes())
        data[100] ^= 4
        path.write_bytes(data)
    with pytest.raises(Damaged, match=r"\d{6}\.sst: a block does not match its checksum"):
        tables.pieces(TABLE).columns(1000, 1 << 20)
    tables.close()


# ---- files that only RocksDB reads ----


def test_unflushed_data_is_scanned(tmp_path: Path) -> None:
    tables = open_tables(f"{tmp_path}/tables", SHARED, replicated=True)
    tables.write([TableEntry(1, 1, [Put(TABLE, [b"a"], [b"1"])])])
    scan = tables.pieces(TABLE)
    assert isinstance(scan, PairChunks)
    assert taken(scan, Random(1)) == [(b"a", b"1")]
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
    _in_another_kind(monkeypatch, kind)
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
    wanted = list(found.scan(TABLE))
    assert len(wanted) == (4400 if kind == "range" else 5000)
    assert taken(scan, Random(1)) == wanted
    assert isinstance(scan, PairChunks) if kind == "files" else isinstance(scan, TableScan)
    if isinstance(scan, TableScan):
        assert scan.engine_scan is not None
    found.close()


def _in_another_kind(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
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
