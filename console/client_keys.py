"""The key of a command, and the keys of the servers that it connects to: arguments of clients."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from .cli_errors import CliError

if TYPE_CHECKING:
    from ..actors.topology.client_topology import ClientTopology
    from ..clients.io.keys import KeyArguments
    from ..net.client_keys import ClientKeys
    from ..net.sockets import CurveClient

VARIABLE = "KELEK_KEY"
KEY_FILE, SERVER_KEYS, PINNED = (f"{__name__}.{name}" for name in ("key", "server", "pinned"))


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        source = ctx.get_parameter_source(parameter.name or "")
        ctx.meta[name] = value, source is ParameterSource.COMMANDLINE

    return keep


def add_options(run: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --own-key and --server-key to a command that has --url."""
    key = click.option("--own-key", "key_file", type=click.Path(), metavar="FILE", envvar=VARIABLE,
                       show_envvar=True, expose_value=False, callback=_keep(KEY_FILE),
                       help="File of this client's secret key (docs/security.md).")  # fmt: skip
    server = click.option("--server-key", "server_keys", multiple=True, metavar="KEY",
                          expose_value=False, callback=_keep(SERVER_KEYS),
                          help="Public key of the server at --url; one for all, or one for each "
                          "--url in their order. With zre:// those of all nodes.")  # fmt: skip
    return key(server(run))


def _meta() -> dict[str, Any]:
    """What the command keeps; nothing outside a command."""
    ctx = click.get_current_context(silent=True)
    return {} if ctx is None else ctx.meta


def of_urls(urls: Iterable[str]) -> dict[str, Any]:
    """The arguments `key` and `server_keys` of a client of these urls.

    Raises CliError, OperatorError.
    """
    meta = _meta()
    if PINNED in meta:  # The command found these urls before, maybe in a topology.
        return dict(meta[PINNED])
    key_file, server_keys = _given()
    if not key_file:
        return {}
    urls = list(urls)
    if len(server_keys) == 1:
        return _checked({"key": key_file, "server_keys": server_keys[0]})
    if len(server_keys) != len(urls):
        problem = f"{len(server_keys)} keys for {len(urls)} servers"
        raise CliError(f"--server-key: {problem}; give one for each --url, or one for all")
    return _checked({"key": key_file, "server_keys": dict(zip(urls, server_keys, strict=True))})


def _given() -> tuple[str | None, tuple[str, ...]]:
    """--own-key and --server-key, both or neither. Raises CliError."""
    meta = _meta()
    key_file, key_given = meta.get(KEY_FILE, (None, False))
    server_keys, _ = meta.get(SERVER_KEYS, ((), False))
    if not server_keys:
        if key_given:
            raise CliError("--own-key: the server's key is missing; give it with --server-key")
        return None, ()  # KELEK_KEY is for the secured clusters among those that you use.
    if not key_file:
        raise CliError(f"--server-key: the client's key is missing; --own-key, or {VARIABLE}")
    return key_file, server_keys


def of_discovery() -> "KeyArguments":
    """Both as arguments of a search for nodes. Raises CliError."""
    from ..clients.io.keys import KeyArguments

    key_file, server_keys = _given()
    return KeyArguments(key_file, server_keys if key_file else None)


def keep_found(keys: "KeyArguments") -> None:
    """Keeps the keys that a search has given urls. Raises OperatorError."""
    if keys.key is not None:
        _checked({"key": keys.key, "server_keys": keys.server_keys})


def of_topology(topology: "ClientTopology") -> dict[str, Any]:
    """The same of a client of a topology's nodes. Raises CliError, OperatorError."""
    meta = _meta()
    if meta.get(SERVER_KEYS, ((), False))[0]:
        raise CliError("--server-key: it is for --url; a topology has the keys of its nodes")
    key_file, key_given = meta.get(KEY_FILE, (None, False))
    if topology.server_keys is None and key_given:
        problem = f"{topology.path} has no keys, so that no connection is encrypted"
        raise CliError(f"--own-key: {problem}; leave the option out")
    if topology.server_keys is None:
        return {}
    key_file = key_file or topology.key_file
    if not key_file:
        problem = f"{topology.path}: its nodes serve clients with a key only"
        way_out = f"--own-key FILE, {VARIABLE}, or `security: {{key_file: FILE}}` in the file"
        raise CliError(f"{problem}; {way_out}")
    server_keys = {url: key or None for url, key in topology.server_keys.items()}
    return _checked({"key": key_file, "server_keys": server_keys})


def curve_of(url: str, keys: Mapping[str, Any]) -> "CurveClient | None":
    """The keys of a connection by these arguments. Raises OperatorError."""
    return _load(keys).curve(url) if keys else None


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    _load(found)
    _meta()[PINNED] = found
    return found


def _load(keys: Mapping[str, Any]) -> "ClientKeys":
    from ..net.client_keys import load_client_keys  # It loads ZeroMQ, which --help does not need.

    return load_client_keys(keys["key"], keys["server_keys"])
