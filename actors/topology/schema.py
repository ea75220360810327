"""How a key of the topology is declared: type, unit, range, default, description. It knows no key.

A section is a dataclass whose fields are made by key(). Parsing, error messages, the reference in
docs/topology.md and the JSON Schema (reference.py) all come from that declaration. Each problem is
an OperatorError whose place is FILE:LINE:COL: key.path.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Map
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, NoReturn, TypeVar

from ...protocols.zmqraft.wire.values import IPC_PATH_BYTES_MAX, PORT_MAX
from ..errors import OperatorError
from .yaml_values import Mapping, Mark, Node, Scalar, Sequence

TABLE_MAX = (1 << 32) - 1
TABLES_LISTED_MAX = 65_536
LIST_MAX = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
MULTICAST = re.compile(r"e?pgm://[^\s;]+;[0-9.]+:[0-9]{1,5}")
NAME_RULE = "1 to 32 letters, digits, dots, dashes or underscores"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
MS_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
S_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
REQUIRED = object()
S = TypeVar("S")


class ValueType(ABC):
    """One type of value: how it is parsed, and how reference and JSON Schema describe it."""

    @abstractmethod
    def read(self, reader: "SchemaReader", node: Node, key: str) -> Any:
        """The value of a YAML node. Raises OperatorError; key is the path that it names."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the values that read() accepts."""

    @abstractmethod
    def describe(self) -> str:
        """The accepted values in a few words, for the reference."""

    def show(self, value: Any) -> str:
        """A default as an operator would write it; empty: `none`."""
        return str(value)

    def encode(self, value: Any) -> Any:
        """A default as a JSON value."""
        return value


class Alias(NamedTuple):
    """An old name of a key, read for one release.

    values   the old values and what they mean, if they changed too
    """

    name: str
    values: Map[str, Any] = {}


class Key(NamedTuple):
    """The declaration of one key."""

    type: ValueType
    description: str
    is_required: bool
    aliases: tuple[Alias, ...] = ()


def key(
    type_: ValueType, description: str, default: Any = REQUIRED, alias: str | Alias = ""
) -> Any:
    """A field of a section: the declaration of one key.

    default   REQUIRED: the key must be given
    alias     the key's old name
    """
    aliases = (Alias(alias) if isinstance(alias, str) else alias,) if alias else ()
    metadata = {"key": Key(type_, description, default is REQUIRED, aliases)}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_section(section: "SectionType", description: str) -> Any:
    """A field whose section always exists: without the key, all of its defaults hold."""
    metadata = {"key": Key(section, description, False)}
    return field(default_factory=section.section, metadata=metadata)


def keys_of(section: type) -> dict[str, Key]:
    """The keys of a section by name, in their order."""
    return {one.name: one.metadata["key"] for one in fields(section) if "key" in one.metadata}


def default_of(section: type, name: str) -> Any:
    """The value that holds if the key is not given; REQUIRED: it must be given."""
    one = next(one for one in fields(section) if one.name == name)
    if one.default_factory is not MISSING:
        return one.default_factory()
    return REQUIRED if one.default is MISSING else one.default


class SchemaReader:
    """One pass over the file: checks each value against its declaration and notes its position."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.places: dict[str, str] = {}  # key.path -> FILE:LINE:COL
        self.renamed: list[str] = []  # One line for each key that is given by its old name.

    def place(self, mark: Mark) -> str:
        return f"{self.path}:{mark.line}:{mark.column}"

    def fail(self, mark: Mark, key: str, problem: str, way_out: str) -> NoReturn:
        place = self.place(mark)
        raise OperatorError(f"{place}: {key}" if key else place, problem, way_out)

    def mapping(self, node: Node, key: str, what: str) -> Mapping:
        if not isinstance(node, Mapping):
            self.fail(node.mark, key, f"must be a mapping of {what}", "write `key: value` below it")
        return node

    def section(self, node: Node, key: str, section: type[S]) -> S:
        """A section of known keys. A key that is not given has its default."""
        mapping = self.mapping(node, key, "settings")
        keys = keys_of(section)
        aliases = {alias.name: (name, alias) for name in keys for alias in keys[name].aliases}
        found: dict[str, Any] = {}
        written: dict[str, str] = {}
        for word, value in mapping.entries:
            path = f"{key}.{word.text}" if key else word.text
            name, alias = aliases.get(word.text, (word.text, None))
            if name not in keys:
                self.fail(
                    word.mark, path, f"unknown key '{word.text}'", did_you_mean(word.text, keys)
                )
            if name in written:
                problem = f"'{written[name]}' and '{word.text}' are the same key"
                old = word.text if alias else written[name]
                self.fail(word.mark, path, problem, f"remove `{old}:`, the old name")
            written[name] = word.text
            self.places[f"{key}.{name}" if key else name] = self.place(value.mark)
            if alias is None:
                found[name] = keys[name].type.read(self, value, path)
            else:
                found[name] = self._old_value(value, path, keys[name].type, alias)
                self._note_renamed(word, path, name, alias, found[name])
        for name, declared in keys.items():
            if declared.is_required and name not in found:
                self.fail(mapping.mark, key or name, f"key '{name}' is missing", f"add `{name}:`")
        return section(**found)

    def _old_value(self, node: Node, key: str, type_: ValueType, alias: Alias) -> Any:
        if not alias.values:
            return type_.read(self, node, key)
        return alias.values[ChoiceType(*alias.values).read(self, node, key)]

    def _note_renamed(self, word: Scalar, path: str, name: str, alias: Alias, value: Any) -> None:
        new = f"{name}: {str(value).lower()}" if alias.values else f"{name}:"
        self.renamed.append(
            f"{self.place(word.mark)}: {path}: the key '{alias.name}' is renamed to '{name}'; "
            f"write `{new}`, the next release refuses the old name"
        )

    def scalar(self, node: Node, key: str, what: str) -> Scalar:
        if not isinstance(node, Scalar):
            self.fail(node.mark, key, f"must be {what}", "write one value")
        if node.plain and node.text in ("", "~", "null"):
            self.fail(node.mark, key, "has no value", f"write {what}, or remove the key")
        return node

    def sequence(self, node: Node, key: str, what: str, example: str) -> list[Node]:
        if not isinstance(node, Sequence):
            self.fail(node.mark, key, f"must be a list of {what}", f"write {example}")
        return node.items

    def printable(self, node: Node, key: str, what: str) -> str:
        scalar = self.scalar(node, key, what)
        if not scalar.text.isprintable():
            self.fail(scalar.mark, key, "has unprintable characters", f"write {what}")
        return scalar.text


@dataclass(frozen=True, slots=True)
class NumberType(ValueType):
    """A whole number with an optional unit; the key's name ends with the unit of the value."""

    low: int
    high: int
    units: Map[str, int]
    what: str

    def read(self, reader: SchemaReader, node: Node, key: str) -> int:
        scalar = reader.scalar(node, key, self.what)
        match = re.fullmatch(r"([0-9][0-9_]{0,20})\s*([A-Za-z]*)", scalar.text)
        if match is None:
            reader.fail(scalar.mark, key, f"'{scalar.text}' is not {self.what}", self.way_out())
        unit = match[2]
        if unit and unit not in self.units:
            way_out = "write the number without a unit"
            if self.units:
                way_out = did_you_mean(unit, self.units)
            reader.fail(scalar.mark, key, f"unknown unit '{unit}'", way_out)
        value = int(match[1]) * self.units.get(unit, 1)
        if not self.low <= value <= self.high:
            reader.fail(scalar.mark, key, f"{scalar.text} is out of range", self.way_out())
        return value

    def way_out(self) -> str:
        base = next((name for name, factor in self.units.items() if factor == 1), "")
        text = f"write {self.what} from {self.low} to {self.high}"
        return f"{text} ({base}; or with a unit: {', '.join(self.units)})" if base else text

    def json_schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": self.low, "maximum": self.high}
        pattern = f"^[0-9][0-9_]*\\s*({'|'.join(self.units)})?$" if self.units else "^[0-9_]+$"
        return {"anyOf": [number, {"type": "string", "pattern": pattern}]}

    def describe(self) -> str:
        return f"{self.show(self.low)} to {self.show(self.high)}"

    def show(self, value: Any) -> str:
        for unit, factor in sorted(self.units.items(), key=lambda item: -item[1]):
            if value and value % factor == 0:
                return f"{value // factor} {unit}"
        return f"{value:_}" if value > 9999 else str(value)


def count(low: int, high: int) -> NumberType:
    return NumberType(low, high, {}, "a whole number")


def duration_ms(low: int, high: int) -> NumberType:
    return NumberType(low, high, MS_UNITS, "a time")


def duration_s(low: int, high: int) -> NumberType:
    return NumberType(low, high, S_UNITS, "a time")


def size(low: int, high: int) -> NumberType:
    return NumberType(low, high, SIZE_UNITS, "a size")


@dataclass(frozen=True, slots=True)
class DurationRangeType(ValueType):
    """The smallest and the largest of a time that is chosen at random, in milliseconds."""

    limits: NumberType
    example: tuple[int, int]

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[int, int]:
        if not isinstance(node, Sequence) or len(node.items) != 2:
            first, second = self.example
            reader.fail(node.mark, key, "must be two times", f"write [{first}, {second}]")
        first, second = (self.limits.read(reader, item, key) for item in node.items)
        if first >= second:
            reader.fail(
                node.mark, key, f"{first} is not below {second}", "write [smallest, largest]"
            )
        return first, second

    def json_schema(self) -> dict[str, Any]:
        limits = self.limits.json_schema()
        return {"type": "array", "items": limits, "minItems": 2, "maxItems": 2}

    def describe(self) -> str:
        return f"two times, {self.limits.describe()}"

    def show(self, value: Any) -> str:
        return f"[{value[0]}, {value[1]}]"

    def encode(self, value: Any) -> Any:
        return list(value)


def duration_range_ms(low: int, high: int, example: tuple[int, int]) -> DurationRangeType:
    return DurationRangeType(duration_ms(low, high), example)


class ChoiceType(ValueType):
    """One of a few words."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read(self, reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, f"one of {', '.join(self.names)}")
        if scalar.text not in self.names:
            problem = f"unknown {key.rpartition('.')[2]} '{scalar.text}'"
            reader.fail(scalar.mark, key, problem, did_you_mean(scalar.text, self.names))
        return scalar.text

    def json_schema(self) -> dict[str, Any]:
        """With the values that a YAML 1.1 parser makes of an unquoted `off`, `on` or `1.3`."""
        values: list[Any] = list(self.names)
        values += [value for word, value in (("off", False), ("on", True)) if word in self.names]
        values += [float(name) for name in self.names if re.fullmatch(r"[0-9]+\.[0-9]+", name)]
        return {"enum": values}

    def describe(self) -> str:
        return ", ".join(f"`{name}`" for name in self.names)


class BooleanType(ValueType):
    """`true` or `false`."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> bool:
        scalar = reader.scalar(node, key, "true or false")
        if scalar.text not in ("true", "false") or not scalar.plain:
            reader.fail(
                scalar.mark, key, f"'{scalar.text}' is not true or false", "write true or false"
            )
        return scalar.text == "true"

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def describe(self) -> str:
        return "`true`, `false`"

    def show(self, value: Any) -> str:
        return str(value).lower()


class NameType(ValueType):
    """A name of at most 32 characters."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "a name")
        check_name(reader, scalar, key)
        return scalar.text

    def json_schema(self) -> dict[str, Any]:
        return {"type": ["string", "number"], "pattern": f"^{NAME.pattern}$"}

    def describe(self) -> str:
        return NAME_RULE


class TextType(ValueType):
    """Printable text that another component interprets."""

    def __init__(self, what: str) -> None:
        self.what = what

    def read(self, reader: SchemaReader, node: Node, key: str) -> str:
        return reader.printable(node, key, self.what)

    def json_schema(self) -> dict[str, Any]:
        return {"type": ["string", "number"]}

    def describe(self) -> str:
        return self.what


class UrlType(ValueType):
    """The address of a socket that this node binds and others connect to.

    multicast   a group of PGM is an address too
    """

    def __init__(self, multicast: bool = False) -> None:
        self.multicast = multicast

    def read(self, reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "a url")
        if self.multicast and MULTICAST.fullmatch(scalar.text):
            return scalar.text
        problem = url_problem(scalar.text)
        if problem:
            reader.fail(scalar.mark, key, *problem)
        return scalar.text

    def json_schema(self) -> dict[str, Any]:
        schemes = "tcp|ipc|pgm|epgm" if self.multicast else "tcp|ipc"
        return {"type": "string", "pattern": f"^({schemes})://"}

    def describe(self) -> str:
        pgm = ", `epgm://INTERFACE;GROUP:PORT`" if self.multicast else ""
        return f"`tcp://HOST:PORT`, `ipc:///PATH`{pgm}"


class TableNumbersType(ValueType):
    """A list of table numbers and ranges of them, `[7, 100-199]`."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[int, ...]:
        tables: set[int] = set()
        for item in reader.sequence(node, key, "table numbers", "[7, 100-199]"):
            scalar = reader.scalar(item, key, "a table number, or a range of them")
            match = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", scalar.text)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last <= TABLE_MAX:
                problem = f"'{scalar.text}' is neither a table number nor a range of them"
                reader.fail(scalar.mark, key, problem, "write [7, 100-199]")
            if len(tables) + last - first >= TABLES_LISTED_MAX:
                problem = f"more than {TABLES_LISTED_MAX} tables"
                reader.fail(scalar.mark, key, problem, "list fewer")
            tables.update(range(first, last + 1))
        return tuple(sorted(tables))

    def json_schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 0, "maximum": TABLE_MAX}
        span = {"type": "string", "pattern": "^[0-9]{1,10}(-[0-9]{1,10})?$"}
        return {"type": "array", "items": {"anyOf": [number, span]}}

    def describe(self) -> str:
        return f"numbers and ranges, `[7, 100-199]`, at most {TABLES_LISTED_MAX} tables"

    def show(self, value: Any) -> str:
        return str(list(value))

    def encode(self, value: Any) -> Any:
        return list(value)


@dataclass(frozen=True, slots=True)
class TextListType(ValueType):
    """A list of words. problem() says what is wrong with a word, or returns ''."""

    what: str
    problem: Callable[[str], str] = lambda text: ""

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[str, ...]:
        items = reader.sequence(node, key, self.what, "[first, second]")
        if len(items) > LIST_MAX:
            reader.fail(node.mark, key, f"more than {LIST_MAX}", "list fewer")
        found = []
        for item in items:
            scalar = reader.scalar(item, key, f"one of {self.what}")
            if wrong := self.problem(scalar.text):
                reader.fail(scalar.mark, key, f"'{scalar.text}' {wrong}", f"write {self.what}")
            found.append(scalar.text)
        return tuple(found)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": ["string", "number"]}, "maxItems": LIST_MAX}

    def describe(self) -> str:
        return f"a list of {self.what}"

    def show(self, value: Any) -> str:
        return str(list(value))

    def encode(self, value: Any) -> Any:
        return list(value)


@dataclass(frozen=True, slots=True)
class SectionType(ValueType):
    """The keys of another section."""

    section: type

    def read(self, reader: SchemaReader, node: Node, key: str) -> Any:
        return reader.section(node, key, self.section)

    def json_schema(self) -> dict[str, Any]:
        return section_schema(self.section)

    def describe(self) -> str:
        return "a mapping of settings"

    def show(self, value: Any) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class NamedSectionsType(ValueType):
    """Sections of one type by name.

    what          a name's kind, and of many: ("farm", "farms")
    check_name    raises OperatorError for a name that is not allowed
    """

    section: type
    what: str
    sections_max: int
    way_out: str
    check_name: Callable[[SchemaReader, Scalar, str], None]

    def read(self, reader: SchemaReader, node: Node, key: str) -> dict[str, Any]:
        mapping = reader.mapping(node, key, self.what)
        found: dict[str, Any] = {}
        for word, value in mapping.entries:
            if len(found) >= self.sections_max:
                problem = f"more than {self.sections_max} {self.what}"
                reader.fail(word.mark, key, problem, self.way_out)
            self.check_name(reader, word, key)
            path = f"{key}.{word.text}"
            reader.places[path] = reader.place(word.mark)
            found[word.text] = reader.section(value, path, self.section)
        return found

    def json_schema(self) -> dict[str, Any]:
        inner = section_schema(self.section)
        return {
            "type": "object", "additionalProperties": inner, "maxProperties": self.sections_max,
        }  # fmt: skip

    def describe(self) -> str:
        return f"a mapping of at most {self.sections_max} {self.what}"

    def show(self, value: Any) -> str:
        return ""


def section_schema(section: type) -> dict[str, Any]:
    """The JSON Schema of a section; old names of keys are in it as deprecated."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    renamed: list[list[str]] = []  # Required keys that have an old name.
    for name, declared in keys_of(section).items():
        described = {"description": declared.description.replace("`", "")}
        schema = {**described, **declared.type.json_schema()}
        default = default_of(section, name)
        if default is REQUIRED and declared.aliases:
            renamed.append([name, *(alias.name for alias in declared.aliases)])
        elif default is REQUIRED:
            required.append(name)
        elif not isinstance(declared.type, SectionType) and default not in ("", None, {}):
            schema["default"] = declared.type.encode(default)
        properties[name] = schema
        for alias in declared.aliases:
            values = {"enum": list(alias.values)} if alias.values else declared.type.json_schema()
            note = {"description": f"renamed to {name}", "deprecated": True}
            properties[alias.name] = {**note, **values}
    found: dict[str, Any] = {
        "type": "object", "additionalProperties": False, "properties": properties,
    }  # fmt: skip
    if required:
        found["required"] = required
    if renamed:
        found["allOf"] = [{"anyOf": [{"required": [name]} for name in names]} for names in renamed]
    return found


def check_name(reader: SchemaReader, scalar: Scalar, key: str) -> None:
    if not NAME.fullmatch(scalar.text):
        reader.fail(scalar.mark, key, f"{scalar.text!r} is not a name", f"use {NAME_RULE}")


def url_problem(text: str) -> tuple[str, str] | None:
    """What is wrong with an address that we bind and others connect to: (problem, way out)."""
    if text.startswith("ipc://"):
        return _ipc_problem(text.removeprefix("ipc://"))
    match = re.fullmatch(r"tcp://(\[[0-9A-Fa-f:.%a-z]+\]|[^\s/:\[\]]+):([0-9]+)", text)
    if match is None:
        scheme = text.partition("://")[0] if "://" in text else ""
        if scheme and scheme not in ("tcp", "ipc"):
            return f"unknown scheme '{scheme}'", "write tcp://HOST:PORT or ipc:///PATH"
        return f"'{text}' is not a url", "write tcp://HOST:PORT or ipc:///PATH"
    if match[1] == "*":
        return "other nodes cannot connect to *", "write this node's own address"
    if len(match[2]) > 5 or not 1 <= int(match[2]) <= PORT_MAX:
        return f"port {match[2]} is out of range", f"write a port from 1 to {PORT_MAX}"
    return None


def _ipc_problem(text: str) -> tuple[str, str] | None:
    if not text.startswith("/") or not text.isprintable():
        return f"ipc path '{text}' is not absolute", "write ipc:///PATH"
    length = len(os.fsencode(text))
    if length > IPC_PATH_BYTES_MAX:
        return (
            f"ipc path has {length} bytes, a socket's address holds {IPC_PATH_BYTES_MAX}",
            "use a shorter directory",
        )
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The way out of a misspelled word."""
    from difflib import get_close_matches  # Costs 5 ms that a right file need not pay.

    names = list(known)
    close = get_close_matches(word, names, n=1, cutoff=0.6) or [
        name for name in names if name.lower() == word.lower()
    ]
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
