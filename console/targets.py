"""The cluster that a command uses: from a topology, or from --url."""

from typing import TYPE_CHECKING, Any

from .cli_errors import FAILED, CliError

if TYPE_CHECKING:
    from ..actors.topology.topology import Topology

Where = dict[str, Any]


def load_topology(where: Where) -> "tuple[str, Topology]":
    """The path of the topology, and the topology. Raises CliError."""
    # Imported here: it loads YAML, which --url does not need.
    from ..actors.errors import OperatorError
    from ..actors.runtime import run_dir
    from ..actors.topology import topology as topologies

    path = where["topology"] or run_dir.default_path()
    try:
        return path, topologies.load(path)
    except OperatorError as error:
        raise CliError(str(error)) from error


def check_given_urls(where: Where, service: str, *others: str) -> tuple[str, ...]:
    """The urls of --url, with each zre:// resolved to the nodes that offer a service.

    others are options that exclude --url. Raises CliError.
    """
    from ..clients.io.urls import check_url

    for other in others:
        if where[other]:
            name = other.removesuffix("s")
            raise CliError(f"--url: a {name} is given too; leave one of them out")
    urls = look_up(where["urls"], service)
    for url in urls:
        try:
            check_url(url)
        except ValueError as error:
            raise CliError(f"--url: {error}") from error
    return urls


def look_up(urls: tuple[str, ...], service: str) -> tuple[str, ...]:
    """Resolves each zre:// among urls. Raises CliError."""
    from ..clients.io.urls import SCHEME

    if not any(url.startswith(SCHEME) for url in urls):
        return urls
    from ..clients.errors import NodeError
    from ..clients.node.discovery import resolve_urls

    try:
        return resolve_urls(urls, service)
    except NodeError as error:
        raise CliError(f"--url: {error}; kelek discover lists the nodes", FAILED) from error
    except (ValueError, OSError) as error:
        raise CliError(f"--url: {error}") from error
