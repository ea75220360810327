"""The cluster of a `kelek log` command, and a Log on it."""

from collections.abc import Iterator
from contextlib import contextmanager

from ...clients.errors import Error, LogCompacted, LogNoLeader, LogTimeout, LogUnavailable
from ...clients.io.urls import cluster_of
from ...clients.log.log import Log
from ...clients.log.operations import LogTuning
from ...protocols.zre import services
from ..cli_errors import FAILED, CliError
from ..options import ClusterOptions
from ..targets import Target, reach, report_errors, resolve


def resolve_cluster(options: ClusterOptions) -> Target:
    """The cluster of --url and --cluster, or of a topology. Raises CliError, OperatorError."""
    cluster = options.cluster
    if cluster:
        from ...actors.topology.schema import NAME, NAME_RULE  # Of topologies, rarely needed.

        if not NAME.fullmatch(cluster):
            raise CliError(f"--cluster: {cluster!r} is not a name; use {NAME_RULE}")
    found = resolve(options.topology, options.urls, services.LOG, "url")
    if found.topology:
        return found._replace(cluster=cluster or found.topology.cluster)
    if found.urls.keys() != {*options.urls}:
        cluster = cluster or cluster_of(options.urls)
    if not cluster:
        raise CliError("--cluster: missing; --url needs to know the cluster's ident")
    return found._replace(cluster=cluster)


@contextmanager
def open_log(options: ClusterOptions) -> Iterator[tuple[Log, Target]]:
    """A Log for one command. Its errors end the command with one line."""
    target = resolve_cluster(options)
    source, tuning = target.source, LogTuning()
    if target.topology:
        given = target.topology
        tuning = LogTuning(
            response_ttl_ms=given.timeout_ms, election_grace_ms=given.election_grace_ms
        )
    ways_out: dict[type[Error], str] = {
        LogUnavailable: target.start,
        LogNoLeader: f" supervisor status {source}" if target.topology else "",
        LogTimeout: "; a majority of the nodes must run; values that were sent may still commit",
    }
    urls, timeout_ms = target.urls.values(), options.timeout_ms
    with (
        Log(urls, target.cluster, timeout_ms=timeout_ms, tuning=tuning, **target.keys) as log,
        report_errors(source, ways_out, () if target.topology else (LogUnavailable,)),
    ):
        try:
            reach(log.reach, timeout_ms)
            yield log, target
        except LogCompacted as error:
            last = error.last_index
            problem = f"a snapshot has replaced the entries up to {last}"
            way_out = f"read what follows: --after {last}"
            raise CliError(f"{source}: {problem}; {way_out}", FAILED) from error
