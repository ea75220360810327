"""Names and header blocks of the log's files (docs/reference/disk-format.md). It does no I/O."""

import re
from struct import Struct
from typing import NamedTuple

from ...native.log.blocks import crc32c
from ..errors import Damaged, StorageError

FOLDER = "log"
SEGMENT_START = 4096  # Size of a header; marks and blocks start here.
VERSION = 1
MAGIC_SEGMENT = 0x4C4B4C4B  # "KLKL"
MAGIC_CLEAN = 0x434B4C4B  # "KLKC"
NAME_BYTES_MAX = 255
STARTS_LOG = 1 << 63  # A flag in the field of the previous term, which has at most 53 bits.

_FIELDS = Struct("<QQQQ")  # size, sequence, first index, previous term with BEGINS
_CLEAN = Struct("<IIQQQQ")  # magic, version, sequence, offset, last index, last term
_CRC = Struct("<I")
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.seg")


class Identity(NamedTuple):
    """The cluster and the peer that own a file. Files of others are refused."""

    cluster: str
    peer_id: str


class SegmentHeader(NamedTuple):
    """The header of a segment."""

    size: int
    sequence: int
    first_index: int  # The segment supersedes entries of older segments from here on.
    previous_term: int  # The term of entry first_index - 1.
    starts_log: bool = False  # After a snapshot: the segment supersedes all older ones.

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.sequence:016x}-{self.first_index:016x}.seg"


class CleanMark(NamedTuple):
    """The end of the log when its writer closed it."""

    sequence: int
    offset: int
    last_index: int
    last_term: int


def parse_name(name: str) -> tuple[int, int] | None:
    """(sequence, first index) of a segment's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1], 16), int(match[2], 16)) if match else None


def with_crc(data: bytes) -> bytes:
    """data with its CRC32C behind it."""
    return data + _CRC.pack(crc32c(data))


def without_crc(data: bytes) -> bytes | None:
    """The data of with_crc(). None: the checksum is wrong."""
    body = data[: -_CRC.size]
    return body if with_crc(body) == data else None


def _encode_name(name: str) -> bytes:
    encoded = name.encode()
    assert len(encoded) <= NAME_BYTES_MAX, name
    return bytes([len(encoded)]) + encoded


def encode_identity(magic: int, identity: Identity, fields: bytes) -> bytes:
    """A block of 4096 bytes: magic, version, fields, identity, zeros, CRC32C of the rest."""
    head = Struct("<II").pack(magic, VERSION) + fields
    head += _encode_name(identity.cluster) + _encode_name(identity.peer_id)
    return with_crc(head.ljust(SEGMENT_START - _CRC.size, b"\0"))


def check_identity(
    magic: int, identity: Identity, fields_size: int, data: bytes, place: str
) -> bytes:
    """Decodes the fields of encode_identity().

    Raises StorageError: damaged, or of another version, cluster or peer.
    """
    fields, found = read_identity(magic, fields_size, data, place)
    for what, expected, name in zip(("cluster", "peer"), identity, found, strict=True):
        if expected != name:
            raise StorageError(
                place,
                f"it belongs to {what} {name!r}, not to {expected!r}",
                "give each peer a data directory of its own",
            )
    return fields


def read_identity(magic: int, fields_size: int, data: bytes, place: str) -> tuple[bytes, Identity]:
    """Decodes fields and identity. Raises StorageError: damaged, or of another version."""
    if len(data) < SEGMENT_START:
        raise Damaged(place, f"its first block has {len(data)} of {SEGMENT_START} bytes", RESTORE)
    found_magic, version = Struct("<II").unpack_from(data)
    if found_magic != magic:
        raise Damaged(
            place, f"offset 0: expected magic {magic:08x}, found {found_magic:08x}", RESTORE
        )
    if version != VERSION:
        raise StorageError(
            place,
            f"offset 4: expected version {VERSION}, found {version}",
            "use the kelek that wrote it",
        )
    crc, found = (
        crc32c(data[: SEGMENT_START - _CRC.size]),
        _CRC.unpack(data[SEGMENT_START - _CRC.size : SEGMENT_START])[0],
    )
    if crc != found:
        raise Damaged(place, f"offset 0: expected checksum {crc:08x}, found {found:08x}", RESTORE)
    at = 8 + fields_size
    names = []
    for _ in range(2):
        names.append(data[at + 1 : at + 1 + data[at]].decode("utf-8", "replace"))
        at += 1 + data[at]
    return data[8 : 8 + fields_size], Identity(*names)


RESTORE = "restore this node from its peers"


def encode_header(header: SegmentHeader, identity: Identity) -> bytes:
    size, sequence, first_index, previous_term, starts_log = header
    fields = _FIELDS.pack(size, sequence, first_index, previous_term | starts_log * STARTS_LOG)
    return encode_identity(MAGIC_SEGMENT, identity, fields)


def decode_header(data: bytes, identity: Identity, place: str) -> SegmentHeader:
    """Raises StorageError: damaged, or of another version, cluster or peer."""
    fields = check_identity(MAGIC_SEGMENT, identity, _FIELDS.size, data, place)
    size, sequence, first_index, number = _FIELDS.unpack(fields)
    return SegmentHeader(size, sequence, first_index, number & ~STARTS_LOG, number >= STARTS_LOG)


def read_owner(data: bytes, place: str) -> Identity:
    """The identity in a segment's header. StorageError: damaged, or of another version."""
    return read_identity(MAGIC_SEGMENT, _FIELDS.size, data, place)[1]


def encode_clean(mark: CleanMark) -> bytes:
    return with_crc(_CLEAN.pack(MAGIC_CLEAN, VERSION, *mark))


def decode_clean(data: bytes) -> CleanMark | None:
    """None if the mark is damaged: then the log counts as not closed."""
    body = without_crc(data)
    if body is None or len(body) != _CLEAN.size:
        return None
    magic, version, *fields = _CLEAN.unpack(body)
    return CleanMark(*fields) if (magic, version) == (MAGIC_CLEAN, VERSION) else None
