"""Clusters whose nodes discover each other and store presence in their log or a table."""

import base64
import json
import os
import signal
from contextlib import suppress
from typing import Any

import kelek
from kelek.bench.ports import free_udp_port
from kelek.protocols.errors import RemoteProtocolError
from kelek.protocols.zre.presence import Presence, PresenceEvent, decode_presence
from kelek.tests.waiting import wait_until

DEADLINE_S = 60
ZRE = "    zre: {interface: 127.0.0.1, broadcast_address: 127.255.255.255, log_service: %s}\n"


def nodes_of(shell: Any, role: str = "zre_node") -> dict[str, dict[str, Any]]:
    return {row["node"]: row for row in shell.status() if row["role"] == role}


def stored_presence(shell: Any) -> list[Presence]:
    """The presence entries of the log."""
    found = []
    for line in shell.ok(
        "kelek log entries --topology topology.yaml --after 0 -o json"
    ).splitlines():
        entry = json.loads(line)
        with suppress(RemoteProtocolError):
            found.append(decode_presence([base64.b64decode(entry.get("data_base64", ""))]))
    return found


def test_presence_is_stored_in_the_log(shell: Any) -> None:
    """A killed node returns with a new UUID; the log has its EXIT and its ENTER."""
    path = shell.folder / "topology.yaml"
    text = path.read_text()
    for node in ("n1", "n2", "n3"):
        text = text.replace(
            f"  {node}:\n", f"  {node}:\n{ZRE % ('log' if node == 'n1' else 'off')}"
        )
    times = "beacon_ms: 200, evasive_ms: 1000, silent_ms: 1500, expired_ms: 3000"
    port = free_udp_port()
    path.write_text(f"{text}zre: {{port: {port}, {times}}}\n")
    shell.ok("supervisor start topology.yaml --detach")

    def all_see_each_other() -> bool:
        rows = nodes_of(shell)
        return len(rows) == 3 and all(row.get("peers") == 2 for row in rows.values())

    wait_until(all_see_each_other, "they do not discover each other")

    def stored(event: PresenceEvent) -> set[str]:
        """The names of peers with this event."""
        return {it.peer_name for it in stored_presence(shell) if it.event is event}

    wait_until(lambda: stored(PresenceEvent.ENTER) == {"n1", "n2", "n3"}, "no ENTER is stored")
    os.kill(nodes_of(shell)["n2"]["pid"], signal.SIGKILL)
    wait_until(lambda: "n2" in stored(PresenceEvent.EXIT), "no EXIT is stored")
    wait_until(all_see_each_other, "it does not come back")

    def all_are_found() -> bool:
        """One command may miss a late answer: it ends shortly after the first one."""
        found = shell.ok(f"kelek discover demo --interface lo --port {port} --timeout 60")
        rows = [line.split()[:3] for line in found.splitlines()]
        return all(["demo", node, "X-KELEK-LOG"] in rows for node in ("n1", "n2", "n3"))

    wait_until(all_are_found, "they are not discovered")


def test_presence_is_stored_in_a_table(shell: Any) -> None:
    """A visitor discovers a node, and finds its own ENTER in the node's table."""
    lines = (
        "cluster: hall",
        "zre: {port: 5670, log_table: 7}",
        "nodes:",
        "  n1:",
        "    url: tcp://127.0.0.1:7201",
        "    peer_url: tcp://127.0.0.1:7221",
        '    zerodb: {url: "tcp://127.0.0.1:7100"}',
        "    zre: {interface: lo, log_service: table}",
    )
    (shell.folder / "hall.yaml").write_text(shell.translate("\n".join(lines)))
    shell.ok("supervisor start hall.yaml --one-process --detach")
    port = int(shell.translate("5670"))
    tuning = kelek.NodeTuning(port=port, interface="lo")
    url = f"zre://hall?interface=lo&port={port}&timeout_ms={DEADLINE_S * 1000}"
    with kelek.Node("visitor", tuning=tuning) as visitor, kelek.Table(url, 7) as table:

        def is_stored() -> bool:
            found = [decode_presence([value]) for _, value in table.scan()]
            return (PresenceEvent.ENTER, visitor.uuid) in {(it.event, it.peer) for it in found}

        wait_until(is_stored, "no ENTER is in the table")
