"""The types of columns as text, `decimal(12, 2)`, and as Arrow's types."""

import re
from collections.abc import Callable, Mapping

import pyarrow as pa

PLAIN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "utf8": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
}
OTHER_NAMES: Mapping[str, str] = {
    "boolean": "bool",
    "float": "float32",
    "double": "float64",
    "string": "utf8",
    "text": "utf8",
    "date": "date32",
}
UNITS = ("s", "ms", "us")
PRECISION_MAX = 38
DEPTH_MAX = 16  # Of types within types.
_NAMES: Mapping[pa.DataType, str] = {type_: name for name, type_ in PLAIN.items()}
_WORD = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|[0-9]{1,4}|[<>(),:]|\S)")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Zones such as Europe/Berlin and +01:00 are read as they are written.
_ZONE = re.compile(r"\s*,\s*([A-Za-z0-9_+:/-]{1,64})\s*\)")


def fields_of(text: str) -> list[pa.Field]:
    """Columns as in `day date32, id int64 not null`. Raises ValueError."""
    reader = _Reader(text)
    found = reader.fields("")
    reader.end()
    return found


def fields_text(fields: "list[pa.Field] | pa.Schema") -> str:
    """The columns in the form that fields_of() reads. Raises ValueError for another type."""
    return ", ".join(map(_field_text, fields))


def type_text(type_: pa.DataType) -> str:
    """Raises ValueError for a type that tables do not have."""
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_decimal128(type_) and 0 <= type_.scale <= type_.precision:
        return f"decimal({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_) and type_.unit in UNITS:
        return f"timestamp({type_.unit}, {type_.tz})" if type_.tz else f"timestamp({type_.unit})"
    if pa.types.is_map(type_):
        return f"map<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"list<{type_text(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{fields_text(list(type_))}>"
    raise ValueError(f"{type_} is no type of a column; there are {known_types()}")


def known_types() -> str:
    return f"{', '.join(PLAIN)}, decimal(P, S), timestamp(UNIT), list<T>, struct<..>, map<K, V>"


def plain_type(type_: pa.DataType) -> pa.DataType:
    """The type in which a table keeps columns of this one: text and bytes have one form."""
    if pa.types.is_large_string(type_) or type_ == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(type_) or type_ == pa.binary_view():
        return pa.binary()
    if pa.types.is_dictionary(type_):
        return plain_type(type_.value_type)
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return pa.list_(plain_type(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(plain_type(type_.key_type), plain_type(type_.item_type))
    return type_


def is_nested(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_))


def _field_text(field: pa.Field) -> str:
    name = field.name
    if not _PLAIN_NAME.fullmatch(name):
        name = f"`{name.replace('`', '``')}`"
    return f"{name} {type_text(field.type)}{'' if field.nullable else ' not null'}"


class _Reader:
    """Reads columns and types from text. Its methods raise ValueError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def fields(self, closing: str) -> list[pa.Field]:
        found = [self._field()]
        while self._peek() == ",":
            self._take(",")
            found.append(self._field())
        if closing:
            self._take(closing)
        return found

    def end(self) -> None:
        if self._peek():
            raise self._wrong("a comma")

    def _field(self) -> pa.Field:
        name = self._next()
        if name.startswith("`") and len(name) > 1:
            name = name[1:-1].replace("``", "`")
        elif not _PLAIN_NAME.fullmatch(name):
            self._at -= len(name)
            raise self._wrong("the name of a column")
        if self._peek() == ":":  # As Spark and DuckDB write it.
            self._take(":")
        type_ = self._type()
        nullable = True
        if self._peek().lower() == "not":
            self._take("not")
            self._take("null")
            nullable = False
        return pa.field(name, type_, nullable)

    def _type(self) -> pa.DataType:
        word = self._next().lower()
        name = OTHER_NAMES.get(word, word)
        if name in PLAIN:
            return PLAIN[name]
        others: Mapping[str, Callable[[], pa.DataType]] = {
            "decimal": self._decimal,
            "timestamp": self._timestamp,
            "list": self._list,
            "struct": self._struct,
            "map": self._map,
        }
        if name not in others:
            self._at -= len(word)
            raise self._wrong(f"a type ({known_types()})")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"types within types are at most {DEPTH_MAX} deep")
        made = others[name]()
        self._depth -= 1
        return made

    def _decimal(self) -> pa.DataType:
        self._take("(")
        precision, scale = self._next(), "0"
        if self._peek() == ",":
            self._take(",")
            scale = self._next()
        self._take(")")
        numbers = precision.isdigit() and scale.isdigit()
        if not numbers or not 1 <= int(precision) <= PRECISION_MAX or int(scale) > int(precision):
            raise ValueError(
                f"decimal({precision}, {scale}): there are 1 to {PRECISION_MAX} digits, and at "
                "most so many behind the point"
            )
        return pa.decimal128(int(precision), int(scale))

    def _timestamp(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.timestamp("us")
        self._take("(")
        unit = self._next()
        if unit not in UNITS:
            raise ValueError(f"timestamp({unit}): the unit is one of {', '.join(UNITS)}")
        zone = _ZONE.match(self._text, self._at)
        if zone:
            self._at = zone.end()
            return pa.timestamp(unit, zone[1])
        self._take(")")
        return pa.timestamp(unit)

    def _list(self) -> pa.DataType:
        self._take("<")
        inner = self._type()
        self._take(">")
        return pa.list_(inner)

    def _struct(self) -> pa.DataType:
        self._take("<")
        return pa.struct(self.fields(">"))

    def _map(self) -> pa.DataType:
        self._take("<")
        key = self._type()
        if is_nested(key):
            raise ValueError(f"the keys of a map are plain, not {type_text(key)}")
        self._take(",")
        item = self._type()
        self._take(">")
        return pa.map_(key, item)

    def _peek(self) -> str:
        found = _WORD.match(self._text, self._at)
        return found[1] if found else ""

    def _next(self) -> str:
        found = _WORD.match(self._text, self._at)
        if not found:
            raise self._wrong("more")
        self._at = found.end()
        return found[1]

    def _take(self, word: str) -> None:
        if self._peek().lower() != word:
            raise self._wrong(f"`{word}`")
        self._next()

    def _wrong(self, wanted: str) -> ValueError:
        before, behind = self._text[: self._at][-40:], self._text[self._at :][:40]
        return ValueError(f"columns: {wanted} is missing behind {before!r}, before {behind!r}")
