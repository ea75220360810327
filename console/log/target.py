"""The cluster of a `kelek log` command, and a Log on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...actors.topology.schema import NAME, NAME_RULE, url_problem
from ...clients.errors import LogCompacted, LogError, LogNoLeader, LogTimeout, LogUnavailable
from ...clients.log.log import Log
from ...clients.log.operations import REACH_MS, LogTuning
from ...clients.node.discovery import cluster_of
from ...protocols.zre import services
from ..cli_errors import FAILED, CliError
from ..targets import Where, load_topology, look_up


class ClusterTarget(NamedTuple):
    """The cluster that a command uses."""

    name: str  # For errors: the topology's path, or the urls.
    cluster: str
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    tuning: LogTuning = LogTuning()
    foreign: frozenset[str] = frozenset()  # Nodes with another dialect by the topology.


def find_place(where: Where) -> ClusterTarget:
    """The cluster of --url and --cluster, or of a topology. Raises CliError."""
    urls, cluster = where["urls"], where["cluster"]
    if cluster and not NAME.fullmatch(cluster):
        raise CliError(f"--cluster: {cluster!r} is not a name; use {NAME_RULE}")
    if urls:
        if where["topology"]:
            raise CliError("--url: a topology is given too; leave one of them out")
        found = look_up(urls, services.LOG)
        if found != urls:
            cluster, urls = cluster or cluster_of(urls), found
        if not cluster:
            raise CliError("--cluster: missing; --url needs to know the cluster's ident")
        for url in urls:
            problem = url_problem(url)
            if problem:
                raise CliError(f"--url {url}: {'; '.join(problem)}")
        return ClusterTarget(", ".join(urls), cluster, {url: url for url in urls})
    path, topology = load_topology(where)
    node_urls = {name: node.url for name, node in topology.nodes.items()}
    clients = topology.clients
    tuning = LogTuning(
        response_ttl_ms=clients.timeout_ms, election_grace_ms=clients.election_grace_ms
    )
    foreign = frozenset(name for name, node in topology.nodes.items() if node.dialect != "kelek")
    return ClusterTarget(path, cluster or topology.cluster, node_urls, tuning, foreign)


@contextmanager
def opened(where: Where) -> Iterator[tuple[Log, ClusterTarget]]:
    """A Log for one command. Its errors end the command with one line."""
    place = find_place(where)
    timeout_ms = int(where["timeout_s"] * 1000)
    urls = place.urls.values()
    with Log(urls, place.cluster, timeout_ms=timeout_ms, tuning=place.tuning) as log:
        try:
            log.reach(min(REACH_MS, timeout_ms))
            yield log, place
        except LogUnavailable as error:
            named = "" if where["urls"] else f"{place.name}: "  # The error names the urls.
            raise CliError(f"{named}{error}; {_way_in(place, where)}", FAILED) from error
        except LogNoLeader as error:
            way_out = f"is a majority of it running? supervisor status {place.name}"
            if where["urls"] or where["cluster"]:
                way_out = f"does a majority run, and is '{place.cluster}' its ident?"
            raise CliError(f"{place.name}: {error}; {way_out}", FAILED) from error
        except LogTimeout as error:
            way_out = "a majority of the nodes must run; values that were sent may still commit"
            raise CliError(f"{place.name}: {error}; {way_out}", FAILED) from error
        except LogCompacted as error:
            last = error.last_index
            problem = f"a snapshot has replaced the entries up to {last}"
            way_out = f"read what follows: --after {last}"
            raise CliError(f"{place.name}: {problem}; {way_out}", FAILED) from error
        except LogError as error:
            raise CliError(f"{place.name}: {error}", FAILED) from error


def _way_in(place: ClusterTarget, where: Where) -> str:
    """What the user can do when no node answers."""
    if where["urls"]:
        return f"does it run there, and is '{place.cluster}' its ident?"
    if where["cluster"]:
        return f"is '{place.cluster}' its ident? start it: supervisor start {place.name}"
    return f"start it: supervisor start {place.name}"
