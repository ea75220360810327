"""What the commands of `kelek` are told of the place that they are about: a topology, or urls."""

from typing import Any

from .cli_errors import FAILED, CliError

Where = dict[str, Any]


def load_topology(where: Where) -> tuple[str, Any]:
    """The path of the topology that is meant, and what it says. Raises CliError."""
    # And with it YAML, for nothing with --url.
    from ..actors.errors import OperatorError
    from ..actors.runtime import run_dir
    from ..actors.topology import topology as topologies

    path = where["topology"] or run_dir.default_path()
    try:
        return path, topologies.load(path)
    except OperatorError as error:
        raise CliError(str(error)) from error


def check_given_urls(where: Where, service: str, *others: str) -> tuple[str, ...]:
    """What --url says; the other options that say where something is are then left out. A zre:// is
    looked up: it stands for those who offer that service. Raises CliError."""
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
    """Has each zre:// among them found. Raises CliError."""
    from ..clients.io.urls import SCHEME

    if not any(url.startswith(SCHEME) for url in urls):
        return urls
    from ..clients.errors import NodeError
    from ..clients.node.discovery import resolve_urls

    try:
        return resolve_urls(urls, service)
    except NodeError as error:
        raise CliError(f"--url: {error}; kelek discover lists who is there", FAILED) from error
    except (ValueError, OSError) as error:
        raise CliError(f"--url: {error}") from error
