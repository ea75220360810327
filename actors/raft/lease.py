"""The lease that a node's peer shares with the processes of the node, in the run directory."""

from ...native.log.lease import SharedLease
from ..runtime.actor import Actor
from ..runtime.pipes import INPROC


def open_lease(actor: Actor) -> SharedLease | None:
    """The lease of the node's peer. None: all actors are threads of one process, or there is no
    room for the file; servers ask the leader then."""
    setup = actor.setup
    if setup.run_dir.startswith(INPROC):
        return None
    try:
        return SharedLease(f"{setup.run_dir}/{setup.node}/raft_peer.lease")
    except OSError as error:
        actor.log("lease-not-shared", reason=error.strerror)
        return None
