"""The topology or the urls that select what a command connects to, and errors of its client."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..clients.errors import Error, KeyUnusable, NodeError, Timeout, Unavailable
from ..protocols.failover.limits import REACH_MS, SLOW_REACH_MS
from . import client_keys
from .cli_errors import FAILED, CliError

if TYPE_CHECKING:
    from ..actors.topology.client_topology import ClientTopology
    from ..actors.topology.topology import Topology


T = TypeVar("T")


class Target(NamedTuple):
    """The servers of a topology or of --url that a command uses."""

    source: str  # The topology's path or the urls, for error messages.
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    topology: "ClientTopology | None" = None  # None: the urls are those of --url.
    cluster: str = ""  # Of the log.
    keys: Mapping[str, Any] = MappingProxyType({})  # Arguments of its clients.

    @property
    def start(self) -> str:
        """The way out when no server answers; with --url the error itself says more."""
        return f" start it: supervisor start {self.source}" if self.topology else ""


def resolve(
    path: str | None, urls: tuple[str, ...], service: str, key: str, need: str = "", **rest: object
) -> Target:
    """The servers of --url or of a topology. Raises CliError, OperatorError.

    key    of a node of the topology: the url of the service there
    need   what is missing when no node has one
    rest   further options by name that must not be given beside --url
    """
    if urls:
        for name, value in {"topology": path, **rest}.items():
            if value:
                raise CliError(f"--url: a {name} is given too; leave one of them out")
        urls = _discovered(urls, service)
        keys = client_keys.of_urls(urls)
        return Target(", ".join(urls), {url: url for url in urls}, keys=keys)
    from ..actors.runtime import run_dir
    from ..actors.topology import client_topology

    path = path or run_dir.default_path()
    topology = client_topology.load(path)
    found = {name: url for name, node in topology.nodes.items() if (url := getattr(node, key))}
    if not found:
        raise CliError(f"{path}: {need} (docs/reference/topology.md)")
    return Target(path, found, topology, keys=client_keys.of_topology(topology))


def reach(ask: Callable[[int], T], timeout_ms: int) -> T:
    """Calls ask() with the milliseconds that it may take until a server answers.

    Fails soon if none listens. One that has taken the connection may be slow, as on a busy machine:
    it is given SLOW_REACH_MS, and a line on stderr says so.
    """
    try:
        return ask(min(REACH_MS, timeout_ms))
    except Error as error:
        listens = error._is_silent if isinstance(error, Unavailable) else isinstance(error, Timeout)
        if not listens or timeout_ms <= REACH_MS:
            raise
    slow_ms = min(SLOW_REACH_MS, timeout_ms)
    problem = f"no answer in {REACH_MS / 1000:g} s, but the connection is not refused"
    sys.stderr.write(f"kelek: {problem}; waiting {slow_ms / 1000:g} s more\n")
    return ask(slow_ms)


@contextmanager
def report_errors(
    place: str, ways_out: Mapping[type[Error], str], bare: tuple[type[Error], ...] = ()
) -> Iterator[None]:
    """Ends the command with one line for an error of its client: place, error, way out.

    bare   errors that name the place themselves
    """
    try:
        yield
    except Error as error:
        way_out = next((text for kind, text in ways_out.items() if isinstance(error, kind)), "")
        way_out = fitting(way_out, error)
        prefix = "" if isinstance(error, bare) else f"{place}: "
        raise CliError(f"{prefix}{error}{way_out}", FAILED) from error


def fitting(start: str, error: Error) -> str:
    """Target.start, unless the error has another way out than to start servers."""
    return start if str(error).endswith("?") or not start.startswith(" ") else ""


def load_topology(path: str | None) -> "tuple[str, Topology]":
    """The path of the topology (None: the default), and the topology. Raises OperatorError."""
    # Imported here: it loads YAML, which --url does not need.
    from ..actors.runtime import run_dir
    from ..actors.topology import topology as topologies

    path = path or run_dir.default_path()
    return path, topologies.load(path)


def check_names(urls: Iterable[str]) -> None:
    """Raises CliError if no url has a host with an address: libzmq would only not connect."""
    from ..net.host_names import host_name, name_problem  # Imported here: few commands need it.

    problem = ""
    for url in urls:
        host = host_name(url)
        found = name_problem(host) if host else ""
        if not found:
            return
        problem = problem or f"--url {url}: {found}"
    raise CliError(f"{problem}; write the address of the machine", FAILED)


def _discovered(urls: tuple[str, ...], service: str) -> tuple[str, ...]:
    """The urls, each zre:// resolved to the nodes that offer a service. Raises CliError."""
    from ..clients.io.urls import SCHEME, check_url, resolve_urls

    try:
        if any(url.startswith(SCHEME) for url in urls):
            keys = client_keys.of_discovery()
            urls = resolve_urls(urls, service, keys)
            client_keys.keep_found(keys)
        for url in urls:
            check_url(url)
        check_names(urls)
    except NodeError as error:
        raise CliError(f"--url: {error}; kelek discover lists the nodes", FAILED) from error
    except KeyUnusable as error:
        raise CliError(f"--own-key, --server-key: {error}") from error
    except (ValueError, OSError) as error:
        raise CliError(f"--url: {error}") from error
    return urls
