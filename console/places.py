"""What the commands of `kelek` are told of the place that they are about: a topology, or urls."""

from typing import Any

from .endings import Ending

Where = dict[str, Any]


def load_topology(where: Where) -> tuple[str, Any]:
    """The path of the topology that is meant, and what it says. Raises Ending."""
    # And with it YAML, for nothing with --url.
    from ..actors import run_dir
    from ..actors import topology as topologies
    from ..actors.errors import OperatorError

    path = where["topology"] or run_dir.default_path()
    try:
        return path, topologies.load(path)
    except OperatorError as error:
        raise Ending(str(error)) from error


def check_given_urls(where: Where, *others: str) -> tuple[str, ...]:
    """What --url says; the other options that say where something is are then left out.
    Raises Ending."""
    from ..clients.urls import check_url

    for other in others:
        if where[other]:
            name = other.removesuffix("s")
            raise Ending(f"--url: a {name} is given too; leave one of them out")
    for url in where["urls"]:
        try:
            check_url(url)
        except ValueError as error:
            raise Ending(f"--url: {error}") from error
    return tuple(where["urls"])
