"""Makes a peer's PeerSetup from its actor's settings."""

from ...protocols.raft.messages import RaftTuning
from ...protocols.zmqraft.server.values import PeerSetup, SnapshotSetup, UpdateLimits
from ...version import __version__
from ..runtime.setup import ActorSetup
from .machines import broadcast_url


def peer_setup(setup: ActorSetup) -> PeerSetup:
    settings = setup.settings
    raft, log, members = settings.raft, settings.log, settings.members
    return PeerSetup(
        cluster=setup.cluster,
        peer_id=setup.node,
        urls={name: member.url for name, member in members.items()},
        peer_urls={name: member.peer_url for name, member in members.items() if member.peer_url},
        text_peers=frozenset(name for name, member in members.items() if member.dialect == "text"),
        version=__version__,
        bootstrap=setup.bootstrap,
        broadcast_url=broadcast_url(settings),
        holds_tables=settings.node.zerodb is not None,
        tuning=RaftTuning(
            *raft.election_timeout_ms,
            heartbeat_ms=raft.heartbeat_ms,
            append_timeout_ms=raft.append_timeout_ms,
            vote_retry_ms=raft.vote_retry_ms,
            inflight_max=raft.append_inflight_max,
            append_bytes_max=raft.append_bytes_max,
            pre_vote=raft.pre_vote,
            check_quorum=raft.check_quorum,
        ),
        updates=UpdateLimits(
            raft.entry_bytes_max,
            raft.update_ttl_s,
            raft.reqids_max,
            raft.inflight_max,
            raft.inflight_bytes_max,
        ),
        snapshots=SnapshotSetup(
            log.snapshot_entries, log.snapshot_bytes, log.snapshot_trailing_entries
        ),
    )
