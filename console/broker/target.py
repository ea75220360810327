"""The broker of a command of `kelek`, and errors of its calls."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from ...clients.broker.body import frames_of
from ...clients.broker.operations import checked_service
from ...clients.errors import BrokerUnavailable, Error
from ...protocols.majordomo.values import HEADERS, INTERVAL_MS, Headers
from ...protocols.zre import services
from ..cli_errors import CliError
from ..options import topology_option, url_option
from ..render import stdin
from ..targets import report_errors, resolve

CLIENTS_URL = "clients_url"
WORKERS_URL = "workers_url"

TOPOLOGY = topology_option("The brokers of this file")
CLIENTS = url_option("A broker's url for clients")
WORKERS = url_option("A broker's url for workers")


class BrokerTarget(NamedTuple):
    """The brokers of a command, and how to talk to them."""

    source: str  # The topology's path or the urls, for error messages.
    urls: tuple[str, ...]
    start: str  # The way out when no broker answers; empty with --url.
    headers: Headers = HEADERS
    interval_ms: int = INTERVAL_MS  # Of a worker's heartbeat; at most the broker's.
    keys: Mapping[str, Any] = MappingProxyType({})  # Arguments of its clients.


def resolve_brokers(topology: str | None, urls: tuple[str, ...], key: str) -> BrokerTarget:
    """The urls for clients (CLIENTS_URL) or workers (WORKERS_URL), from --url or a topology.

    Raises CliError, OperatorError.
    """
    service = services.BROKER if key == CLIENTS_URL else services.WORKERS
    need = "no node has a broker; give one `broker: {clients_url: ..., workers_url: ...}`"
    found = resolve(topology, urls, service, key, need)
    known = tuple(found.urls.values())
    settings = found.topology.broker if found.topology else None
    if settings is None:
        return BrokerTarget(found.source, known, found.start, keys=found.keys)
    interval_ms = settings.heartbeat_interval_ms
    headers = Headers.of(settings)
    return BrokerTarget(found.source, known, found.start, headers, interval_ms, found.keys)


def read_body(service: str | None, bodies: Sequence[bytes]) -> list[bytes]:
    """The frames of a request; `-` is standard input. Raises CliError."""
    try:
        if service is not None:
            checked_service(service)
        return frames_of([stdin().read() if body == b"-" else body for body in bodies])
    except ValueError as error:
        raise CliError(f"SERVICE: {error}" if "service" in str(error) else str(error)) from error


@contextmanager
def report_broker_errors(target: BrokerTarget, service: str) -> Iterator[None]:
    """Turns a failed call into a one-line error."""
    ways_out: dict[type[Error], str] = {BrokerUnavailable: target.start}
    with report_errors(f"{target.source}: service {service}", ways_out):
        yield
