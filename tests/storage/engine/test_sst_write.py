"""Files of sorted rows written in C, against Python twins and against RocksDB."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import rocksdict

from kelek.native.errors import ECORRUPT, EINVAL, NativeError
from kelek.native.tables.sst import snappy_decode
from kelek.native.tables.sst_write import PackedRows, sealed, snappy_encode
from kelek.protocols.zerodb.wire.chunks import SortedRows
from kelek.protocols.zerodb.wire.columns import join, split
from kelek.protocols.zerodb.wire.values import KEY_BYTES_MAX, TableOptions
from kelek.storage.engine.families import Resources, family_options
from kelek.storage.engine.sst_file import OpenedFile, SortedFile, open_file
from kelek.storage.engine.sst_write import write_file
from kelek.storage.errors import StorageError
from kelek.tests.storage.engine import sst_twin as twin

VALUE = 1  # The kind of an entry whose sequence number is 0.


def sorted_rows(rng: Random, count: int) -> list[tuple[bytes, bytes]]:
    """Keys with shared beginnings; values from none to some that are larger than a block."""
    keys = {b"/".join([b"k%d" % rng.randrange(40), rng.randbytes(rng.randrange(1, 30))])
            for _ in range(count)}  # fmt: skip
    sizes = [0, 1, 20, 100, 300, 9000]
    return [(key, value_of(rng, rng.choices(sizes, [2, 5, 5, 5, 5, 1])[0])) for key in sorted(keys)]


def value_of(rng: Random, size: int) -> bytes:
    return rng.randbytes(size) if rng.random() < 0.5 else (rng.randbytes(7) * size)[:size]


def packed(keys: Sequence[bytes], values: Sequence[bytes]) -> PackedRows:
    return PackedRows(*join(keys), *join(values))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_encoded_is_decoded(seed: int) -> None:
    rng = Random(seed)
    for size in [*range(20), 59, 60, 61, 62, 255, 256, 257, 4096, (1 << 16) - 1, 70_000, 140_000]:
        letters = rng.choice([1, 2, 4, 256])
        data = bytes(rng.choices(range(letters), k=size))
        found = snappy_encode(data)
        assert snappy_decode(found) == data
        if size <= 4096:
            assert twin.snappy_decode(found) == data
        if letters == 1 and size >= 60:
            assert len(found) < size / 5


@pytest.mark.parametrize("compresses", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_file_has_its_rows(tmp_path: Path, seed: int, compresses: bool) -> None:
    """By the twin, by its own properties, and by RocksDB, also after that has compacted it."""
    rng = Random(seed)
    rows = sorted_rows(rng, rng.choice([1, 15, 16, 17, 3000]))
    step = rng.choice([1, 7, 500, 5000])
    parts = [rows[at : at + step] for at in range(0, len(rows), step)]
    path = tmp_path / "rows"
    runs = [SortedRows([key for key, _ in it], [value for _, value in it]) for it in parts]
    block_bytes = rng.choice([256, 4096, 64 << 10])
    write_file(str(path), runs, block_bytes, compresses)
    entries = [*twin.entries_of(path.read_bytes())]
    assert entries == [(key, VALUE, value) for key, value in rows]
    opened = open_file(str(path))
    file = SortedFile(OpenedFile(str(path), opened))
    file.check()
    assert file.index("any", is_oldest=True).file_size == path.stat().st_size
    options, _ = family_options(TableOptions(), Resources.of(1 << 20, 1 << 20), True)
    database = rocksdict.Rdict(str(tmp_path / "database"), options)
    database[rows[0][0]] = b"older"
    database.ingest_external_file([str(path)], rocksdict.IngestExternalFileOptions())
    assert [*database.items()] == rows
    assert all(database[key] == value for key, value in rows[::20])
    database.compact_range(None, None)
    assert [*database.items()] == rows
    database.close()


def test_a_block_ends_before_it_is_too_large(tmp_path: Path) -> None:
    rows = SortedRows([b"%05d" % number for number in range(2000)], [b"value"] * 2000)
    write_file(str(tmp_path / "rows"), [rows], 1000, False)
    sizes = [size for _, _, size in twin.index_of((tmp_path / "rows").read_bytes(), False)]
    assert max(sizes) <= 1000
    assert min(sizes[:-1]) > 900


def is_right(rows: PackedRows) -> bool:
    """The twin of PackedRows.check()."""
    key_offsets, keys_data, value_offsets, values_data = map(bytes, rows)
    try:
        keys, values = split(key_offsets, keys_data), split(value_offsets, values_data)
    except ValueError:
        return False
    ascend = all(a < b for a, b in zip([b"", *keys], keys, strict=False))
    return bool(keys) and len(keys) == len(values) and ascend


@pytest.mark.parametrize("seed", range(10))
def test_hostile_rows_are_refused(seed: int) -> None:
    rng = Random(seed)
    found = set()
    for _ in range(300):
        rows = sorted_rows(rng, rng.randint(1, 5))
        parts = [bytearray(part) for part in packed(*map(list, zip(*rows, strict=True)))]
        if rng.random() < 0.8:
            part = rng.choice(parts)
            at = rng.randrange(len(part)) if part else 0
            part[at : at + rng.randrange(2)] = rng.randbytes(rng.randrange(3))
        hostile = PackedRows(*map(bytes, parts))
        found.add(is_right(hostile))
        if is_right(hostile):
            hostile.check()
        else:
            with pytest.raises(NativeError):
                hostile.check()
    assert found == {False, True}


def test_the_reason_why_rows_are_refused(tmp_path: Path) -> None:
    packed([b"k" * KEY_BYTES_MAX], [b""]).check()
    cases = [
        ([b"k" * (KEY_BYTES_MAX + 1)], [b""], {ECORRUPT, EINVAL}, False),
        ([b"b", b"a"], [b"", b""], {EINVAL}, True),
        ([b"a", b"a"], [b"", b""], {EINVAL}, True),
        ([b"", b"a"], [b"", b""], {EINVAL}, True),
        ([b"a"], [b"", b""], {ECORRUPT}, True),
        ([], [], {ECORRUPT}, True),
    ]
    for keys, values, codes, is_one in cases:
        with pytest.raises(NativeError) as error:
            packed(keys, values).check()
        assert (error.value.code in codes) == is_one
        with pytest.raises(NativeError):
            write_file(str(tmp_path / "rows"), [SortedRows(keys, values)], 4096, True)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="write this file"):
        write_file(str(tmp_path / "none/rows"), [SortedRows([b"k"], [b"v"])], 4096, True)


def test_a_sealed_block() -> None:
    for data in b"", b"abc", bytes(5000):
        assert twin.block_at(sealed(data), 0, len(data)) == data
