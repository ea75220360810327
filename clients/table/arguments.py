"""Checks of arguments before a table client sends a request."""

from collections.abc import Iterable
from typing import NamedTuple

from ...protocols.failover.limits import NEVER_MS
from ...protocols.zerodb.wire.catalogue import is_table_name
from ...protocols.zerodb.wire.values import (
    FULLSYNC,
    KEY_BYTES_MAX,
    LIMIT_MAX,
    NUMBER_DIGITS_MAX,
    OPTION_LIMITS,
    PARTSYNC,
    TABLE_MAX,
    TABLE_NAME_BYTES_MAX,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
    TableOptions,
)
from ..errors import TableTooLarge

Data = bytes | bytearray | memoryview | str  # A str is sent as UTF-8.
Pair = tuple[bytes, bytes]

# When a write is acknowledged: on receipt, when applied, when on stable storage.
SYNC_FLAGS = {"async": 0, "partsync": PARTSYNC, "fullsync": FULLSYNC}


_BEYOND: int = 10**NUMBER_DIGITS_MAX


class Range(NamedTuple):
    """start <= key < end; an empty start is the first key, an empty end is behind the last."""

    start: bytes = b""
    end: bytes = b""

    @property
    def last(self) -> bytes:
        """The largest key of the range, for requests with an inclusive end. No key is longer."""
        if not self.end:
            return b""
        head, byte = self.end[:-1], self.end[-1]
        if not byte:
            return head
        return head + bytes((byte - 1,)) + b"\xff" * (KEY_BYTES_MAX - len(self.end))

    @property
    def empty(self) -> bool:
        """Whether no key can be in the range."""
        return (bool(self.end) and self.start >= self.end) or self.end == b"\0"


def checked_range(prefix: Data | None, start: Data, end: Data) -> Range:
    """A range by a prefix, or by bounds. Raises ValueError when both are given."""
    if prefix is None:
        return Range(checked_bound(start), checked_bound(end))
    if start or end:
        raise ValueError("give a prefix, or start and end, not both")
    first = checked_bound(prefix)
    return Range(first, behind_prefix(first))


def behind_prefix(prefix: bytes) -> bytes:
    """The smallest key above all keys with this prefix; empty: none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else b""


def behind_key(key: bytes) -> bytes:
    """The smallest key above this one; empty: none."""
    return key + b"\0" if len(key) < KEY_BYTES_MAX else behind_prefix(key)


def checked_table(table: int | str) -> int | str:
    """A table's number, or its name. Raises TypeError, ValueError."""
    if isinstance(table, str):
        return checked_name(table)
    if not isinstance(table, int):
        raise TypeError(f"a table is a number or a name, not {type(table).__name__}")
    if not 0 <= table <= TABLE_MAX:
        raise ValueError(f"a table is a number from 0 to {TABLE_MAX}, not {table}")
    return table


def parse_table(text: str) -> int | str:
    """A table's number or name, from text. Raises ValueError."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(TABLE_MAX))
    return checked_table(int(text) if is_number else text)


def checked_name(name: str) -> str:
    """A table's name. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"a table's name is a str, not {type(name).__name__}")
    if not is_table_name(name):
        raise ValueError(
            f"a table's name has 1 to {TABLE_NAME_BYTES_MAX} characters of A-Z, a-z, 0-9 and _.- "
            f"and begins with a letter or _, not {name[: TABLE_NAME_BYTES_MAX + 1]!r}"
        )
    return name


def checked_number(what: str, number: int, least: int = 0, most: int = LIMIT_MAX) -> int:
    """Raises TypeError, ValueError unless the number fits its field of a request."""
    if not isinstance(number, int):
        raise TypeError(f"{what} is a number, not {type(number).__name__}")
    if not least <= number <= most:
        raise ValueError(f"{what} is a number from {least} to {most}, not {number}")
    return number


def checked_options(options: TableOptions) -> TableOptions:
    """Raises TypeError, ValueError."""
    for (what, least, most), number in zip(OPTION_LIMITS, options[:4], strict=True):
        checked_number(f"the {what}", number, least, most)
    return options


def checked_key(key: Data) -> bytes:
    """Raises TypeError, TableTooLarge."""
    data = _bytes("a key", key)
    check_key_size(len(data))
    return data


def check_key_size(size: int) -> None:
    """Raises TableTooLarge."""
    if not 0 < size <= KEY_BYTES_MAX:
        raise TableTooLarge(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {size}")


def checked_keys(keys: Iterable[Data]) -> list[bytes]:
    """Raises TypeError, TableTooLarge."""
    if isinstance(keys, bytes | bytearray | memoryview | str):
        raise TypeError("give several keys in a list; for one key use the singular method")
    return [checked_key(key) for key in keys]


def is_step(number: int) -> bool:
    """Whether an increment may have so many digits."""
    return -_BEYOND < number < _BEYOND


def checked_step(number: int) -> int:
    """The number of an increment. Raises TypeError, ValueError."""
    if not isinstance(number, int):
        raise TypeError(f"an increment is a whole number, not {type(number).__name__}")
    if not is_step(number):
        raise ValueError(f"an increment has at most {NUMBER_DIGITS_MAX} digits")
    return number


def checked_digits(number: int) -> bytes:
    """A number as increments have it. Raises TypeError, ValueError."""
    return b"%d" % checked_step(number)


def checked_bound(bound: Data) -> bytes:
    """Raises TypeError, TableTooLarge."""
    data = _bytes("a bound", bound)
    if len(data) > KEY_BYTES_MAX:
        raise TableTooLarge(f"a bound has at most {KEY_BYTES_MAX} bytes, not {len(data)}")
    return data


def checked_value(value: Data) -> bytes:
    """Raises TypeError, TableTooLarge."""
    data = _bytes("a value", value)
    check_value_size(len(data))
    return data


def checked_pairs(pairs: Iterable[tuple[Data, Data]]) -> list[Pair]:
    """Raises TypeError, TableTooLarge."""
    return [(checked_key(key), checked_value(value)) for key, value in pairs]


def check_value_size(size: int) -> None:
    """Raises TableTooLarge."""
    if size > VALUE_BYTES_MAX:
        raise TableTooLarge(f"a value has at most {VALUE_BYTES_MAX} bytes, not {size}")


def sync_flags(sync: str) -> int:
    """The flags of a write. Raises ValueError."""
    if sync not in SYNC_FLAGS:
        raise ValueError(f"sync is {', '.join(SYNC_FLAGS)}, not {sync!r}")
    return SYNC_FLAGS[sync]


def milliseconds(seconds: float | None) -> int:
    """A time to live in milliseconds. Raises TypeError, ValueError."""
    if seconds is None:
        return 0
    checked_seconds("a time to live", seconds)
    if not 0.001 <= seconds <= TTL_MS_MAX / 1000:  # Nor is NaN.
        raise ValueError(f"a time to live is a millisecond to ten years, not {seconds} s")
    return round(seconds * 1000)


def milliseconds_or_never(what: str, seconds: float | None) -> int:
    """A time to wait in milliseconds; NEVER_MS: no end. Raises TypeError."""
    return NEVER_MS if seconds is None else int(checked_seconds(what, seconds) * 1000)


def checked_seconds(what: str, seconds: float) -> float:
    """Raises TypeError."""
    if not isinstance(seconds, int | float):
        raise TypeError(f"{what} is a number of seconds, not {type(seconds).__name__}")
    return seconds


def _bytes(what: str, data: Data) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, bytearray | memoryview):
        raise TypeError(f"{what} is bytes or a str, not {type(data).__name__}")
    return bytes(data)
