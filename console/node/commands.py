"""The commands `kelek discover` and `kelek node`."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from ...clients.errors import KeyUnusable
from ...clients.node.base import NodeTuning
from ...clients.node.discovery import SERVICES, DiscoveredNode, discover_nodes
from ...clients.node.node import Node
from ...net.clock import monotonic_ms
from ...protocols.zre.peers import Event, EventKind, PeerInfo
from ...protocols.zre.values import BEACON_PORT
from ..cli_errors import FAILED, CliError
from ..client_keys import VARIABLE
from ..options import OUTPUT, Seconds, argument, command, option, timeout_option
from ..render import show_json, show_table, stdin

DRAW_MS = 1000  # The longest time between two drawings of the table.
MESSAGES = {EventKind.WHISPER, EventKind.SHOUT}
# Counters of discarded input, except the node's own beacons.
DISCARDED = "beacon_", "before_hello", "gossip_", "goodbyes_dropped", "hello_", "message_"
OWN = "beacon_own"


class NetworkOptions(NamedTuple):
    """The network of the beacons."""

    interface: str = option("--interface", default="", metavar="NAME",
                            help="Its name or address (default: the first that can "
                                 "broadcast).")  # fmt: skip
    broadcast: str = option("--broadcast", default="", metavar="ADDRESS",
                            help="Instead of the interface's own.")  # fmt: skip
    port: int = option("--port", type=click.IntRange(1, 65_535), default=BEACON_PORT,
                       show_default=True, metavar="PORT", help="Of UDP.")  # fmt: skip
    own_key: str = option("--own-key", type=click.Path(), default="", metavar="FILE",
                          envvar=VARIABLE, show_envvar=True,
                          help="File of this node's secret key: to nodes with "
                               "CURVE.")  # fmt: skip
    server_keys: tuple[str, ...] = option("--server-key", multiple=True, metavar="KEY",
                                          help="Public key of a node that is greeted; "
                                               "repeat it for others.")  # fmt: skip

    @property
    def tuning(self) -> NodeTuning:
        return NodeTuning(
            port=self.port, interface=self.interface, broadcast_address=self.broadcast
        )

    @property
    def keys(self) -> dict[str, Any]:
        """The arguments `key` and `allow` of a node. Raises CliError."""
        if not self.server_keys:
            ctx = click.get_current_context()
            if ctx.get_parameter_source("own_key") is ParameterSource.COMMANDLINE:
                raise CliError("--own-key: the nodes' keys are missing; add --server-key KEY")
            return {}  # KELEK_KEY is for the secured networks among those that you use.
        if not self.own_key:
            raise CliError(f"--server-key: the own key is missing; --own-key, or {VARIABLE}")
        return {"key": self.own_key, "allow": self.server_keys}

    def node(self, name: str) -> Node:
        return Node(name, tuning=self.tuning, **self.keys)


@contextmanager
def report_network_errors(network: NetworkOptions) -> Iterator[None]:
    """Turns an unusable network or key into a one-line error."""
    try:
        yield
    except KeyUnusable as error:
        raise CliError(str(error)) from error
    except OSError as error:
        interface = network.interface or "the network"
        reason = error.strerror or str(error)
        raise CliError(f"{interface}, port {network.port}: {reason}", FAILED) from error


# ---- discover ----


class DiscoverRequest(NamedTuple):
    timeout_ms: int = timeout_option("Duration of the search.", 2.0)
    output: str = OUTPUT
    cluster: str = argument(required=False, default="")


@command
def discover(network: NetworkOptions, request: DiscoverRequest) -> None:
    """Lists the services of kelek nodes in this network: cluster and urls.

    With CLUSTER it lists only nodes of that cluster, and ends soon after the first.

    A client accepts zre://CLUSTER as a url: `kelek log append --url zre://CLUSTER hello`.
    Exit code 1: no node was found.
    """
    cluster = request.cluster

    def is_member(node: DiscoveredNode) -> bool:
        return node.cluster == cluster

    with report_network_errors(network):
        nodes = discover_nodes(network.tuning, request.timeout_ms, is_member, **network.keys)
    if cluster:
        nodes = list(filter(is_member, nodes))
    if request.output == "json":
        for node in nodes:
            show_json(node_json(node))
    elif nodes:
        rows = [
            (node.cluster or None, node.node, header, ",".join(urls))
            for node in nodes for header, urls in (node.services or {"-": ()}).items()
        ]  # fmt: skip
        show_table(("cluster", "node", "service", "url"), rows)
    if not nodes:
        interface = network.interface or "the network's first interface"
        what = f"no node of the cluster {cluster}" if cluster else "no node with services of kelek"
        raise CliError(
            f"{what} was found on {interface}, port {network.port}; try another --interface, such "
            "as lo for nodes of this machine alone",
            FAILED,
        )


def node_json(node: DiscoveredNode) -> dict[str, Any]:
    return {
        "cluster": node.cluster,
        "node": node.node,
        "uuid": node.uuid.hex(),
        "services": {name: list(node.services.get(name, ())) for name in SERVICES},
    }


# ---- node watch ----


class WatchRequest(NamedTuple):
    timeout_ms: int | None = timeout_option("End after this time.", None)
    name: str = option("--name", default="kelek", show_default=True, help="Name of this node.")
    output: str = OUTPUT


@command
def watch(network: NetworkOptions, request: WatchRequest) -> None:
    """Shows the nodes of the network with groups and headers, as they change.

    A terminal shows a table that is kept current. Otherwise, and with -o json, it prints a line for
    each node that enters or exits, joins or leaves a group, or falls silent.
    """
    timeout_ms, output = request.timeout_ms, request.output
    live = output == "text" and sys.stdout.isatty()
    until_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
    silent: set[bytes] = set()
    with report_network_errors(network), network.node(request.name) as me:
        while until_ms is None or monotonic_ms() < until_ms:
            left_ms = DRAW_MS if until_ms is None else until_ms - monotonic_ms()
            for event in me.receive(max(0, min(DRAW_MS, left_ms))):
                update_silent(event, silent)
                if not live and event.kind not in MESSAGES:
                    show_event(event, output)
            if live:
                draw(me, silent)


def update_silent(event: Event, silent: set[bytes]) -> None:
    """Updates the set of peers that did not answer PING."""
    if event.peer is None:
        return
    if event.kind in (EventKind.EVASIVE, EventKind.SILENT):
        silent.add(event.peer.uuid)
    else:
        silent.discard(event.peer.uuid)


def show_event(event: Event, output: str) -> None:
    peer = event.peer
    if output == "json":
        values: dict[str, Any] = {"event": event.kind.value}
        if peer is not None:
            values |= {"node": peer.name, "uuid": peer.uuid.hex(), "endpoint": peer.endpoint}
        if event.kind in (EventKind.ENTER, EventKind.CHANGED) and peer is not None:
            values["headers"] = peer.headers
        if event.group:
            values["group"] = event.group
        show_json(values)
    else:
        click.echo(" ".join(filter(None, [event.kind.value, name_of(peer), event.group])))
    sys.stdout.flush()


def draw(me: Node, silent: set[bytes]) -> None:
    """Draws the table over the previous one."""
    groups: dict[bytes, list[str]] = {}
    for group, members in sorted(me.peer_groups.items()):
        for member in members:
            groups.setdefault(member.uuid, []).append(group)
    peers = sorted(me.peers, key=lambda peer: (peer.name, peer.uuid))
    rows = [
        (
            name_of(peer), f"v{int(peer.version)}", peer.endpoint,
            "silent" if peer.uuid in silent else "present",
            ",".join(groups.get(peer.uuid, ())),
            " ".join(f"{key}={value}" for key, value in sorted(peer.headers.items())),
        )
        for peer in peers
    ]  # fmt: skip
    click.clear()
    show_table(("node", "zre", "mailbox", "state", "groups", "headers"), rows)
    click.echo(f"discarded: {discarded(me.counters)}")
    sys.stdout.flush()


def discarded(counters: Mapping[str, int]) -> int:
    return sum(
        count for name, count in counters.items() if name.startswith(DISCARDED) and name != OWN
    )


def name_of(peer: PeerInfo | None) -> str:
    """The name of a peer; version 1 has none."""
    return "" if peer is None else peer.name or peer.uuid.hex()[:6].upper()


# ---- node chat ----


class ChatRequest(NamedTuple):
    stay_s: float = option("--stay", type=Seconds(0, 86_400), default=0.0, metavar="SECONDS",
                           help="Continue to print after the end of standard "
                                "input.")  # fmt: skip
    name: str = option("--name", default="", help="Name of this node (default: the user's name).")
    peers: int = option("--wait-for", type=click.IntRange(0), default=0, metavar="N",
                        help="Wait for so many other nodes in the group.")  # fmt: skip
    group: str = argument()


@command
def chat(network: NetworkOptions, request: ChatRequest) -> None:
    """Shouts each line of standard input to GROUP, and prints what others shout.

    It ends with standard input.
    """
    group, name = request.group, request.name or os.environ.get("USER", "") or "kelek"
    with report_network_errors(network), network.node(name) as me:
        try:
            me.join(group)
        except ValueError as error:
            raise CliError(f"GROUP: {error}") from error
        complete = threading.Event()
        listener = threading.Thread(target=listen, args=(me, group, request.peers, complete))
        listener.start()
        try:
            complete.wait()
            for line in stdin():
                me.shout(group, line.rstrip(b"\r\n"))
            listener.join(request.stay_s)
        finally:
            me.close()
            listener.join()


def listen(me: Node, group: str, peers: int, complete: threading.Event) -> None:
    """Prints messages until the node is closed; reports when the group has enough members."""
    if not peers:
        complete.set()
    for event in me.events():
        if event.group == group and event.kind is EventKind.SHOUT:
            text = b" ".join(event.content).decode(errors="replace")
            click.echo(f"{name_of(event.peer)}: {text}")
        elif event.group == group and event.kind in (EventKind.JOIN, EventKind.LEAVE):
            click.echo(f"* {name_of(event.peer)} {event.kind.value}")
        sys.stdout.flush()
        if len(me.peer_groups.get(group, ())) >= peers:
            complete.set()
