"""The methods of kelek.Table and kelek.AsyncTable that change a value by what it was before.

Each is a transaction of the table: reads and writes of one request, or a read and a compare-and-set
that is tried again while other clients change the key in between.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ...net.clock import monotonic_ms
from ...protocols.zerodb.wire import answers, requests
from ...protocols.zerodb.wire.values import (
    NO_NUMBER,
    NUMBER_DIGITS_MAX,
    STALE,
    VALUES_TOO_LARGE,
    Extension,
    is_number,
)
from ..errors import TableRefused, TableTimeout, TableTooLarge, TableUnsupported
from ..io.operations import Operation, operation
from .arguments import Data, check_value_size, checked_digits, checked_key, checked_value
from .batch import Batch
from .typed.operations import TypedTable

APPEND_BYTES_MAX = 256 << 10  # The nodes append so much; for more the client writes the value.


class KeyLifetime(NamedTuple):
    """How long a key lives.

    left_s    seconds until the table deletes it, by the clock of the node that answers; 0: any
              moment now; None: no end
    session   it ends with this session; 0: with none
    """

    left_s: float | None
    session: int


class TableUpdates(TypedTable):
    """Values that depend on the values before. In one step of the log each: no write of another
    client comes between."""

    @operation
    def swap(self, key: Data, value: Any, *, ttl_s: float | None = None) -> Operation[Any]:
        """Stores a value, and returns the value before; None: the key did not
        exist."""
        batch = Batch(self._name or self._number, ttl_s=ttl_s).get(key)
        batch.put(key, self._stored(value))
        return self._value((yield from self._commit(batch)).values[0])

    @operation
    def pop(self, key: Data) -> Operation[Any]:
        """Deletes a key, and returns its value; None: the key did not exist."""
        batch = Batch(self._name or self._number).get(key).delete(key)
        return self._value((yield from self._commit(batch)).values[0])

    @operation
    def update(
        self, key: Data, change: Callable[[Any], Any], *, ttl_s: float | None = None
    ) -> Operation[Any]:
        """Stores change(value) in place of a value, None for no key, and
        returns it.

        change is called again when another client has changed the key
        meanwhile, so it must have no other effect. A result of None changes
        nothing. The key has no time to live or session then, but ttl_s.

        Raises TableTimeout when others were faster for timeout_ms.
        """

        def stored(data: bytes | None) -> bytes | None:
            value = change(self._value(data))
            return None if value is None else self._stored(value)

        return self._value((yield from self._update(checked_key(key), stored, ttl_s)))

    @operation
    def increment(self, key: Data, by: int = 1, *, ttl_s: float | None = None) -> Operation[int]:
        """Adds to a whole number, and returns the sum. No key is 0.

        The number is stored as decimal digits, as JSON has it, whatever the
        table's codec is. The key has no time to live or session then, but
        ttl_s. The nodes add, in one write. While one of them is of a version
        that can't, it takes a read and a write, and more of both while other
        clients change the key.

        Raises ValueError when the value is no such number.
        """
        checked_digits(by)
        return (yield from self._increment(key, by, ttl_s))

    def _increment(self, key: Data, by: int, ttl_s: float | None) -> Operation[int]:
        """increment() in a request of its own."""
        try:
            batch = Batch(self._name or self._number, ttl_s=ttl_s).increment(key, by)
            return int((yield from self._commit(batch)).values[0] or 0)
        except TableUnsupported:
            return (yield from self._increment_by_compare(key, by, ttl_s))
        except TableRefused as error:
            if NO_NUMBER not in error.text:
                raise
            text = f"the value of {key!r} {NO_NUMBER}, or the sum of at most {NUMBER_DIGITS_MAX}"
            raise ValueError(text) from None

    def _increment_by_compare(self, key: Data, by: int, ttl_s: float | None) -> Operation[int]:
        def added(data: bytes | None) -> bytes:
            if data is not None and not is_number(data):
                raise ValueError(f"the value of {key!r} {NO_NUMBER}")
            return b"%d" % (int(data or 0) + by)

        return int((yield from self._update(checked_key(key), added, ttl_s)) or 0)

    @operation
    def append(self, key: Data, data: Data, *, ttl_s: float | None = None) -> Operation[int]:
        """Adds bytes to the end of a value, and returns its size. No key is an
        empty value.

        The key has no time to live or session then, but ttl_s. The nodes
        append, in one write. For more than 256 KiB, and while a node is of a
        version that can't, the client reads the value and sends it again,
        twice.
        """
        more = checked_value(data)
        if len(more) <= APPEND_BYTES_MAX:
            batch = Batch(self._name or self._number, ttl_s=ttl_s).append(key, more)
            try:
                return int((yield from self._commit(batch)).values[0] or 0)
            except TableUnsupported:
                pass  # Nothing was done.
            except TableRefused as error:
                if VALUES_TOO_LARGE not in error.text:
                    raise
                raise TableTooLarge(error.text) from None

        def joined(found: bytes | None) -> bytes:
            check_value_size(len(found or b"") + len(more))
            return (found or b"") + more

        return len((yield from self._update(checked_key(key), joined, ttl_s)) or b"")

    @operation
    def set_ttl(self, key: Data, ttl_s: float | None) -> Operation[bool]:
        """Makes the table delete an existing key after ttl_s seconds from now;
        None: never. False: there is no such key. A session of the key does not
        end it any more.
        """
        kept = yield from self._update(checked_key(key), lambda data: data, ttl_s)
        return kept is not None

    @operation
    def lifetime(self, key: Data) -> Operation[KeyLifetime | None]:
        """How long a key lives; None: there is no such key.

        Raises TableUnsupported when the server is of a version that does not
        tell.
        """
        yield from self._find()
        stale = Extension(self._read_flags & STALE)
        asked = requests.Lifetimes(self._number, [checked_key(key)], stale)
        found = next(iter((yield from self._fetch(asked, answers.LIFETIMES))), None)
        if found is None:
            return None
        is_limited = found.left_ms != answers.NO_END_MS
        return KeyLifetime(found.left_ms / 1000 if is_limited else None, found.session)

    def _update(
        self, key: bytes, change: Callable[[bytes | None], bytes | None], ttl_s: float | None
    ) -> Operation[bytes | None]:
        """Stores change(value); returns what is stored then. None: change wanted no value."""
        until_ms = monotonic_ms() + self.timeout_ms
        found = (yield from self._get([key]))[0]
        while (data := change(found)) is not None:
            batch = Batch(self._name or self._number, ttl_s=ttl_s).put(key, data)
            if found is None:
                batch.when_absent(key)
            else:
                batch.when_equal(key, found)
            batch.otherwise.get(key)
            result = yield from self._commit(batch)
            if result.succeeded:
                return data
            if monotonic_ms() >= until_ms:
                text = f"other clients changed the key {key!r} for {self.timeout_ms} ms"
                raise TableTimeout(text, "others were faster")
            found = result.values[0]
        return None
