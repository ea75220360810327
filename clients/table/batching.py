"""Divides reads and writes into requests."""

import time
from collections.abc import Iterable, Iterator

from .arguments import Data, checked_key, checked_value

Pair = tuple[bytes, bytes]

PACK_PAIRS = 1024  # In one put of put_many().
PACK_BYTES = 256 << 10
COLLECT_S_MAX = 0.002  # A pack waits no longer for the next pair of a slow source.
KEYS_MAX = 4096  # In one request to read.


def parts(keys: list[bytes]) -> Iterator[list[bytes]]:
    """Keys for one request each."""
    for first in range(0, len(keys), KEYS_MAX):
        yield keys[first : first + KEYS_MAX]


def checked_pairs(pairs: Iterable[tuple[Data, Data]]) -> list[Pair]:
    """Raises TypeError, TableTooLarge."""
    return [(checked_key(key), checked_value(value)) for key, value in pairs]


def packs(pairs: Iterable[tuple[Data, Data]]) -> Iterator[list[Pair]]:
    """Groups pairs into packs: full ones, or what a slow source yields within COLLECT_S_MAX."""
    clock = time.monotonic
    pack: list[Pair] = []
    size = 0
    until_s = 0.0
    for one in pairs:
        key, value = checked_key(one[0]), checked_value(one[1])
        size += len(key) + len(value)
        if size > PACK_BYTES and pack:
            yield pack
            pack, size = [], len(key) + len(value)
        if not pack:
            until_s = clock() + COLLECT_S_MAX
        pack.append((key, value))
        if len(pack) == PACK_PAIRS or clock() >= until_s:
            yield pack
            pack, size = [], 0
    if pack:
        yield pack
