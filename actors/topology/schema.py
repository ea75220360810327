"""How a value of the topology is read: types, units, ranges, names. It knows no key by name.

Every problem is an OperatorError whose place is FILE:LINE:COL: key.path.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from ..errors import OperatorError
from ..runtime import pipes
from . import yaml_tree
from .yaml_tree import Mapping, Mark, Node, Scalar

TABLE_MAX = (1 << 32) - 1
TABLES_LISTED_MAX = 65_536
LIST_MAX = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
MULTICAST = re.compile(r"e?pgm://[^\s;]+;[0-9.]+:[0-9]{1,5}")
NAME_RULE = "1 to 32 letters, digits, dots, dashes or underscores"
PORT_MAX = 65535
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZE_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
MS_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}
S_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
REQUIRED = object()


class SchemaReader:
    """One pass over the file: checks values against the tables below and notes where they are."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.places: dict[str, str] = {}

    def fail(self, mark: Mark, key: str, problem: str, way_out: str) -> NoReturn:
        place = f"{self.path}:{mark.line}:{mark.column}"
        raise OperatorError(f"{place}: {key}" if key else place, problem, way_out)

    def mapping(self, node: Node, key: str, what: str) -> Mapping:
        if not isinstance(node, Mapping):
            self.fail(node.mark, key, f"must be a mapping of {what}", "write `key: value` below it")
        return node

    def section(self, node: Node, key: str, keys: "dict[str, Key]") -> dict[str, Any]:
        """A mapping with known keys; those that are not there get their default."""
        found: dict[str, Any] = {}
        mapping = self.mapping(node, key, "settings")
        for word, value in mapping.entries:
            path = f"{key}.{word.text}" if key else word.text
            if word.text not in keys:
                self.fail(
                    word.mark, path, f"unknown key '{word.text}'", did_you_mean(word.text, keys)
                )
            self.places[path] = f"{self.path}:{value.mark.line}:{value.mark.column}"
            found[word.text] = keys[word.text].read(self, value, path)
        for name, description in keys.items():
            if name in found:
                continue
            if description.default is REQUIRED:
                self.fail(mapping.mark, key or name, f"key '{name}' is missing", f"add `{name}:`")
            found[name] = description.default
        return found

    def scalar(self, node: Node, key: str, what: str) -> Scalar:
        if not isinstance(node, Scalar):
            self.fail(node.mark, key, f"must be {what}", "write one value")
        if node.plain and node.text in ("", "~", "null"):
            self.fail(node.mark, key, "has no value", f"write {what}, or remove the key")
        return node

    def number(self, node: Node, key: str, limits: "NumberRange") -> int:
        """A whole number with an optional unit, in the key's own unit."""
        scalar = self.scalar(node, key, limits.what)
        match = re.fullmatch(r"([0-9][0-9_]{0,20})\s*([A-Za-z]*)", scalar.text)
        if match is None:
            self.fail(scalar.mark, key, f"'{scalar.text}' is not {limits.what}", limits.way_out())
        unit = match[2]
        if unit and unit not in limits.units:
            way_out = (
                did_you_mean(unit, limits.units)
                if limits.units
                else "write the number without a unit"
            )
            self.fail(scalar.mark, key, f"unknown unit '{unit}'", way_out)
        value = int(match[1]) * limits.units.get(unit, 1)
        if not limits.low <= value <= limits.high:
            self.fail(scalar.mark, key, f"{scalar.text} is out of range", limits.way_out())
        return value


class Key(NamedTuple):
    """How a value is read, and what holds when it is not there."""

    read: Callable[[SchemaReader, Node, str], Any]
    default: Any = REQUIRED


class NumberRange(NamedTuple):
    """The range of a number, in the unit that ends the key's name."""

    low: int
    high: int
    units: dict[str, int]
    what: str

    def way_out(self) -> str:
        base = next((name for name, factor in self.units.items() if factor == 1), "")
        text = f"write {self.what} from {self.low} to {self.high}"
        return f"{text} ({base}; or with a unit: {', '.join(self.units)})" if base else text


def count_key(low: int, high: int, default: Any) -> Key:
    limits = NumberRange(low, high, {}, "a whole number")
    return Key(lambda reader, node, key: reader.number(node, key, limits), default)


def duration_ms_key(low: int, high: int, default: Any) -> Key:
    limits = NumberRange(low, high, MS_UNITS, "a time")
    return Key(lambda reader, node, key: reader.number(node, key, limits), default)


def duration_s_key(low: int, high: int, default: Any) -> Key:
    limits = NumberRange(low, high, S_UNITS, "a time")
    return Key(lambda reader, node, key: reader.number(node, key, limits), default)


def size_key(low: int, high: int, default: Any) -> Key:
    limits = NumberRange(low, high, SIZE_UNITS, "a size")
    return Key(lambda reader, node, key: reader.number(node, key, limits), default)


def range_ms_key(low: int, high: int, default: tuple[int, int]) -> Key:
    limits = NumberRange(low, high, MS_UNITS, "a time")

    def read(reader: SchemaReader, node: Node, key: str) -> tuple[int, int]:
        if not isinstance(node, yaml_tree.Sequence) or len(node.items) != 2:
            reader.fail(node.mark, key, "must be two times", f"write [{default[0]}, {default[1]}]")
        first, second = (reader.number(item, key, limits) for item in node.items)
        if first >= second:
            reader.fail(
                node.mark, key, f"{first} is not below {second}", "write [smallest, largest]"
            )
        return first, second

    return Key(read, default)


def choice_key(*names: str, default: Any) -> Key:
    def read(reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, f"one of {', '.join(names)}")
        if scalar.text not in names:
            word = key.rpartition(".")[2]
            reader.fail(
                scalar.mark,
                key,
                f"unknown {word} '{scalar.text}'",
                did_you_mean(scalar.text, names),
            )
        return scalar.text

    return Key(read, default)


def boolean_key(default: bool) -> Key:
    def read(reader: SchemaReader, node: Node, key: str) -> bool:
        scalar = reader.scalar(node, key, "true or false")
        if scalar.text not in ("true", "false") or not scalar.plain:
            reader.fail(
                scalar.mark, key, f"'{scalar.text}' is not true or false", "write true or false"
            )
        return scalar.text == "true"

    return Key(read, default)


def name_key(default: Any = REQUIRED) -> Key:
    def read(reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "a name")
        check_name(reader, scalar, key)
        return scalar.text

    return Key(read, default)


def path_key(default: Any = REQUIRED) -> Key:
    def read(reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "a directory")
        if not scalar.text.isprintable():
            reader.fail(scalar.mark, key, "has characters that can't be shown", "write a path")
        return scalar.text

    return Key(read, default)


def text_key(what: str, default: Any = REQUIRED) -> Key:
    """Words that somebody else will understand."""

    def read(reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, what)
        if not scalar.text.isprintable():
            reader.fail(scalar.mark, key, "has characters that can't be shown", f"write {what}")
        return scalar.text

    return Key(read, default)


def tables_key() -> Key:
    """A list of table numbers and ranges of them, `[7, 100-199]`; by default none."""

    def read(reader: SchemaReader, node: Node, key: str) -> list[int]:
        if not isinstance(node, yaml_tree.Sequence):
            reader.fail(node.mark, key, "must be a list of table numbers", "write [7, 100-199]")
        tables: set[int] = set()
        for item in node.items:
            scalar = reader.scalar(item, key, "a table number, or a range of them")
            match = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", scalar.text)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last <= TABLE_MAX:
                problem = f"'{scalar.text}' is no table number, nor a range of them"
                reader.fail(scalar.mark, key, problem, "write [7, 100-199]")
            if len(tables) + last - first >= TABLES_LISTED_MAX:
                problem = f"more than {TABLES_LISTED_MAX} tables"
                reader.fail(scalar.mark, key, problem, "list fewer")
            tables.update(range(first, last + 1))
        return sorted(tables)

    return Key(read, [])


def list_key(what: str, problem: Callable[[str], str]) -> Key:
    """A list of words, by default empty; problem says what is wrong with one, or nothing."""

    def read(reader: SchemaReader, node: Node, key: str) -> list[str]:
        if not isinstance(node, yaml_tree.Sequence):
            reader.fail(node.mark, key, f"must be a list of {what}", "write [first, second]")
        if len(node.items) > LIST_MAX:
            reader.fail(node.mark, key, f"more than {LIST_MAX}", "list fewer")
        found = []
        for item in node.items:
            scalar = reader.scalar(item, key, f"one of {what}")
            if wrong := problem(scalar.text):
                reader.fail(scalar.mark, key, f"'{scalar.text}' {wrong}", f"write {what}")
            found.append(scalar.text)
        return found

    return Key(read, [])


def url_key(default: Any = REQUIRED, multicast: bool = False) -> Key:
    def read(reader: SchemaReader, node: Node, key: str) -> str:
        scalar = reader.scalar(node, key, "a url")
        if multicast and MULTICAST.fullmatch(scalar.text):
            return scalar.text
        problem = url_problem(scalar.text)
        if problem:
            reader.fail(scalar.mark, key, *problem)
        return scalar.text

    return Key(read, default)


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
        return "* is no address that others can connect to", "write this node's own address"
    if len(match[2]) > 5 or not 1 <= int(match[2]) <= PORT_MAX:
        return f"port {match[2]} is out of range", f"write a port from 1 to {PORT_MAX}"
    return None


def _ipc_problem(text: str) -> tuple[str, str] | None:
    if not text.startswith("/") or not text.isprintable():
        return f"ipc path '{text}' is not absolute", "write ipc:///PATH"
    length = len(os.fsencode(text))
    if length > pipes.IPC_PATH_BYTES_MAX:
        return (
            f"ipc path has {length} bytes, {pipes.IPC_PATH_BYTES_MAX} fit into a socket's address",
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
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(names)}"


def section_key(keys: dict[str, Key], default: dict[str, Any] | None = None) -> Key:
    """Settings below a key; without it their defaults hold, or what is given here."""
    if default is None:
        default = {name: description.default for name, description in keys.items()}
    return Key(lambda reader, node, key: reader.section(node, key, keys), default)
