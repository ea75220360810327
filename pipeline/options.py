"""Parses the options of sources and sinks from one table of names, types and defaults a kind.

Spark passes each option as text. Its name is in lower case or as you wrote it.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..clients.aliases import warn_renamed
from ..clients.io.urls import SCHEME, check_url
from .errors import OptionError, PipelineError

# Spark's own options that also reach a source or a sink.
SPARKS_OWN = frozenset({"checkpointlocation"})
ALIKE = 0.6  # Similarity by difflib, from 0 to 1.
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Option(NamedTuple):
    """One option of a kind."""

    name: str  # The documented name: rowLimit.
    parse: Callable[[str], Any]  # Raises ValueError with the end of the sentence "rowLimit is ...".
    default: Any = None
    required: bool = False
    old_name: str = ""  # Deprecated: it works for one release and warns.
    old_parse: Callable[[str], Any] = str

    @property
    def field(self) -> str:
        """Name in Python: row_limit."""
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.name).lower()


def parse_options(known: Iterable[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of all known options by field.

    The given options may include `kind` and Spark's own ones. Raises OptionError, which names the
    option and the way out.
    """
    by_name = {option.name.lower(): option for option in known}
    old_names = {option.old_name.lower() for option in by_name.values()}
    for name in given:
        if name.lower() not in {*by_name, *old_names, *SPARKS_OWN, "kind"}:
            names = [option.name for option in by_name.values()]
            raise OptionError(unknown("option", name, names))
    texts = {name.lower(): text for name, text in given.items()}
    values = {}
    for name, option in by_name.items():
        old_name = option.old_name.lower()
        if old_name and old_name in texts:
            values[option.field] = _parsed_old(option, texts)
        elif name in texts:
            values[option.field] = _parsed(option, texts[name])
        elif option.required:
            raise OptionError(f"option {option.name} is missing")
        else:
            values[option.field] = option.default
    return values


def _parsed_old(option: Option, texts: Mapping[str, str]) -> Any:
    old, new = option.old_name, option.name
    if new.lower() in texts:
        raise OptionError(f"options {new} and {old} are both given; leave {old} out")
    warn_renamed(f"option {old}", f"option {new}")
    return _parsed(option._replace(name=old, parse=option.old_parse), texts[old.lower()])


def _parsed(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise OptionError(f"option {option.name} is {error}") from None


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Returns a sentence about an unknown name, with the most similar known one."""
    known = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=ALIKE)
    hint = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(known.values())}"
    return f"unknown {what} {name!r}; {hint}"


# ---- types of options: each parses a text, or raises ValueError with what it should be ----


def text(value: str) -> str:
    """Parses any text."""
    return value


def texts(value: str) -> list[str]:
    """Parses a JSON list of texts or numbers."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(type(one) in (str, int) for one in found):
        raise ValueError(f'a list in JSON, like ["a", "b"], not {value!r}')
    return [str(one) for one in found]


def whole(least: int, most: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers in a range."""

    def parse(value: str) -> int:
        words = f"a whole number from {least} to {most}, not {value!r}"
        try:
            number = int(value)
        except ValueError:
            raise ValueError(words) from None
        if not least <= number <= most:
            raise ValueError(words)
        return number

    return parse


def size(value: str) -> int:
    """Parses a number of bytes, at least 1, with an optional unit k, m or g: "64m"."""
    found = re.fullmatch(r"([0-9]{1,15})([kmg]?)", value.strip().lower())
    if not found or not int(found[1]):
        raise ValueError(f"a number of bytes like 65536, 64k or 1g, not {value!r}")
    return int(found[1]) * UNITS[found[2]]


def flag(value: str) -> bool:
    """Parses true or false."""
    if value.lower() not in ("true", "false"):
        raise ValueError(f"true or false, not {value!r}")
    return value.lower() == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    """Returns a parser that accepts some words in any case and returns them as they are given
    here."""
    known = {choice.lower(): choice for choice in choices}

    def parse(value: str) -> str:
        if value.lower() not in known:
            raise ValueError(f"{', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
        return known[value.lower()]

    return parse


def urls(value: str) -> tuple[str, ...]:
    """Parses node addresses separated by commas; zre://NAME stands for the nodes of a cluster."""
    found = tuple(part.strip() for part in value.split(","))
    for url in found:
        try:
            check_discovery_url(url) if url.startswith(SCHEME) else check_url(url)
        except ValueError as error:
            raise ValueError(f"the nodes' urls, joined by commas: {error}") from None
    return found


# ---- zre://NAME: the driver resolves it; tasks get addresses ----


def check_discovery_url(url: str) -> None:
    """Raises ValueError unless the zre:// address is well formed."""
    from ..clients.node.discovery import parse_zre_url  # Imports ZeroMQ.

    parse_zre_url(url)


def is_discovered(known: Iterable[str]) -> bool:
    """Whether one of the addresses is a zre:// one."""
    return any(url.startswith(SCHEME) for url in known)


def found_urls(known: tuple[str, ...], service: str) -> tuple[str, ...]:
    """In the driver: replaces each zre:// address by those of the nodes that offer the service.

    protocols/zre/services.py names the services. Raises PipelineError if no node was found.
    """
    if not is_discovered(known):
        return known
    from ..clients.errors import NodeError
    from ..clients.node.discovery import resolve_urls

    try:
        return resolve_urls(known, service)
    except (NodeError, OSError) as error:
        raise PipelineError(f"{error}; option urls takes addresses, too") from error
