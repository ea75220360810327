"""The schema of a table: its columns, and which of them are the key.

The catalogue keeps it as JSON: {"columns": "day date32 not null, id int64", "key": ["day"]}.
Columns are only ever added, behind the others, so rows that were written before stay readable.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from ....protocols.zerodb.wire.catalogue import SCHEMA_BYTES_MAX
from ...errors import TableSchemaError
from ..arguments import Range, behind_key, behind_prefix
from ..pages import typed

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS_MAX = 1000
Key = Sequence[Any]  # Values of the first key columns, in their order.


class TableSchema:
    """The columns of a table.

    arrow   all columns as a schema of pyarrow, in the order in which they are read
    keys    names of the key columns; rows are in the order of these columns

        schema = kelek.TableSchema("day date32, id int64, price decimal(12, 2)", key=["day", "id"])

    Columns of the key are never null. Raises TableSchemaError for columns that a table can't have,
    and TableError without pyarrow.
    """

    def __init__(self, columns: "str | pa.Schema", key: Sequence[str]) -> None:
        typed()
        import pyarrow as pa

        from .types import fields_of, fields_text, is_nested, plain_type

        names = [key] if isinstance(key, str) else [*key]
        try:
            fields = fields_of(columns) if isinstance(columns, str) else [*columns]
            fields = [field.with_type(plain_type(field.type)) for field in fields]
            self._text = fields_text(fields)  # Raises ValueError for an unknown type.
        except ValueError as error:
            raise TableSchemaError(str(error)) from None
        found = {field.name: field for field in fields}
        if len(found) != len(fields) or len(fields) > COLUMNS_MAX:
            raise TableSchemaError(f"a table has at most {COLUMNS_MAX} columns, each name once")
        if not names or len(set(names)) != len(names):
            raise TableSchemaError("key: name one column or more, each once")
        for name in names:
            if name not in found:
                raise TableSchemaError(f"key: no column {name}; there are {', '.join(found)}")
            if is_nested(found[name].type):
                raise TableSchemaError(
                    f"key: {name} is {found[name].type}, which has no order; use a plain type"
                )
        self.keys = tuple(names)
        self.arrow = pa.schema(
            [field.with_nullable(field.nullable and field.name not in names) for field in fields],
        )
        self._text = fields_text(self.arrow)

    def __repr__(self) -> str:
        return f"TableSchema({self._text!r}, key={[*self.keys]!r})"

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableSchema) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash((self._text, self.keys))

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return [*self.arrow.names]

    @cached_property
    def key_fields(self) -> "list[pa.Field]":
        return [self.arrow.field(name) for name in self.keys]

    @cached_property
    def value_fields(self) -> "list[pa.Field]":
        """The other columns, in the order in which a value has them."""
        return [field for field in self.arrow if field.name not in self.keys]

    # ---- in the catalogue ----

    def encode(self) -> bytes:
        """As the catalogue keeps it. Raises TableSchemaError if it is too long."""
        text = json.dumps({"columns": self._text, "key": self.keys}, ensure_ascii=False)
        data = text.encode()
        if len(data) > SCHEMA_BYTES_MAX:
            raise TableSchemaError(
                f"the schema has {len(data)} bytes as text, at most {SCHEMA_BYTES_MAX}: shorten "
                "the names of columns"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises TableSchemaError."""
        try:
            found = json.loads(data)
            return cls(found["columns"], found["key"])
        except (ValueError, KeyError, TypeError, TableSchemaError) as error:
            raise TableSchemaError(
                f"the catalogue has a schema that this version can't read ({error}): use a newer "
                "version of kelek, or drop the table"
            ) from None

    def extended(self, wanted: "TableSchema") -> "TableSchema":
        """The wanted schema, if it only adds columns that may be null. Raises
        TableSchemaError."""
        from .types import fields_text

        before, after = [*self.arrow], [*wanted.arrow]
        if wanted.keys != self.keys:
            raise TableSchemaError(
                f"the table's key is {', '.join(self.keys)}, not {', '.join(wanted.keys)}: a key "
                "can't be changed; copy the rows into another table"
            )
        for place, field in enumerate(before):
            other = after[place] if place < len(after) else None
            if other is None or not field.equals(other):
                now = fields_text([field])
                then = fields_text([other]) if other is not None else "missing"
                raise TableSchemaError(
                    f"column {place + 1} of the table is `{now}`, and it is `{then}` in the new "
                    "schema: columns stay as they are, and new ones are added behind them"
                )
        for field in after[len(before) :]:
            if not field.nullable:
                raise TableSchemaError(
                    f"the new column {field.name} is `not null`, but the rows that exist have no "
                    "value for it: leave `not null` out"
                )
        return wanted

    # ---- keys ----

    def key(self, *values: Any) -> bytes:
        """The key of a row in bytes, from the values of all key columns.

        Raises TableSchemaError.
        """
        if len(values) != len(self.keys):
            raise TableSchemaError(
                f"a key has {len(self.keys)} values ({', '.join(self.keys)}), not {len(values)}"
            )
        return self.key_start(values)

    def key_start(self, values: Key) -> bytes:
        """The first bytes of all keys whose first columns have these values.

        Raises TableSchemaError.
        """
        from .rows import encode_key

        return encode_key(self, values)

    def range(self, prefix: Key | None, start: Key = (), end: Key = ()) -> Range:
        """The keys whose first columns equal prefix, or that lie in start <=
        key < end.

        Raises TableSchemaError, and ValueError when both are given.
        """
        if prefix is None:
            return Range(self.key_start(start), self.key_start(end))
        if len(start) or len(end):
            raise ValueError("give a prefix, or start and end, not both")
        first = self.key_start(prefix)
        if len(prefix) == len(self.keys):
            return Range(first, behind_key(first))
        return Range(first, behind_prefix(first))

    def chosen(self, columns: Sequence[str] | None) -> list[str]:
        """The named columns, or all. Raises TableSchemaError."""
        if columns is None:
            return self.columns
        names = [columns] if isinstance(columns, str) else [*columns]
        for name in names:
            if name not in self.arrow.names:
                raise TableSchemaError(f"no column {name}; there are {', '.join(self.columns)}")
        return names
