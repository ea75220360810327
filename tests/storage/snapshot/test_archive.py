"""Archives: packing, unpacking, damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.storage.errors import Damaged, StorageError
from kelek.storage.snapshot.archive import (
    Member,
    Source,
    folder_sources,
    is_archive,
    member_read,
    members,
    pack,
    pieces,
)
from kelek.tests.storage.memory_disk import MemoryDisk, MemoryFiles

PLACE = "snapshots/x.snap"


def folder(contents: dict[str, bytes]) -> MemoryFiles:
    files = MemoryDisk().process()
    for name, data in contents.items():
        file = files.create(name)
        file.append([data])
        file.close()
    return files


class Packed:
    """An archive that is read like a snapshot's state."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def unpacked(self) -> dict[str, bytes]:
        return {
            member.path: b"".join(pieces(self.read, member, PLACE))
            for member in members(self.read, PLACE)
        }


NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@given(st.dictionaries(NAMES, st.binary(max_size=5000), max_size=6))
def test_unpacking_returns_the_packed_files(contents: dict[str, bytes]) -> None:
    packed = Packed(b"".join(pack(folder_sources(folder(contents), "table_worker.2"))))
    assert is_archive(packed.read)
    expected = {f"table_worker.2/{name}": data for name, data in sorted(contents.items())}
    assert packed.unpacked() == expected


def test_a_large_file_is_packed_in_pieces() -> None:
    data = bytes(range(256)) * 9000
    packed = [*pack([Source(folder({"a": data}), "a", "state_machine")])]
    assert max(map(len, packed)) <= 1 << 20
    archive = Packed(b"".join(packed))
    (member,) = members(archive.read, PLACE)
    read = member_read(archive.read, member)
    assert b"".join(iter(lambda: read(100_000), b"")) == data


@pytest.mark.parametrize("offset", range(60))
def test_every_flipped_bit_and_every_cut_is_found(offset: int) -> None:
    good = b"".join(pack(folder_sources(folder({"one": b"first", "two": b"2"}), "w")))
    for bad in (good[:offset], good[:offset] + bytes([good[offset] ^ 0x20]) + good[offset + 1 :]):
        try:
            found = Packed(bad).unpacked()
        except Damaged:
            continue
        assert found == {"w/one": b"first", "w/two": b"2"}, "it does not matter behind the end"
        assert offset >= len(good) - 8
        assert len(bad) == len(good)


@pytest.mark.parametrize("path", [b"../a", b"a/b/c", b"/etc/x", b"..", b"w/..", b"", b"a\0b"])
def test_no_path_leaves_the_folder(path: bytes) -> None:
    head = b"KLKA" + (1).to_bytes(4, "little")
    data = head + len(path).to_bytes(4, "little") + bytes(8) + path + bytes(4)
    found = []
    if path:
        with pytest.raises(Damaged, match="not the path"):
            found = [*members(Packed(data).read, PLACE)]
    assert found == []


def test_a_file_that_disappears_is_an_error() -> None:
    with pytest.raises(StorageError, match="disappeared"):
        b"".join(pack([Source(folder({}), "gone", "state_machine")]))


def test_a_member_is_not_read_beyond_its_end() -> None:
    packed = Packed(b"0123456789")
    read = member_read(packed.read, Member("a", 2, 3))
    assert [read(2), read(2), read(2)] == [b"23", b"4", b""]
