"""Kept snapshots of tables: a row of SNAPSHOT_TABLE for each, which ends with its time to live.

The snapshot itself is a lease of all nodes (docs/protocols/zerodb.md, "Kept snapshots").
"""

import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import msgpack

from .values import SHARED_LEASE

_KEY = struct.Struct(">IQ")  # Table and lease, so that a table's snapshots are in their order.


class KeptRow(NamedTuple):
    """A snapshot that all nodes keep until a time. Times are unix times in ms."""

    table: int
    lease: int
    name: str = ""  # Empty: it has none.
    taken_ms: int = 0
    until_ms: int = 0
    owner: str = ""  # The name of its client's key; empty: it has none.

    @property
    def log_index(self) -> int:
        """The LOG INDEX of the last entry in it."""
        return self.lease & ~SHARED_LEASE


def kept_key(table: int, lease: int) -> bytes:
    return _KEY.pack(table, lease)


def kept_prefix(table: int) -> bytes:
    """The prefix of the keys of a table's snapshots."""
    return table.to_bytes(4, "big")


def encode_kept(kept: KeptRow) -> bytes:
    """The value of a row."""
    return bytes(msgpack.packb([kept.name, kept.taken_ms, kept.until_ms, kept.owner]))


def decode_kept(rows: Iterable[tuple[bytes, bytes]]) -> list[KeptRow]:
    """Rows of SNAPSHOT_TABLE, without those that are malformed. A later version may append
    fields."""
    found = []
    for key, value in rows:
        with suppress(struct.error, ValueError, TypeError, msgpack.UnpackException):
            name, taken_ms, until_ms, owner = msgpack.unpackb(value)[:4]
            table, lease = _KEY.unpack(key)
            found.append(KeptRow(table, lease, name, taken_ms, until_ms, owner))
    return found
