"""The reference of the Python API as a page: signatures and docstrings, from the code."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from kelek.clients.io.public import short, split_arguments

ROOT = Path(__file__).resolve().parents[2]
SIGNATURE_COLUMNS = 88
TESTING = ("testing.cluster", "testing.LocalCluster")
CLIENTS = ("Log", "Table", "Broker", "Worker", "Node", "Farm")


def public_names() -> list[str]:
    """The public names that are documented: the version is not."""
    stub = (ROOT / "__init__.pyi").read_text(encoding="utf-8")
    return [
        name for name in re.findall(r"^from \S+ import (\w+) as", stub, re.M) if name[:2] != "__"
    ]


def value_of(name: str) -> Any:
    """A public name's value; a dotted one is of a module of kelek."""
    module, _, last = f"kelek.{name}".rpartition(".")
    return getattr(importlib.import_module(module), last)


def signature(name: str, function: Callable[..., object]) -> str:
    """A call as text, on several lines when it is long."""
    text = " ".join(short(str(inspect.signature(function))).split())
    text = text.replace("(self, ", "(").replace("(self)", "()")
    if len(name) + len(text) <= SIGNATURE_COLUMNS:
        return f"{name}{text}"
    arguments, arrow, result = text.partition(") -> ")
    parts = split_arguments(arguments if arrow else arguments[:-1])
    inner = "\n".join(f"    {each.strip(', (')}," for each in parts)
    return f"{name}(\n{inner}\n)" + (f" -> {result}" if arrow else "")


def block(kind: str, text: str) -> list[str]:
    return [f"```{kind}", text, "```", ""]


def documented(value: object) -> list[str]:
    """A docstring, as it stands in the source."""
    text = inspect.getdoc(value) or ""
    return block("text", text) if text else []


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that kelek defines, by their names."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("kelek.")]
    for name in sorted({name for base in own for name in vars(base)}):
        if not name.startswith("_"):
            yield name, inspect.getattr_static(kind, name)


def class_lines(name: str) -> list[str]:
    kind = value_of(name)
    lines = [f"## {name}", ""]
    if issubclass(kind, Exception):
        above = [base.__name__ for base in kind.__mro__[1:] if base.__name__ in public_names()]
        return [*lines, *documented(kind), *([f"Is a {', '.join(above)}.", ""] if above else [])]
    if issubclass(kind, Enum):
        return [*lines, *documented(kind), ", ".join(f"`{name}.{each.name}`" for each in kind), ""]
    if not issubclass(kind, bytes):  # It is made by kelek alone.
        lines += block("python", signature(name, kind))
    lines += documented(kind)
    if name.removeprefix("Async") in CLIENTS and name not in CLIENTS:
        twin = name.removeprefix("Async")
        return [
            *lines,
            f"It has the methods of [{twin}](#{twin.lower()}), to await or iterate.",
            "",
        ]
    for member, value in members(kind):
        call = getattr(kind, member)
        is_property = isinstance(value, property | cached_property)
        text = (value if is_property else call).__doc__ or ""
        if text.startswith("Deprecated"):
            continue
        if is_property:
            lines += [f"### {name}.{member}", "", *documented(value)]
        elif inspect.isroutine(value) or callable(value):
            lines += [f"### {name}.{member}", "", *block("python", signature(member, call))]
            lines += documented(call)
    return lines


def page() -> str:
    """The page as Markdown."""
    names = public_names()
    first = [each for client in CLIENTS for each in (client, f"Async{client}") if each in names]
    rest = sorted(set(names) - set(first))
    errors = [each for each in rest if is_error(each)]
    lines = ["# Python API", "", textwrap.dedent(INTRODUCTION).strip(), ""]
    for name in (*first, *(each for each in rest if each not in errors), *TESTING, *errors):
        value = value_of(name)
        if isinstance(value, type):
            lines += class_lines(name)
        else:
            lines += [f"## {name}", "", *block("python", signature(name, value))]
            lines += documented(value)
    return "\n".join(lines)


def is_error(name: str) -> bool:
    value = value_of(name)
    return isinstance(value, type) and issubclass(value, Exception)


INTRODUCTION = """
    All public names of `kelek`, with signatures and docstrings. [Public names](api.md) groups them
    and lists the old ones. `Data` stands for `bytes | bytearray | memoryview`, and for
    `str`, too, where tables and the log take it. `Urls` is a str or an iterable of str, `Path` a
    str or a path, `ServerKeys` a mapping of urls to keys, a list of keys or one key.
"""
