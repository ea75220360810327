"""Settings of a node for the tests of the ZRE actors, and receiving from them."""

from typing import Any

from kelek.actors.topology.settings import NodeAddresses, NodeSettings
from kelek.actors.topology.zre import NodeZreSettings, ZreSettings
from kelek.bench.ports import free_port, free_udp_port
from kelek.native.net.interfaces import LOOPBACK, LOOPBACK_BROADCAST
from kelek.protocols.zre.beacon import own_uuid
from kelek.tests.actors.actor_harness import ActorHarness, Socket
from kelek.tests.actors.node_settings import node_settings

SILENT_MS = 400_000
PEER = own_uuid(b"\x22" * 14)


def settings(node: dict[str, Any] | None = None, **zre: Any) -> NodeSettings:
    """Settings of a node on loopback; no other node of its cluster runs.

    node   keys of the node's own `zre:`
    zre    keys of the section `zre:`
    """
    # Long times: no peer expires, however slow this machine is.
    times = {"evasive_ms": 200_000, "silent_ms": SILENT_MS, "expired_ms": 600_000}
    own_keys = {"interface": LOOPBACK, "broadcast_address": LOOPBACK_BROADCAST, **(node or {})}
    url = f"tcp://{LOOPBACK}:{free_port()}"
    return node_settings(
        {"url": url, "zre": NodeZreSettings(**own_keys)},
        zre=ZreSettings(**{"port": free_udp_port(), **times, **zre}),
        members={"n1": NodeAddresses(url=url)},
    )


def receive(harness: ActorHarness, socket: Socket) -> list[bytes]:
    """The next message, while the actor runs."""
    harness.run_until(lambda: socket.poll(0))
    return socket.recv_multipart()
