"""kelek.Map: a table, or a part of one, as a dict."""

from collections.abc import ItemsView as AbstractItems
from collections.abc import Iterator, Mapping, MutableMapping, ValuesView
from typing import Any

from ...io.public import PublicType, public
from ..arguments import checked_key, checked_value
from ..codecs import codec_of
from ..table import Table

_NONE = object()


@public()
class Map(MutableMapping[str, Any], metaclass=PublicType):
    """A table, or its keys that begin with a prefix, as a dict of str.

        with kelek.Table("tcp://127.0.0.1:7100", "settings") as table:
            colours = kelek.Map(table, prefix="colours/")
            colours["sky"] = ["blue", "grey"]

    table    its thread, timeout and errors are those of this Map
    prefix   of the keys in the table; the Map's own keys are without it
    codec    of the values: "json", "msgpack", "text" (UTF-8), "bytes", a model
             of pydantic, a Struct of msgspec (both as JSON), or an object with
             encode(value) and decode(bytes)

    m[key], get(key, default)     the value of a key
    m[key] = value, del m[key]    stores it; deletes it
    key in m, len(m), iter(m)     of the keys, in the order of their UTF-8
    keys() values() items()       all of them, in that order
    pop(key) popitem()            removes a key, or the first one; returns it
    setdefault(key, default)      its value; the first caller's is stored
    update(other) clear()         stores pairs, pipelined; deletes all keys

    Each method reads and writes the cluster. pop(), popitem(), setdefault() and
    `del` are atomic, update() and clear() write several keys; iteration goes
    page by page, and may show writes of others meanwhile. A value that the
    codec can't read raises its error.
    """

    def __init__(self, table: Table, *, prefix: str = "", codec: Any = "json") -> None:
        if table.codec is not None:
            raise ValueError("a Map has a codec of its own: give it a Table without one")
        self._table, self._prefix, self._codec = table, prefix.encode(), codec_of(codec)

    def _key(self, key: object) -> bytes:
        if not isinstance(key, str):
            raise TypeError(f"a key is a str, not {type(key).__name__}")
        return checked_key(self._prefix + key.encode())

    def _name(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode()

    def __getitem__(self, key: str) -> Any:
        data = self._table.get(self._key(key))
        if data is None:
            raise KeyError(key)
        return self._codec.decode(data)

    def __setitem__(self, key: str, value: Any) -> None:
        self._table.put(self._key(key), self._codec.encode(value))

    def __delitem__(self, key: str) -> None:
        name = self._key(key)
        if not self._table.commit(self._table.batch().when_present(name).delete(name)).succeeded:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._table.exists(self._key(key))

    def __iter__(self) -> Iterator[str]:
        return map(self._name, self._table.keys(prefix=self._prefix))

    def __len__(self) -> int:
        return self._table.count(prefix=self._prefix)

    def items(self) -> AbstractItems[str, Any]:
        """All pairs, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """All values, in the order of their keys."""
        return _Values(self)

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        for key, data in self._table.scan(prefix=self._prefix):
            yield self._name(key), self._codec.decode(data)

    def pop(self, key: str, default: Any = _NONE) -> Any:
        """Removes a key and returns its value. Raises KeyError without a
        default."""
        name = self._key(key)
        while (data := self._table.get(name)) is not None:
            value = self._codec.decode(data)
            if self._remove(name, data):
                return value
        if default is _NONE:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[str, Any]:
        """Removes the first key and returns it with its value. Raises KeyError
        when empty."""
        while first := next(iter(self._table.scan(prefix=self._prefix, limit=1)), None):
            value = self._codec.decode(first[1])
            if self._remove(*first):
                return self._name(first[0]), value
        raise KeyError("the map is empty")

    def _remove(self, key: bytes, data: bytes) -> bool:
        """Deletes a key that still has this value."""
        return self._table.commit(self._table.batch().when_equal(key, data).delete(key)).succeeded

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key; of several callers, the first one's default is
        stored."""
        name, data = self._key(key), self._codec.encode(default)
        while not self._table.compare_and_put(name, None, data):
            found = self._table.get(name)
            if found is not None:
                return self._codec.decode(found)
        return default

    def update(self, other: Any = (), /, **values: Any) -> None:
        """Stores all pairs of a mapping or iterable, pipelined."""
        pairs = other.items() if isinstance(other, Mapping) else other
        self._table.put_many(
            (self._key(key), checked_value(self._codec.encode(value)))
            for each in (pairs, values.items())
            for key, value in each
        )

    def clear(self) -> None:
        """Deletes all keys, in one atomic write."""
        self._table.delete_range(prefix=self._prefix)


class _Items(AbstractItems[str, Any]):
    _mapping: Map

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self._mapping._pairs()


class _Values(ValuesView[Any]):
    _mapping: Map

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping._pairs())
