"""How an option of a source or sink is declared: type, default, meaning, use. It knows no option.

A class of options is a dataclass whose fields are made by option(). Parsing, error messages and
the tables of docs/guides/spark (tables.py) all come from that declaration.

Spark passes each option as text. Its name is in lower case or as you wrote it.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from ..clients.aliases import warn_renamed
from ..clients.io.urls import SCHEME, check_url
from ..protocols.access.certificates import CertificateError, decode_key
from .errors import OptionError, PipelineError

if TYPE_CHECKING:
    from ..net.client_keys import ServerKeys

# Spark's own options that also reach a source or a sink.
SPARKS_OWN = frozenset({"checkpointlocation"})
ALIKE = 0.6  # Similarity by difflib, from 0 to 1.
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TIMEOUT_MS_MAX = 86_400_000

Use = Literal["batches", "streams", "writes"]


class OptionType(NamedTuple):
    """A type of options."""

    parse: Callable[[str], Any]  # Raises ValueError with the end of the sentence "rowLimit is ...".
    values: str  # What it accepts, for the reference.


class Option(NamedTuple):
    """The declaration of one option."""

    name: str  # As the user writes it: rowLimit.
    field: str
    type: OptionType
    meaning: str
    default: str | None = None  # As a user would write it.
    required: bool = False
    only: Use | None = None  # The only use that takes it.
    in_streams: str | None = None  # Another default of streams.
    old_name: str = ""  # Deprecated: it works for one release and warns.
    old_type: OptionType = OptionType(str, "")

    def default_of(self, use: Use) -> Any:
        """The parsed default, or None."""
        text = self.in_streams if use == "streams" and self.in_streams else self.default
        return None if text is None else self.type.parse(text)


def option(type_: OptionType, meaning: str, default: str | None = None, **others: Any) -> Any:
    """A field of a class of options: the declaration of one option.

    others   more fields of Option
    """
    found = {"option": Option("", "", type_, meaning, default, **others)}
    if found["option"].required:
        return field(metadata=found)
    return field(default=found["option"].default_of("batches"), metadata=found)


def options_of(section: type, use: Use | None = None) -> list[Option]:
    """The options of a class in their order; only those of one use if it is given."""
    found = [
        one.metadata["option"]._replace(
            name=re.sub(r"_([a-z])", lambda at: at[1].upper(), one.name), field=one.name
        )
        for one in fields(section)
        if "option" in one.metadata
    ]
    return [one for one in found if use is None or one.only in (None, use)]


S = TypeVar("S", bound="Addressed")


def parse_options(section: type[S], given: Mapping[str, str], use: Use = "batches") -> S:
    """Returns the given options, and defaults for the others.

    The given options may include `kind` and Spark's own ones. Raises OptionError, which names the
    option and the way out.
    """
    known = options_of(section, use)
    allowed = {name.lower() for one in known for name in (one.name, one.old_name)}
    elsewhere = {one.name.lower(): one for one in options_of(section)}
    for name in given:
        if name.lower() in {*allowed, *SPARKS_OWN, "kind"}:
            continue
        if hint := section.refused.get(name.lower()):
            raise OptionError(f"unknown option {name!r}: {hint}")
        if other := elsewhere.get(name.lower()):
            raise OptionError(f"option {other.name} is for {other.only} only")
        raise OptionError(unknown("option", name, [one.name for one in known]))
    texts = {name.lower(): text for name, text in given.items()}
    values = {}
    for one in known:
        old_name = one.old_name.lower()
        if old_name and old_name in texts:
            values[one.field] = _parsed_old(one, texts)
        elif one.name.lower() in texts:
            values[one.field] = _parsed(one, texts[one.name.lower()])
        elif one.required:
            raise OptionError(f"option {one.name} is missing")
        else:
            values[one.field] = one.default_of(use)
    return section(**values)


def _parsed_old(option: Option, texts: Mapping[str, str]) -> Any:
    old, new = option.old_name, option.name
    if new.lower() in texts:
        raise OptionError(f"options {new} and {old} are both given; leave {old} out")
    warn_renamed(f"option {old}", f"option {new}")
    return _parsed(option._replace(name=old, type=option.old_type), texts[old.lower()])


def _parsed(option: Option, text: str) -> Any:
    try:
        return option.type.parse(text)
    except ValueError as error:
        raise OptionError(f"option {option.name} is {error}") from None


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Returns a sentence about an unknown name, with the most similar known one."""
    known = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=ALIKE)
    hint = f"did you mean {known[near[0]]}?" if near else f"known: {', '.join(known.values())}"
    return f"unknown {what} {name!r}; {hint}"


# ---- types of options ----


def _parse_list(value: str) -> list[str]:
    """Parses a JSON list of texts or numbers."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(type(one) in (str, int) for one in found):
        raise ValueError(f'a list in JSON, like ["a", "b"], not {value!r}')
    return [str(one) for one in found]


def _parse_size(value: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([kmg]?)", value.strip().lower())
    if not found or not int(found[1]):
        raise ValueError(f"a number of bytes like 65536, 64k or 1g, not {value!r}")
    return int(found[1]) * UNITS[found[2]]


def _parse_flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError(f"true or false, not {value!r}")
    return value.lower() == "true"


TEXT = OptionType(str, "text")
TEXTS = OptionType(_parse_list, '`["a", "b"]`')
SIZE = OptionType(_parse_size, "bytes, from 1, like `64k`, `8m`")
FLAG = OptionType(_parse_flag, "`true`, `false`")


def zoned_time(value: str) -> datetime | None:
    """A time with its zone, as ISO 8601; None: it is none."""
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return None if time.tzinfo is None else time


def whole(least: int, most: int) -> OptionType:
    """Whole numbers in a range."""

    def parse(value: str) -> int:
        words = f"a whole number from {least} to {most}, not {value!r}"
        try:
            number = int(value)
        except ValueError:
            raise ValueError(words) from None
        if not least <= number <= most:
            raise ValueError(words)
        return number

    return OptionType(parse, f"{least} to {most}" if most < 1 << 50 else f"from {least} on")


def one_of(*choices: str) -> OptionType:
    """Some words in any case, which are returned as they are given here."""
    known = {choice.lower(): choice for choice in choices}

    def parse(value: str) -> str:
        if value.lower() not in known:
            raise ValueError(f"{', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
        return known[value.lower()]

    return OptionType(parse, ", ".join(f"`{choice}`" for choice in choices))


TIME_MS = whole(1, TIMEOUT_MS_MAX)


def addresses(what: str, check: Callable[[str], object]) -> OptionType:
    """Addresses separated by commas; zre://NAME stands for the nodes of a cluster.

    what     what they are, for the error
    check    raises ValueError for an address that is none
    """

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in value.split(","))
        try:
            for url in found:
                if url.startswith(SCHEME):
                    from ..clients.node.discovery import parse_zre_url

                    parse_zre_url(url)
                else:
                    check(url)
        except ValueError as error:
            raise ValueError(f"{what}, joined by commas: {error}") from None
        return found

    return OptionType(parse, "addresses or `zre://CLUSTER`")


URLS = addresses("the nodes' urls", check_url)


def _parse_path(value: str) -> str:
    if not value:
        raise ValueError(f"the path of a file, not {value!r}")
    return value


def _parse_server_keys(value: str) -> str:
    try:
        _server_keys(value)
    except (CertificateError, ValueError, AttributeError, TypeError):
        forms = "a public key of 40 characters, or such keys in JSON, by url or as a list"
        raise ValueError(f"{forms}, not {value!r}") from None
    return value


def _server_keys(value: str) -> "ServerKeys":
    """One key of all servers, or JSON: keys by url, or a list of keys. Raises several errors."""
    with suppress(CertificateError):
        decode_key(value)
        return value
    found: dict[str, str | None] | list[str] = json.loads(value)
    for key in found if isinstance(found, list) else found.values():
        if key is not None:
            decode_key(key)
    return found


KEY_PATH = OptionType(_parse_path, "path")
SERVER_KEYS = OptionType(_parse_server_keys, '40 characters, `{"URL": "KEY"}`, `["KEY"]`')


# ---- zre://NAME: the driver resolves it; tasks get addresses ----


@dataclass(frozen=True, kw_only=True)
class Addressed:
    """Options with the addresses of nodes that offer a service (protocols/zre/services.py)."""

    service: ClassVar[str]
    refused: ClassVar[Mapping[str, str]] = {}  # Names that are no options, and what to do instead.
    urls: tuple[str, ...] = option(URLS, "some of the nodes, separated by commas", required=True)

    def located(self) -> Self:
        """In the driver: the options for tasks, with addresses in place of zre:// ones.

        Raises PipelineError if no node was found.
        """
        if not any(url.startswith(SCHEME) for url in self.urls):
            return self
        from ..clients.errors import KeyUnusable, NodeError
        from ..clients.io.keys import KeyArguments
        from ..clients.io.urls import resolve_urls

        try:
            keys = KeyArguments(**self.client_keys)
            urls = resolve_urls(self.urls, self.service, keys)
        except KeyUnusable as error:
            raise PipelineError(f"{error} (options keyFile and serverKeys)") from error
        except (NodeError, OSError) as error:
            raise PipelineError(f"{error}; option urls takes addresses, too") from error
        return replace(self, urls=urls)._with_keys(keys.server_keys)

    @property
    def client_keys(self) -> dict[str, Any]:
        """Arguments of clients: none of their servers has CURVE."""
        return {"key": None, "server_keys": None}

    def _with_keys(self, server_keys: "ServerKeys | None") -> Self:
        """With the keys of the servers that were found."""
        return self


@dataclass(frozen=True, kw_only=True)
class Secured(Addressed):
    """Addresses whose servers may have CURVE. Spark shows options, so the secret is in a file."""

    refused = {
        "key": "a secret does not belong into options; keyFile is the path of the key's file",
        "secretkey": "a secret does not belong into options; keyFile is the path of its file",
    }
    key_file: str | None = option(
        KEY_PATH, "the file of this job's key: a path on the driver and each executor"
    )
    server_keys: str | None = option(SERVER_KEYS, "the nodes' public keys")

    @property
    def client_keys(self) -> dict[str, Any]:
        """Arguments of clients. Each process reads the file itself."""
        text = self.server_keys
        return {"key": self.key_file, "server_keys": None if text is None else _server_keys(text)}

    def _with_keys(self, server_keys: "ServerKeys | None") -> Self:
        is_text = server_keys is None or isinstance(server_keys, str)
        return self if is_text else replace(self, server_keys=json.dumps(server_keys))
