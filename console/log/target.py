"""The cluster of a `kelek log` command, and a Log on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...actors.topology.schema import NAME, NAME_RULE
from ...clients.errors import LogCompacted, LogError, LogNoLeader, LogTimeout, LogUnavailable
from ...clients.log.log import Log
from ...clients.log.operations import (
    LogTuning,
)
from ...clients.node.discovery import cluster_of
from ...protocols.failover.limits import REACH_MS
from ...protocols.zre import services
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions
from ..targets import load_topology, resolve_urls


class ClusterTarget(NamedTuple):
    """The cluster that a command uses."""

    source: str  # The topology's path or the urls, for error messages.
    cluster: str
    urls: dict[str, str]  # Node -> url; with --url each is its own name.
    tuning: LogTuning = LogTuning()
    foreign: frozenset[str] = frozenset()  # Nodes with another dialect by the topology.


def resolve_cluster(options: ClusterOptions) -> ClusterTarget:
    """The cluster of --url and --cluster, or of a topology. Raises CliError, OperatorError."""
    cluster = options.cluster
    if cluster and not NAME.fullmatch(cluster):
        raise CliError(f"--cluster: {cluster!r} is not a name; use {NAME_RULE}")
    if options.urls:
        urls = resolve_urls(options.urls, services.LOG, topology=options.topology)
        if urls != options.urls:
            cluster = cluster or cluster_of(options.urls)
        if not cluster:
            raise CliError("--cluster: missing; --url needs to know the cluster's ident")
        return ClusterTarget(", ".join(urls), cluster, {url: url for url in urls})
    path, topology = load_topology(options.topology)
    node_urls = {name: node.url for name, node in topology.nodes.items()}
    clients = topology.clients
    tuning = LogTuning(
        response_ttl_ms=clients.timeout_ms, election_grace_ms=clients.election_grace_ms
    )
    foreign = frozenset(name for name, node in topology.nodes.items() if node.dialect != "kelek")
    return ClusterTarget(path, cluster or topology.cluster, node_urls, tuning, foreign)


@contextmanager
def open_log(options: ClusterOptions) -> Iterator[tuple[Log, ClusterTarget]]:
    """A Log for one command. Its errors end the command with one line."""
    target = resolve_cluster(options)
    source, timeout_ms = target.source, options.timeout_ms
    urls = target.urls.values()
    with Log(urls, target.cluster, timeout_ms=timeout_ms, tuning=target.tuning) as log:
        try:
            log.reach(min(REACH_MS, timeout_ms))
            yield log, target
        except LogUnavailable as error:
            prefix = "" if options.urls else f"{source}: "  # The error names the urls.
            way_out = "" if options.urls else f" start it: supervisor start {source}"
            raise CliError(f"{prefix}{error}{way_out}", FAILED) from error
        except LogNoLeader as error:
            way_out = "" if options.urls else f" supervisor status {source}"
            raise CliError(f"{source}: {error}{way_out}", FAILED) from error
        except LogTimeout as error:
            way_out = "a majority of the nodes must run; values that were sent may still commit"
            raise CliError(f"{source}: {error}; {way_out}", FAILED) from error
        except LogCompacted as error:
            last = error.last_index
            problem = f"a snapshot has replaced the entries up to {last}"
            way_out = f"read what follows: --after {last}"
            raise CliError(f"{source}: {problem}; {way_out}", FAILED) from error
        except LogError as error:
            raise CliError(f"{source}: {error}", FAILED) from error
