"""Files of a checkpoint against their checksums: damage is found, sound files of all forms pass."""

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from kelek.native.errors import NativeError
from kelek.native.tables.sst import (
    TRAILER_SIZE,
    Bounds,
    blocks_checked,
    open_block,
    wanted_blocks,
)
from kelek.protocols.zerodb.tables.tables import TableEntry
from kelek.protocols.zerodb.wire.ops import Delete, DeleteRange, Op, Open, Put
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import open_existing
from kelek.storage.engine.families import Resources
from kelek.storage.engine.file_check import check_file
from kelek.storage.engine.rocks import open_tables
from kelek.storage.engine.sst_file import FOOTER, SortedFile
from kelek.storage.errors import Damaged

SHARED = Resources.of(8 << 20, 32 << 20)
FLIPS = 200
# The footer's end has no checksum: kind of checksum, unused bytes, format. RocksDB refuses them.
UNCHECKED = FOOTER


def checkpoint(folder: Path, options: TableOptions, ops: list[Op]) -> tuple[Disk, str]:
    """A checkpoint of a table to which ops are applied, each thousand in a file; and the name of
    the table's column family."""
    with closing(open_tables(str(folder / "tables"), SHARED, True)) as tables:
        tables.write([TableEntry(1, 1, [Open(3, options)])])
        for at in range(0, len(ops), 1000):
            tables.write([TableEntry(2 + at, 1, ops[at : at + 1000])])
            tables.flush()
        tables.checkpoint(str(folder / "checkpoint"))
        family = tables.families[3].name
    return Disk(str(folder / "checkpoint")), family


def puts(count: int, size: int) -> list[Op]:
    rng = Random(7)
    return [Put(3, [b"key %06d" % at], [rng.randbytes(size)]) for at in range(count)]


def check(disk: Disk) -> None:
    for name in disk.names(""):
        with closing(open_existing(disk, name)) as file:
            check_file(name, file)


@pytest.mark.parametrize(
    "options",
    [
        TableOptions(),
        TableOptions(compression=True),
        TableOptions(bloom_bits=10),
        TableOptions(block_bytes=256),
        TableOptions(block_bytes=4 << 20),
    ],
)
@pytest.mark.parametrize("size", [1, 3000])
def test_sound_files_pass(tmp_path: Path, options: TableOptions, size: int) -> None:
    """Among them tombstones and deleted ranges."""
    deletions: list[Op] = [Delete(3, [b"key 000001"]), DeleteRange(3, b"key 000002", b"key 000900")]
    disk, _ = checkpoint(tmp_path, options, [*puts(2500, size), *deletions])
    assert sum(name.endswith(".sst") for name in disk.names("")) >= 3
    check(disk)


def test_blocks_are_checked_as_the_twin_does(tmp_path: Path) -> None:
    """Parts of a file from any offset on, some with a changed byte."""
    disk, family = checkpoint(tmp_path, TableOptions(), puts(400, 100))
    path = max((tmp_path / "checkpoint").glob("*.sst"), key=lambda path: path.stat().st_size)
    whole, rng = path.read_bytes(), Random(3)
    with closing(open_existing(disk, path.name)) as file:
        blocks = wanted_blocks(SortedFile(file).index(family), Bounds())
    assert blocks.count > 8
    for _ in range(FLIPS):
        data, first = bytearray(whole), rng.randrange(blocks.count)
        data[rng.randrange(len(data))] ^= rng.randrange(2)
        base = rng.choice((0, blocks.offsets[first], rng.randrange(len(data))))
        part = bytes(data[base : rng.randint(base, len(data))])
        expected = first
        try:
            for place in range(first, blocks.count):
                at, end = (blocks.offsets[place] - base, blocks.sizes[place] + TRAILER_SIZE)
                if at < 0 or at + end > len(part):
                    break
                open_block(part[at : at + end])
                expected = place + 1
        except NativeError:
            with pytest.raises(NativeError):
                blocks_checked(blocks, first, part, base)
        else:
            assert blocks_checked(blocks, first, part, base) == expected


@pytest.mark.parametrize("kind", [".sst", "MANIFEST-"])
def test_each_flipped_bit_is_found(tmp_path: Path, kind: str) -> None:
    ops = [*puts(400, 100), DeleteRange(3, b"key 000002", b"key 000090")]
    disk, _ = checkpoint(tmp_path, TableOptions(compression=True, bloom_bits=10), ops)
    path = max((tmp_path / "checkpoint").glob(f"*{kind}*"), key=lambda path: path.stat().st_size)
    whole, rng = path.read_bytes(), Random(11)
    held = len(whole.rstrip(b"\0")) - UNCHECKED * (kind == ".sst")
    for _ in range(FLIPS):
        at = rng.randrange(8 * held)
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises(Damaged, match=f"{path.name}: .*move it away"):
            check(disk)
    path.write_bytes(whole)
    check(disk)


@pytest.mark.parametrize("left", [0, 10, FOOTER, 20_000])
def test_a_file_that_is_cut_short_is_found(tmp_path: Path, left: int) -> None:
    disk, _ = checkpoint(tmp_path, TableOptions(), puts(400, 100))
    path = max((tmp_path / "checkpoint").glob("*.sst"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(Damaged, match=path.name):
        check(disk)
