"""Makes a peer's PeerSetup from the topology's options."""

from ...protocols.zmqraft.server.values import PeerSetup
from ...version import __version__
from ..runtime.setup import ActorSetup
from .machines import broadcast_url

PEER_OPTIONS = (  # Options with the same name in PeerSetup.
    "election_timeout_ms_min",
    "election_timeout_ms_max",
    "heartbeat_ms",
    "rpc_timeout_ms",
    "append_timeout_ms",
    "append_inflight_max",
    "append_bytes_max",
    "entry_bytes_max",
    "update_ttl_s",
    "reqids_max",
    "inflight_max",
    "inflight_bytes_max",
    "pre_vote",
    "check_quorum",
    "snapshot_entries",
    "snapshot_bytes",
    "snapshot_behind",
)


def peer_setup(setup: ActorSetup) -> PeerSetup:
    """Translates an actor's setup into that of its peer."""
    options = setup.options
    return PeerSetup(
        cluster=setup.cluster,
        peer_id=setup.node,
        urls={name: member["url"] for name, member in options["members"].items()},
        peer_urls={
            name: member["peer_url"]
            for name, member in options["members"].items()
            if member["peer_url"]
        },
        text_peers=frozenset(
            name for name, member in options["members"].items() if member["dialect"] == "text"
        ),
        version=__version__,
        bootstrap=setup.bootstrap,
        broadcast_url=broadcast_url(options),
        holds_tables=bool(options.get("zerodb")),
        **{key: options[key] for key in PEER_OPTIONS},
    )
