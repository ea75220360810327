"""The topology or the urls that select what a command connects to."""

from typing import TYPE_CHECKING

from .cli_errors import FAILED, CliError

if TYPE_CHECKING:
    from ..actors.topology.topology import Topology


def load_topology(path: str | None) -> "tuple[str, Topology]":
    """The path of the topology (None: the default), and the topology. Raises OperatorError."""
    # Imported here: it loads YAML, which --url does not need.
    from ..actors.runtime import run_dir
    from ..actors.topology import topology as topologies

    path = path or run_dir.default_path()
    return path, topologies.load(path)


def resolve_urls(urls: tuple[str, ...], service: str, **excluded: object) -> tuple[str, ...]:
    """The urls of --url, with each zre:// resolved to the nodes that offer a service.

    excluded   values by name that must not be given beside --url

    Raises CliError.
    """
    from ..clients.io.urls import SCHEME, check_url

    for name, value in excluded.items():
        if value:
            raise CliError(f"--url: a {name} is given too; leave one of them out")
    if any(url.startswith(SCHEME) for url in urls):
        urls = _discover(urls, service)
    for url in urls:
        try:
            check_url(url)
        except ValueError as error:
            raise CliError(f"--url: {error}") from error
    return urls


def _discover(urls: tuple[str, ...], service: str) -> tuple[str, ...]:
    from ..clients.errors import NodeError
    from ..clients.node import discovery

    try:
        return discovery.resolve_urls(urls, service)
    except NodeError as error:
        raise CliError(f"--url: {error}; kelek discover lists the nodes", FAILED) from error
    except (ValueError, OSError) as error:
        raise CliError(f"--url: {error}") from error
