"""How a key of the topology is declared: type, unit, range, default. It knows no key.

A section is a dataclass whose fields are made by key(); the string below a field says what the key
means. Parsing, error messages, docs/reference/topology.md and the JSON Schema (reference.py) all
come from that declaration. Each problem is an OperatorError whose place is FILE:LINE:COL: key.path.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from collections.abc import Mapping as Map
from dataclasses import field, fields
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

from ...protocols.limits import IPC_PATH_BYTES_MAX, PORT_MAX, TABLE_MAX
from ..errors import OperatorError
from .yaml_values import Mapping, Mark, Node, Scalar, Sequence

TABLES_LISTED_MAX = 65_536
LIST_MAX = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
MULTICAST = re.compile(r"e?pgm://[^\s;]+;[0-9.]+:[0-9]{1,5}")
NAME_RULE = "1 to 32 letters, digits, dots, dashes or underscores"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
MS_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
S_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
WORD_SCHEMA = {"type": ["string", "number"]}
REQUIRED = object()
Problem = tuple[str, str, str]  # key.path, problem, way out
T = TypeVar("T")


class Unfit(Exception):
    """A word is no value of its key: problem, way out."""


class ValueType(ABC):
    """One type of value.

    values   the accepted values in a few words, for the reference
    schema   their JSON Schema
    """

    values: str
    schema: Map[str, Any]

    @abstractmethod
    def read(self, reader: "SchemaReader", node: Node, key: str) -> Any:
        """The value of a YAML node. Raises OperatorError; key is the path that it names."""

    def show(self, value: Any) -> str:
        """A default as an operator would write it."""
        if isinstance(value, tuple):
            return str(list(value))
        return str(value).lower() if isinstance(value, bool) else str(value)


class Alias(NamedTuple):
    """An old name of a key, read for one release.

    values   the old values and what they mean, if they changed too
    """

    name: str
    values: Map[str, Any] = {}


class Key(NamedTuple):
    """The declaration of one key."""

    type: ValueType
    default: Any  # REQUIRED: the key must be given.
    alias: Alias | None


def key(type_: ValueType, default: Any = REQUIRED, alias: str | Alias | None = None) -> Any:
    """A field of a section: the declaration of one key. alias is the key's old name."""
    old = Alias(alias) if isinstance(alias, str) else alias
    metadata = {"key": Key(type_, default, old)}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def keys_of(section: type) -> dict[str, Key]:
    """The keys of a section by name, in their order."""
    return {one.name: one.metadata["key"] for one in fields(section) if "key" in one.metadata}


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

    def section(self, node: Node, key: str, section: type[T]) -> T:
        """A section of known keys. A key that is not given has its default."""
        mapping = self.mapping(node, key, "settings")
        keys = keys_of(section)
        aliases = {one.alias.name: (name, one.alias) for name, one in keys.items() if one.alias}
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
            if alias is not None and alias.values:
                old_value = ChoiceType(*alias.values).read(self, value, path)
                found[name] = alias.values[old_value]
            else:
                found[name] = keys[name].type.read(self, value, path)
            if alias is not None:
                self._note_renamed(word, path, name, alias, found[name])
        for name, declared in keys.items():
            if declared.default is REQUIRED and name not in found:
                self.fail(mapping.mark, key or name, f"key '{name}' is missing", f"add `{name}:`")
        return section(**found)

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

    def parsed(self, parse: Callable[[Scalar], T], word: Scalar, key: str) -> T:
        """The value of a word."""
        try:
            return parse(word)
        except Unfit as error:
            self.fail(word.mark, key, *error.args)

    def sequence(self, node: Node, key: str, what: str, example: str) -> list[Node]:
        if not isinstance(node, Sequence):
            self.fail(node.mark, key, f"must be a list of {what}", f"write {example}")
        return node.items


class ScalarType(ValueType):
    """One word.

    what     the word in a few words: "a name"
    parse    makes its value; raises Unfit
    values   for the reference, if not `what`
    """

    def __init__(
        self, what: str, parse: Callable[[Scalar], Any], schema: Map[str, Any], values: str = ""
    ) -> None:
        self.what, self.parse = what, parse
        self.schema, self.values = schema, values or what

    def read(self, reader: SchemaReader, node: Node, key: str) -> Any:
        return reader.parsed(self.parse, reader.scalar(node, key, self.what), key)


class NumberType(ScalarType):
    """A whole number with an optional unit; the key's name ends with the unit of the value."""

    def __init__(self, what: str, units: Map[str, int], low: int, high: int) -> None:
        self._low, self._high, self._units = low, high, units
        number = {"type": "integer", "minimum": low, "maximum": high}
        pattern = f"^[0-9][0-9_]*\\s*({'|'.join(units)})?$" if units else "^[0-9_]+$"
        schema = {"anyOf": [number, {"type": "string", "pattern": pattern}]}
        super().__init__(what, self._parse, schema, f"{self.show(low)} to {self.show(high)}")

    def _parse(self, word: Scalar) -> int:
        way_out = f"write {self.what} from {self._low} to {self._high}"
        if self._units:
            way_out += f" ({next(iter(self._units))}; or with a unit: {', '.join(self._units)})"
        match = re.fullmatch(r"([0-9][0-9_]{0,20})\s*([A-Za-z]*)", word.text)
        if match is None:
            raise Unfit(f"'{word.text}' is not {self.what}", way_out)
        number, unit = match.groups()
        if unit and unit not in self._units:
            known = did_you_mean(unit, self._units)
            without = "write the number without a unit"
            raise Unfit(f"unknown unit '{unit}'", known if self._units else without)
        value = int(number) * self._units.get(unit, 1)
        if not self._low <= value <= self._high:
            raise Unfit(f"{word.text} is out of range", way_out)
        return value

    def show(self, value: Any) -> str:
        for unit, factor in sorted(self._units.items(), key=lambda item: -item[1]):
            if value and value % factor == 0:
                return f"{value // factor} {unit}"
        return f"{value:_}" if value > 9999 else str(value)


# Arguments: the smallest and the largest value.
count = partial(NumberType, "a whole number", {})
duration_ms = partial(NumberType, "a time", MS_UNITS)
duration_s = partial(NumberType, "a time", S_UNITS)
size = partial(NumberType, "a size", SIZE_UNITS)


class DurationRangeType(ValueType):
    """The smallest and the largest of a time that is chosen at random, in milliseconds."""

    def __init__(self, low: int, high: int, example: tuple[int, int]) -> None:
        self._limits, self._example = duration_ms(low, high), example
        self.values = f"two times, {self._limits.values}"
        items = self._limits.schema
        self.schema = {"type": "array", "items": items, "minItems": 2, "maxItems": 2}

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[int, int]:
        if not isinstance(node, Sequence) or len(node.items) != 2:
            reader.fail(node.mark, key, "must be two times", f"write {self.show(self._example)}")
        first, second = (self._limits.read(reader, item, key) for item in node.items)
        if first >= second:
            problem = f"{first} is not below {second}"
            reader.fail(node.mark, key, problem, "write [smallest, largest]")
        return first, second


class ChoiceType(ValueType):
    """One of a few words."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.values = ", ".join(f"`{name}`" for name in names)
        # With the values that a YAML 1.1 parser makes of an unquoted `off`, `on` or `1.3`.
        parsed: list[Any] = [
            value for word, value in (("off", False), ("on", True)) if word in names
        ]
        parsed += [float(name) for name in names if re.fullmatch(r"[0-9]+\.[0-9]+", name)]
        self.schema = {"enum": [*names, *parsed]}

    def read(self, reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, f"one of {', '.join(self._names)}")
        if scalar.text not in self._names:
            problem = f"unknown {key.rpartition('.')[2]} '{scalar.text}'"
            reader.fail(scalar.mark, key, problem, did_you_mean(scalar.text, self._names))
        return scalar.text


def _parse_boolean(word: Scalar) -> bool:
    if word.text not in ("true", "false") or not word.plain:
        raise Unfit(f"'{word.text}' is not true or false", "write true or false")
    return word.text == "true"


def parse_name(word: Scalar) -> str:
    """A name of at most 32 characters."""
    if not NAME.fullmatch(word.text):
        raise Unfit(f"{word.text!r} is not a name", f"use {NAME_RULE}")
    return word.text


def _parse_url(word: Scalar) -> str:
    problem = url_problem(word.text)
    if problem:
        raise Unfit(*problem)
    return word.text


def _parse_address(word: Scalar) -> str:
    if "://" in word.text or ":" not in word.text:
        raise Unfit(f"'{word.text}' is not HOST:PORT", "write 127.0.0.1:9100")
    problem = url_problem(f"tcp://{word.text}")
    if problem:
        raise Unfit(*problem)
    return word.text


def _parse_multicast_url(word: Scalar) -> str:
    return word.text if MULTICAST.fullmatch(word.text) else _parse_url(word)


BOOLEAN = ScalarType("true or false", _parse_boolean, {"type": "boolean"}, "`true`, `false`")
NAME_TYPE = ScalarType(
    "a name", parse_name, {**WORD_SCHEMA, "pattern": f"^{NAME.pattern}$"}, NAME_RULE
)
# The address of a socket that this node binds and others connect to.
URL = ScalarType(
    "a url",
    _parse_url,
    {"type": "string", "pattern": "^(tcp|ipc)://"},
    "`tcp://HOST:PORT`, `ipc:///PATH`",
)
# The address of a server that others reach by HTTP.
ADDRESS = ScalarType(
    "an address",
    _parse_address,
    {"type": "string", "pattern": "^[^/]+:[0-9]+$"},
    "`HOST:PORT`",
)
MULTICAST_URL = ScalarType(
    "a url",
    _parse_multicast_url,
    {"type": "string", "pattern": "^(tcp|ipc|pgm|epgm)://"},
    f"{URL.values}, `epgm://INTERFACE;GROUP:PORT`",
)


def text(what: str) -> ScalarType:
    """Printable text that another component interprets."""

    def parse(word: Scalar) -> str:
        if not word.text.isprintable():
            raise Unfit("has unprintable characters", f"write {what}")
        return word.text

    return ScalarType(what, parse, WORD_SCHEMA)


class ListType(ValueType):
    """A list of words.

    what   many of them: "table numbers"
    """

    def __init__(
        self, item: ScalarType, what: str, example: str = "[first, second]", values: str = ""
    ) -> None:
        self._item, self._what, self._example = item, what, example
        self.values = values or f"a list of {what}"
        self.schema = {"type": "array", "items": item.schema, "maxItems": LIST_MAX}

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[Any, ...]:
        items = reader.sequence(node, key, self._what, self._example)
        if len(items) > LIST_MAX:
            reader.fail(node.mark, key, f"more than {LIST_MAX}", "list fewer")
        return tuple(self._item.read(reader, item, key) for item in items)


def texts(what: str, problem: Callable[[str], str] = lambda text: "") -> ListType:
    """A list of words. problem() says what is wrong with a word, or returns ''."""

    def parse(word: Scalar) -> str:
        if wrong := problem(word.text):
            raise Unfit(f"'{word.text}' {wrong}", f"write {what}")
        return word.text

    return ListType(ScalarType(f"one of {what}", parse, WORD_SCHEMA), what)


def _parse_tables(word: Scalar) -> range:
    match = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", word.text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last <= TABLE_MAX:
        problem = f"'{word.text}' is neither a table number nor a range of them"
        raise Unfit(problem, "write [7, 100-199]")
    return range(first, last + 1)


class TableNumbersType(ValueType):
    """A list of table numbers and ranges of them, `[7, 100-199]`."""

    values = f"numbers and ranges, `[7, 100-199]`, at most {TABLES_LISTED_MAX} tables"
    _number = {"type": "integer", "minimum": 0, "maximum": TABLE_MAX}
    _range = {"type": "string", "pattern": "^[0-9]{1,10}(-[0-9]{1,10})?$"}
    schema = {"type": "array", "items": {"anyOf": [_number, _range]}}

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[int, ...]:
        tables: set[int] = set()
        for item in reader.sequence(node, key, "table numbers", "[7, 100-199]"):
            word = reader.scalar(item, key, "a table number, or a range of them")
            listed = reader.parsed(_parse_tables, word, key)
            if len(tables) + len(listed) > TABLES_LISTED_MAX:
                reader.fail(word.mark, key, f"more than {TABLES_LISTED_MAX} tables", "list fewer")
            tables.update(listed)
        return tuple(sorted(tables))


class SectionType(ValueType):
    """The keys of another section."""

    values = "a mapping of settings"

    def __init__(self, section: type) -> None:
        self.section = section

    def read(self, reader: SchemaReader, node: Node, key: str) -> Any:
        return reader.section(node, key, self.section)


class NamedSectionsType(ValueType):
    """Sections of one type by name.

    what    many of them: "farms"
    parse   a name; raises Unfit
    """

    def __init__(
        self,
        section: type,
        what: str,
        sections_max: int,
        way_out: str = "list fewer",
        parse: Callable[[Scalar], str] = parse_name,
    ) -> None:
        self.section, self.sections_max = section, sections_max
        self._what, self._way_out, self._parse = what, way_out, parse
        self.values = f"a mapping of at most {sections_max} {what}"

    def read(self, reader: SchemaReader, node: Node, key: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word, value in reader.mapping(node, key, self._what).entries:
            if len(found) >= self.sections_max:
                problem = f"more than {self.sections_max} {self._what}"
                reader.fail(word.mark, key, problem, self._way_out)
            path = f"{key}.{reader.parsed(self._parse, word, key)}"
            reader.places[path] = reader.place(word.mark)
            found[word.text] = reader.section(value, path, self.section)
        return found


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
