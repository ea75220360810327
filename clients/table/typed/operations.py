"""The methods of kelek.Table and kelek.AsyncTable for tables with a schema."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....protocols.zerodb.wire import requests
from ....protocols.zerodb.wire.answers import Answer
from ....protocols.zerodb.wire.catalogue import SchemaChange, number_key, schema_key
from ....protocols.zerodb.wire.values import FEATURE_SCHEMAS, PACKED, Extension
from ...errors import TableNotAllowed, TableSchemaError, TableUnsupported
from ...io.operations import Batches, Operation, items, operation
from ..arguments import Data, Range, checked_range
from ..names import catalogue_values, change_catalogue
from ..pages import Page, ScanQuery, arrow, typed
from ..reads import TableReads

if TYPE_CHECKING:
    import pyarrow

    from .schema import Key, TableSchema

Decode = Callable[[Answer, requests.Scan], Page]


class TypedTable(TableReads):
    """Rows with columns."""

    @operation
    def schema(self) -> Operation["TableSchema | None"]:
        """The schema of the table; None: it has none, and rows are keys and
        values in bytes.

        Raises TableSchemaError for a schema of a newer version.
        """
        found = self._schema = yield from self._stored_schema()
        return found

    @operation
    def declare(
        self, columns: "str | pyarrow.Schema | TableSchema", key: Sequence[str] = ()
    ) -> Operation["TableSchema"]:
        """Gives a named table a schema, or adds columns behind those that it
        has; returns it.

            table.declare("day date32, id int64, n int32", key=["day", "id"])

        Of several callers with the same columns all succeed. It creates the
        table.

        Raises TableSchemaError when the table has other columns, or has keys
        without a schema.
        """
        typed()
        from .schema import TableSchema

        wanted = columns if isinstance(columns, TableSchema) else TableSchema(columns, key)
        wanted.encode()
        yield from self._ensure()
        server = yield from self._served()
        if not server.features & FEATURE_SCHEMAS:
            raise TableUnsupported(f"the server at {server.url} does not support schemas of tables")
        while True:
            keys = [number_key(self._number), schema_key(self._number)]
            name, before = yield from catalogue_values(self, keys)
            if not name:
                raise TableSchemaError(
                    f"table {self._number} has no name, and only named tables have schemas: give "
                    "it one by rename()"
                )
            if before:
                wanted = TableSchema.decode(before).extended(wanted)
            elif (yield from self._has_keys()):
                raise TableSchemaError(
                    f"table {name.decode()} has keys that were put without a schema: write rows "
                    "into another table, or truncate() this one first"
                )
            after = wanted.encode()
            change = SchemaChange(self._number, name.decode(), before or b"", after)
            if after == before or (yield from change_catalogue(self, change)):
                yield from TableReads.open(self)
                self._schema = wanted
                return wanted

    def _has_keys(self) -> Operation[bool]:
        asked = ScanQuery(checked_range(None, b"", b""), limit=1, keys_only=True)
        found = False
        for step in self._pages(asked, self._keys):
            if isinstance(step, list):
                found = True
            else:
                yield step
        return found

    @operation
    def get_row(self, *key: Any) -> Operation[dict[str, Any] | None]:
        """The row with these values of the key columns, as a dict; None: there
        is none.

        Raises TableSchemaError.
        """
        schema = yield from self._known_schema()
        data = schema.key(*key)
        value = (yield from self._get([data]))[0]
        if value is None:
            return None
        rows = typed()
        if rows.has_more_columns(schema, value):  # Another client has added some.
            schema = yield from self._current_schema()
        batch = arrow().batch_of_pair(data, value)
        names = schema.columns
        found: list[dict[str, Any]] = rows.dicts_of(rows.batch_of_pairs(schema, batch, names))
        return found[0]

    @operation
    def delete_row(self, *key: Any) -> Operation[None]:
        """Deletes the row with these values of the key columns, if it exists.

        Raises TableSchemaError.
        """
        schema = yield from self._known_schema()
        self._flush()
        request = requests.Delete(
            self._number, [schema.key(*key)], self._write_flags, Extension(PACKED)
        )
        yield from self._ask(request)

    @items
    def rows(
        self,
        *,
        columns: Sequence[str] | None = None,
        prefix: "Key | None" = None,
        start: "Key" = (),
        end: "Key" = (),
        reverse: bool = False,
        limit: int | None = None,
    ) -> Batches[dict[str, Any]]:
        """The rows as dicts, in the order of the key columns.

        columns   these alone
        prefix    values of the first key columns: only rows with these
        start     only rows from these values of the first key columns on
        end       only rows below these values

        As scan() it reads page by page. Raises TableSchemaError.
        """
        schema = yield from self._current_schema()
        names = schema.chosen(columns)
        bounds = schema.range(prefix, start, end)
        keys_only = set(names) <= set(schema.keys)
        asked = ScanQuery(bounds, reverse, limit, keys_only)
        convert = typed()

        def decode(answer: Answer, request: requests.Scan) -> Page:
            page: Page = arrow().batch_of(answer, request)
            found = [
                row
                for batch in page.content
                for row in convert.dicts_of(convert.batch_of_pairs(schema, batch, names))
            ]
            return page._replace(content=found)

        yield from self._pages(asked, decode)

    @items
    def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        prefix: "Data | Key | None" = None,
        start: "Data | Key" = b"",
        end: "Data | Key" = b"",
        raw: bool = False,
    ) -> Batches["pyarrow.RecordBatch"]:
        """The range as Arrow record batches: the columns of the table's schema,
        or without one the binary columns key and value. A table that was opened
        by its number has those two, too, unless columns or a list of values
        asks for others.

        columns   of a table with a schema: these alone. The server sends no
                  values if all are of the key
        raw       key and value in bytes, whether the table has a schema or not

        prefix, start and end are bytes, or of a table with a schema lists of
        values of the first key columns. Raises TableError when pyarrow is not
        installed, TableSchemaError.
        """
        arrow()
        is_typed = bool(self._name) or columns is not None or _has_values(prefix, start, end)
        schema = (yield from TypedTable.schema(self)) if is_typed and not raw else None
        decode: Decode = arrow().batch_of
        if schema is None:
            if columns is not None:
                raise self._untyped()
            yield from self._pages(ScanQuery(self._range(None, prefix, start, end)), decode)
            return
        names = schema.chosen(columns)
        asked = ScanQuery(
            self._range(schema, prefix, start, end), keys_only=set(names) <= set(schema.keys)
        )
        yield from self._pages(asked, self._typed_pages(schema, names))

    def _typed_pages(self, schema: "TableSchema", names: Sequence[str]) -> Decode:
        convert = typed()

        def decode(answer: Answer, request: requests.Scan) -> Page:
            page: Page = arrow().batch_of(answer, request)
            found = [convert.batch_of_pairs(schema, batch, names) for batch in page.content]
            return page._replace(content=found)

        return decode

    def _range(self, schema: "TableSchema | None", prefix: Any, start: Any, end: Any) -> Range:
        """A range by bytes, or by values of key columns. Raises ValueError, TableSchemaError."""
        if not _has_values(prefix, start, end):
            return checked_range(prefix, start, end)
        if schema is None:
            raise self._untyped()
        return schema.range(prefix, start or (), end or ())

    def _stored_schema(self) -> Operation["TableSchema | None"]:
        """The schema that the catalogue has; None: none, or the server or the key's grants know no
        schemas."""
        server = yield from self._served()
        if not server.features & FEATURE_SCHEMAS or not (yield from self._find()):
            return None
        try:
            keys = [schema_key(self._number)]
            data = (yield from catalogue_values(self, keys, self._read_flags))[0]
        except TableNotAllowed:
            return None
        if data is None:
            return None
        typed()
        from .schema import TableSchema

        return TableSchema.decode(data)

    def _known_schema(self) -> Operation["TableSchema"]:
        """The schema, as of the first call, declare() or schema(). Raises TableSchemaError."""
        found: TableSchema | None = self._schema
        if found is None:
            found = self._schema = yield from self._stored_schema()
        if found is None:
            raise self._untyped()
        return found

    def _current_schema(self) -> Operation["TableSchema"]:
        """The schema as it is now. Raises TableSchemaError."""
        self._schema = None
        return self._known_schema()

    def _untyped(self) -> TableSchemaError:
        which = self._name or self._number
        return TableSchemaError(f"table {which} has no schema: declare() gives it one")


def _has_values(*bounds: Any) -> bool:
    """Whether bounds of a range are values of key columns, not bytes."""
    return any(isinstance(bound, list | tuple) for bound in bounds)
