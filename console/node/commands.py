"""The commands `kelek discover` and `kelek node`, without their command lines."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from ...clients.node.base import NodeTuning
from ...clients.node.discovery import SERVICES, DiscoveredNode, discover_nodes
from ...clients.node.node import Node
from ...net.clock import monotonic_ms
from ...protocols.zre.peers import Event, EventKind, PeerInfo
from ..cli_errors import FAILED, CliError
from ..output import show_json, show_table, stdin

Options = dict[str, Any]
QUIET_MS = 1000  # The longest time between two drawings of the table, so that silence shows.
SPOKEN = {EventKind.WHISPER, EventKind.SHOUT}
# Counters of discarded input, except the node's own beacons.
DISCARDED = "beacon_", "before_hello", "gossip_", "goodbyes_dropped", "hello_", "message_"
OWN = "beacon_own"


def make_tuning(options: Options) -> NodeTuning:
    return NodeTuning(
        port=options["port"], interface=options["interface"], broadcast_address=options["broadcast"]
    )


@contextmanager
def in_one_line(options: Options) -> Iterator[None]:
    """Turns an unusable network into a one-line error."""
    try:
        yield
    except OSError as error:
        place = options["interface"] or "the network"
        reason = error.strerror or str(error)
        raise CliError(f"{place}, port {options['port']}: {reason}", FAILED) from error


# ---- discover ----


def discover(cluster: str, options: Options, output: str) -> None:
    """Searches, then lists the nodes, or only those of one cluster."""

    def is_meant(one: DiscoveredNode) -> bool:
        return one.cluster == cluster

    with in_one_line(options):
        found = discover_nodes(make_tuning(options), int(options["timeout_s"] * 1000), is_meant)
    if cluster:
        found = [one for one in found if is_meant(one)]
    if output == "json":
        for one in found:
            show_json(found_json(one))
    elif found:
        lines = [
            (one.cluster or None, one.node, header, ",".join(urls))
            for one in found for header, urls in (one.services or {"-": ()}).items()
        ]  # fmt: skip
        show_table(("cluster", "node", "service", "url"), lines)
    if not found:
        where = options["interface"] or "the network's first interface"
        whom = f"no node of the cluster {cluster}" if cluster else "no node with services of kelek"
        raise CliError(
            f"{whom} was found on {where}, port {options['port']}; another --interface?", FAILED
        )


def found_json(found: DiscoveredNode) -> dict[str, Any]:
    return {
        "cluster": found.cluster,
        "node": found.node,
        "uuid": found.uuid.hex(),
        "services": {name: list(found.services.get(name, ())) for name in SERVICES},
    }


# ---- node watch ----


def watch(options: Options, output: str) -> None:
    """Runs until an interrupt or the timeout."""
    live = output == "text" and sys.stdout.isatty()
    until_ms = None
    if options["timeout_s"] is not None:
        until_ms = monotonic_ms() + int(options["timeout_s"] * 1000)
    silent: set[bytes] = set()
    with in_one_line(options), Node(options["name"] or "kelek", tuning=make_tuning(options)) as me:
        while until_ms is None or monotonic_ms() < until_ms:
            left_ms = QUIET_MS if until_ms is None else until_ms - monotonic_ms()
            for event in me.receive(max(0, min(QUIET_MS, left_ms))):
                note_silence(event, silent)
                if not live and event.kind not in SPOKEN:
                    show_event(event, output)
            if live:
                draw(me, silent)


def note_silence(event: Event, silent: set[bytes]) -> None:
    """Keeps the set of peers that did not answer PING."""
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
    lines = [
        (
            name_of(peer), f"v{int(peer.version)}", peer.endpoint,
            "silent" if peer.uuid in silent else "there",
            ",".join(groups.get(peer.uuid, ())),
            " ".join(f"{key}={value}" for key, value in sorted(peer.headers.items())),
        )
        for peer in peers
    ]  # fmt: skip
    click.clear()
    show_table(("node", "zre", "mailbox", "state", "groups", "headers"), lines)
    click.echo(f"discarded: {discarded(me.counters)}")
    sys.stdout.flush()


def discarded(counters: Mapping[str, int]) -> int:
    """The number of discarded messages and beacons."""
    return sum(
        count for name, count in counters.items() if name.startswith(DISCARDED) and name != OWN
    )


def name_of(peer: PeerInfo | None) -> str:
    """The name of a peer; version 1 has none."""
    return "" if peer is None else peer.name or peer.uuid.hex()[:6].upper()


# ---- node chat ----


def chat(group: str, options: Options) -> None:
    """Sends lines, prints received ones."""
    name = options["name"] or os.environ.get("USER", "") or "kelek"
    with in_one_line(options), Node(name, tuning=make_tuning(options)) as me:
        try:
            me.join(group)
        except ValueError as error:
            raise CliError(f"GROUP: {error}") from error
        company = threading.Event()
        listening = (me, group, options["peers"], company)
        listener = threading.Thread(target=listen, args=listening)
        listener.start()
        try:
            company.wait()
            for line in stdin():
                me.shout(group, line.rstrip(b"\r\n"))
            listener.join(options["stay_s"])
        finally:
            me.close()
            listener.join()


def listen(me: Node, group: str, peers: int, company: threading.Event) -> None:
    """Prints messages until the node is closed; reports when the group has enough members."""
    if not peers:
        company.set()
    for event in me.events():
        if event.group == group and event.kind is EventKind.SHOUT:
            text = b" ".join(event.content).decode(errors="replace")
            click.echo(f"{name_of(event.peer)}: {text}")
        elif event.group == group and event.kind in (EventKind.JOIN, EventKind.LEAVE):
            click.echo(f"* {name_of(event.peer)} {event.kind.value}")
        sys.stdout.flush()
        if len(me.peer_groups.get(group, ())) >= peers:
            company.set()
