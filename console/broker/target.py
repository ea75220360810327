"""The broker of a command of `kelek`, and errors of its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...clients.errors import BrokerError, BrokerTimeout, BrokerUnavailable
from ...protocols.majordomo.values import HEADERS, INTERVAL_MS, Headers
from ...protocols.zre import services
from ..cli_errors import FAILED, CliError
from ..options import topology_option, url_option
from ..targets import load_topology, resolve_urls

CLIENTS_URL = "clients_url"
WORKERS_URL = "workers_url"

TOPOLOGY = topology_option("The brokers of this file")
CLIENTS = url_option("A broker's url for clients")
WORKERS = url_option("A broker's url for workers")


class BrokerTarget(NamedTuple):
    """The brokers of a command, and how to talk to them."""

    source: str  # The topology's path or the urls, for error messages.
    urls: tuple[str, ...]
    by_topology: bool
    headers: Headers = HEADERS
    interval_ms: int = INTERVAL_MS  # Of a worker's heartbeat; at most the broker's.


def resolve_brokers(topology: str | None, urls: tuple[str, ...], key: str) -> BrokerTarget:
    """The urls for clients (CLIENTS_URL) or workers (WORKERS_URL), from --url or a topology.

    Raises CliError, OperatorError.
    """
    if urls:
        service = services.BROKER if key == CLIENTS_URL else services.WORKERS
        urls = resolve_urls(urls, service, topology=topology)
        return BrokerTarget(", ".join(urls), urls, False)
    path, found = load_topology(topology)
    known = tuple(url for node in found.nodes.values() if (url := getattr(node, key)))
    if not known:
        way_out = "give one `broker: {clients_url: ..., workers_url: ...}` (docs/topology.md)"
        raise CliError(f"{path}: no node has a broker; {way_out}")
    names = ("client_header", "worker_header", "deadline_header", "named_header")
    headers = Headers(*(getattr(found.broker, name).encode() for name in names))
    return BrokerTarget(path, known, True, headers, found.broker.heartbeat_interval_ms)


@contextmanager
def report_broker_errors(target: BrokerTarget, service: str) -> Iterator[None]:
    """Turns a failed call into a one-line error."""
    place = f"{target.source}: service {service}"
    try:
        yield
    except BrokerUnavailable as error:
        way_out = f" start it: supervisor start {target.source}" if target.by_topology else ""
        raise CliError(f"{place}: {error}{way_out}", FAILED) from error
    except BrokerTimeout as error:
        raise CliError(f"{place}: {error}; does a worker run? kelek worker run", FAILED) from error
    except BrokerError as error:
        raise CliError(f"{place}: {error}", FAILED) from error
