"""Plain Python twins of csrc/sst/xxh3.c, snappy.c, sst.c and sst_merge.c: they copy, and read
whole
files."""

import struct
from collections.abc import Iterator
from pathlib import Path

from kelek.storage.engine.sst_file import FOOTER, VarintReader

MASK = (1 << 64) - 1
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578"
    "825ad07dccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea3"
    "71644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931"
    "c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ""
    ""
    ""
    ""
    ""
)
PRIME32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def folded(a: int, b: int) -> int:
    return (a * b & MASK) ^ (a * b >> 64)


def shaken(value: int, first: int, prime: int, second: int) -> int:
    value = (value ^ value >> first) * prime & MASK
    return value ^ value >> second


def avalanche(value: int) -> int:
    return shaken(value, 37, 0x165667919E3779F9, 32)


def mixed(data: bytes, at: int, key: int) -> int:
    return folded(u64(data, at) ^ u64(SECRET, key), u64(data, at + 8) ^ u64(SECRET, key + 8))


def xxh3(data: bytes) -> int:
    """The specification of xxHash, chapter by chapter, with seed 0."""
    size = len(data)
    if size == 0:
        return _last(u64(SECRET, 56) ^ u64(SECRET, 64))
    if size < 4:
        word = data[-1] | size << 8 | data[0] << 16 | data[size // 2] << 24
        return _last(word ^ (u64(SECRET, 0) & 0xFFFFFFFF) ^ (u64(SECRET, 4) & 0xFFFFFFFF))
    if size < 9:
        word = int.from_bytes(data[-4:], "little") | int.from_bytes(data[:4], "little") << 32
        word ^= u64(SECRET, 8) ^ u64(SECRET, 16)
        turned = [(word << bits | word >> (64 - bits)) & MASK for bits in (49, 24)]
        word = (word ^ turned[0] ^ turned[1]) * 0x9FB21C651E98DF25 & MASK
        word = (word ^ ((word >> 35) + size)) * 0x9FB21C651E98DF25 & MASK
        return word ^ word >> 28
    if size < 17:
        low = u64(data, 0) ^ u64(SECRET, 24) ^ u64(SECRET, 32)
        high = u64(data, size - 8) ^ u64(SECRET, 40) ^ u64(SECRET, 48)
        turned_round = int.from_bytes(low.to_bytes(8, "little"), "big")
        return avalanche(size + turned_round + high + folded(low, high) & MASK)
    value = size * PRIME64[0]
    if size < 129:
        for lane in range((size + 31) // 32):
            value += mixed(data, 16 * lane, 32 * lane)
            value += mixed(data, size - 16 * lane - 16, 32 * lane + 16)
        return avalanche(value & MASK)
    if size < 241:
        value = avalanche((value + sum(mixed(data, it, it) for it in range(0, 128, 16))) & MASK)
        offsets = range(128, size // 16 * 16, 16)
        value += sum(mixed(data, it, it - 128 + 3) for it in offsets)
        return avalanche(value + mixed(data, size - 16, 119) & MASK)
    return _long(data)


def _last(value: int) -> int:
    value = (value ^ value >> 33) * PRIME64[1] & MASK
    value = (value ^ value >> 29) * PRIME64[2] & MASK
    return value ^ value >> 32


def _long(data: bytes) -> int:
    lanes = [PRIME32[2], *PRIME64[:4], PRIME32[1], PRIME64[4], PRIME32[0]]

    def add(at: int, key: int) -> None:
        for lane in range(8):
            value = u64(data, at + 8 * lane)
            keyed = value ^ u64(SECRET, key + 8 * lane)
            lanes[lane ^ 1] = lanes[lane ^ 1] + value & MASK
            lanes[lane] = lanes[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & MASK

    for stripe in range((len(data) - 1) // 64):
        add(64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:
            for lane in range(8):
                value = lanes[lane] ^ lanes[lane] >> 47 ^ u64(SECRET, 128 + 8 * lane)
                lanes[lane] = value * PRIME32[0] & MASK
    add(len(data) - 64, 121)
    value = len(data) * PRIME64[0]
    for lane in range(0, 8, 2):
        key = 11 + 8 * lane
        value += folded(lanes[lane] ^ u64(SECRET, key), lanes[lane + 1] ^ u64(SECRET, key + 8))
    return avalanche(value & MASK)


def snappy_decode(data: bytes) -> bytes:
    """ValueError: it is no such data."""
    numbers = VarintReader(data)
    size = numbers.next()
    if size >= 1 << 32 or numbers.at > 5 or size > 32 * (len(data) - numbers.at):
        raise ValueError(f"{size} bytes")
    out = bytearray()
    while numbers.at < len(data):
        tag = numbers.read(1)[0]
        more, kind = tag >> 2, tag & 3
        if kind == 0:
            if more >= 60:
                more = int.from_bytes(numbers.read(more - 59), "little")
            out += numbers.read(more + 1)
        else:
            offset = int.from_bytes(numbers.read((1, 2, 4)[kind - 1]), "little")
            count = more + 1
            if kind == 1:
                count, offset = (more & 7) + 4, offset | tag >> 5 << 8
            if not 0 < offset <= len(out):
                raise ValueError(f"{offset} bytes back from {len(out)}")
            for _ in range(min(count, size + 1 - len(out))):
                out.append(out[-offset])
        if len(out) > size:
            raise ValueError(f"more than {size} bytes")
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes, not {size}")
    return bytes(out)


# ---- files ----


def block_at(data: bytes, offset: int, size: int) -> bytes:
    """ValueError: its checksum is another."""
    stored, kind = data[offset : offset + size], data[offset + size]
    checksum = (xxh3(stored) ^ kind * 0x6B9083D9) & 0xFFFFFFFF
    if struct.pack("<I", checksum) != data[offset + size + 1 : offset + size + 5]:
        raise ValueError(f"the block at {offset}")
    return snappy_decode(stored) if kind else stored


def index_of(data: bytes, stamped: bool) -> list[tuple[bytes, int, int]]:
    """Last keys, offsets and sizes of a file's blocks."""
    footer = VarintReader(data[-FOOTER + 1 :])
    handle = [footer.next() for _ in range(4)][2:]
    block = block_at(data, *handle)
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    numbers, found = VarintReader(block[:end]), []
    while numbers.at < end:
        assert numbers.next() == 0
        key = numbers.read(numbers.next())
        found.append((key[:-8] if stamped else key, numbers.next(), numbers.next()))
    return found


def entries_of(data: bytes, stamped: bool = False) -> Iterator[tuple[bytes, int, bytes]]:
    """Keys, stamps and values of a file."""
    for _, offset, size in index_of(data, stamped):
        block = block_at(data, offset, size)
        end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
        numbers, key = VarintReader(block[:end]), b""
        while numbers.at < end:
            shared, own, value_size = (numbers.next() for _ in range(3))
            key = key[:shared] + numbers.read(own)
            yield key[:-8], u64(key, len(key) - 8), numbers.read(value_size)


def merged(files: list[Path], sequence: int) -> list[tuple[bytes, bytes]]:
    """The pairs of files, whatever their order is."""
    newest: dict[bytes, tuple[int, bytes]] = {}
    for file in files:
        for key, stamp, value in entries_of(file.read_bytes()):
            if stamp >> 8 <= sequence and stamp > newest.get(key, (-1, b""))[0]:
                newest[key] = stamp, value
    return sorted((key, value) for key, (stamp, value) in newest.items() if stamp & 0xFF)
