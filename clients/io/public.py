"""What help() prints of public classes: short signatures, one class, public names.

Without this pydoc lists every internal base class with the methods below it, and spells out each
annotation on one line of any length.
"""

import inspect
import re
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from itertools import dropwhile
from types import FunctionType
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)
HELP_COLUMNS = 76  # Of 80: pydoc puts four in front.
SPECIAL = frozenset(
    f"__{name}__"
    for name in (
        "enter", "exit", "aenter", "aexit", "iter", "next", "aiter", "anext", "call", "len",
        "contains", "getitem", "setitem", "delitem",
    )
)  # fmt: skip
# What annotations and defaults look like to inspect, and what help() shows.
SHORT = (
    (r"bytes \| bytearray \| memoryview( \| str)?", "Data"),
    (r"str \| collections\.abc\.Mapping\[str, str \| None\] \| collections\.abc\.Collection\[str\]",
     "ServerKeys"),
    (r"str \| os\.PathLike\[str\]", "Path"),
    (r"str \| collections\.abc\.Iterable\[str\]", "Urls"),
    (r"ForwardRef\('([^']+)'\)", r"\1"),
    (r"(: |-> )'([^']+)'", r"\1\2"),
    (r"= ([A-Z]\w+)\((?:[^()]|\([^()]*\))*\)", r"= \1()"),  # The default of a tuning.
    (r"= <.*? at 0x[0-9a-f]+>", "= ..."),  # A function or an object.
    (r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", ""),
    (r"\bNoneType\b", "None"),
    (r"\bGenerator\[(.*), None, None\]", r"Iterator[\1]"),
    (r"\bAsyncGenerator\[(.*), None\]", r"AsyncIterator[\1]"),
    (r"Callable\[\[[^()]*?\], object\]", "Callable"),
    (r"~(?=[A-Z])", ""),
    (r"Optional\[(\w+)\]", r"\1 | None"),
)  # fmt: skip


class PublicType(ABCMeta):
    """The type of a public class. It shows neither private names nor internal base classes."""

    _internal: frozenset[type]  # Of a public class: the base classes that users do not see,
    _hidden: frozenset[str]  # and methods that only kelek calls.

    def __dir__(cls) -> list[str]:
        names = super().__dir__()
        if not hasattr(cls, "_internal"):
            return [*names]
        return [
            name
            for name in names
            if name not in cls._hidden and is_shown(name, getattr(cls, name, None))
        ]

    @property
    def __bases__(cls) -> tuple[type, ...]:  # type: ignore[override]
        bases: tuple[type, ...] = type.__dict__["__bases__"].__get__(cls)
        if "_internal" not in vars(cls):
            return bases
        return tuple(base for base in bases if base not in cls._internal) or (object,)

    @property
    def __mro__(cls) -> tuple[type, ...]:
        classes: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
        hidden = getattr(cls, "_internal", ())
        return tuple(each for each in classes if each not in hidden)

    @property
    def __signature__(cls) -> inspect.Signature:
        if "_internal" not in vars(cls):
            raise AttributeError("inspect.signature() reads __init__()")
        return ShortSignature.of(cls.__init__, cls.__name__)  # type: ignore[misc]


class ShortSignature(inspect.Signature):
    """A signature that help() prints in short, on lines of 80 columns.

    It reads the function at the first use: making a Signature takes 0.1 ms.
    """

    __slots__ = ("_function", "_name")
    _function: Callable[..., Any]
    _name: str

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> "ShortSignature":
        """name: what stands in front of it. That of a class is without `self`."""
        made = cls.__new__(cls)
        made._function, made._name = function, name
        return made

    def __getattr__(self, name: str) -> Any:
        if name not in inspect.Signature.__slots__ or not hasattr(self, "_function"):
            raise AttributeError(name)
        found = inspect.signature(plain(self._function))
        if self._function.__name__ == "__init__":
            inner = list(found.parameters.values())[1:]
            found = found.replace(parameters=inner, return_annotation=inspect.Signature.empty)
        super().__init__(list(found.parameters.values()), return_annotation=found.return_annotation)
        return getattr(self, name)

    def replace(self, **changed: Any) -> "ShortSignature":
        """As of the method of an object, which is without `self`."""
        made = super().replace(**changed)
        made._function, made._name = self._function, self._name
        return made

    def __str__(self) -> str:
        text = short(inspect.Signature.__str__(self))
        function = self._function
        waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        front = f"async {self._name}" if waits else self._name
        if len(front) + len(text) <= HELP_COLUMNS:
            return text
        return wrapped(front, text)

    def format(self, **_: Any) -> str:
        """What pydoc of Python 3.13 and later prints."""
        return str(self)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a function shows of itself, without the signature that was set for it."""
    known: Any = inspect.unwrap(function)
    shown = FunctionType(known.__code__, known.__globals__, closure=known.__closure__)
    shown.__defaults__, shown.__kwdefaults__ = known.__defaults__, known.__kwdefaults__
    shown.__annotations__ = function.__annotations__
    return shown


def short(text: str) -> str:
    """A signature's text with the names that the sources have for its types."""
    for long, name in SHORT:
        text = re.sub(long, name, text)
    return text


def wrapped(name: str, text: str) -> str:
    """A signature on lines of HELP_COLUMNS columns; `name` stands in front of the first."""
    lines = [name]
    arguments, arrow, result = text.partition(" -> ")
    for each in (*split_arguments(arguments), f"{arrow}{result}"):
        if len(lines[-1]) + len(each) > HELP_COLUMNS and lines[-1].strip():
            lines[-1] = lines[-1].rstrip()
            lines.append(" " * 8)
        lines[-1] += each
    return "\n".join(lines)[len(name) :]


def split_arguments(text: str) -> Iterator[str]:
    """The parts of a signature, which joined give it: splits behind commas between arguments."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 1:
            yield text[start : at + 2]
            start = at + 2
    yield text[start:]


def is_shown(name: str, value: object) -> bool:
    """Whether help() and dir() list a member of a public class."""
    if name.startswith("_"):
        return name in SPECIAL and inspect.isroutine(value)
    return not (getattr(value, "__doc__", None) or "").startswith("Deprecated")


def public(like: type | None = None, hidden: Iterable[str] = ()) -> Callable[[Kind], Kind]:
    """A decorator of public classes: their internal base classes and private names stay hidden.

    like     a class with the same arguments and methods: what its docstring says behind the example
             is in the docstring of this one, too
    hidden   methods that only kelek calls
    """

    def decorate(kind: Kind) -> Kind:
        bases = kind.__mro__[1:-1]
        internal = [base for base in bases if not hasattr(base, "_internal")]
        members: dict[str, Any] = {}
        for base in (*reversed(internal), kind):
            members.update(vars(base))
        for name, value in members.items():
            if name.startswith("_") and name not in SPECIAL:
                continue
            if name not in vars(kind):
                setattr(kind, name, value)
            if isinstance(value, FunctionType) and value.__module__.startswith("kelek."):
                value.__signature__ = ShortSignature.of(value, name)  # type: ignore[attr-defined]
        if like is not None:
            kind.__doc__ = joined(kind.__doc__ or "", like.__doc__ or "")
        kind._internal = frozenset(internal)  # type: ignore[attr-defined]
        kind._hidden = frozenset(hidden)  # type: ignore[attr-defined]
        return kind

    return decorate


def joined(own: str, other: str) -> str:
    """A docstring with what that of the blocking twin says behind its summary and example."""
    _, *rest = inspect.cleandoc(other).split("\n\n")
    rest = [*dropwhile(lambda each: each.startswith(" "), rest)]
    summary, _, example = inspect.cleandoc(own).partition("\n\n")  # This has lost its margin.
    text = "\n\n".join((summary, re.sub(r"(?m)^(?=.*\S)", "    ", example), *rest))
    return re.sub(r"\bclose\b", "aclose", text.replace("close()  ", "aclose() "))
