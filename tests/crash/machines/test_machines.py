"""A cluster with keys on three machines, as docs/security.md sets it up, and an attacker.

long_machines.py has the long form: `./check --long machines`.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.actors.access.endpoints import ENDPOINTS
from kelek.actors.topology import topology
from kelek.tests.crash.machines.attacker import CASES, MARKER, RAW
from kelek.tests.crash.machines.capture import TcpFlow, frames, streams
from kelek.tests.crash.machines.machines import ADMIN, ATTACKER, NODES, Machines, Program
from kelek.tests.hosts import HostsMissing
from kelek.tests.waiting import wait_until

ELECTION_MS_MAX = 1000
RAFT = f"raft: {{election_timeout_ms: [600, {ELECTION_MS_MAX}]}}\n"
TIMEOUTS_MAX = 6  # Election timeouts until all clients have progress again.
DEADLINE_S = 30.0
PLAIN_TEXT = b"what only clients and nodes may read"
KEY = "keys/orders.key_secret"


def with_all_endpoints(text: str) -> str:
    """Adds the endpoints that the page's topology has not."""
    return re.sub(
        r"zerodb: {url: '(tcp://[\d.]+):7204'}",
        r"""broadcast_url: \1:7203
    zerodb: {url: '\1:7204', pull_url: '\1:7205', sub_url: '\1:7206', events_url: '\1:7207',
             jobs_url: '\1:7208'}
    broker: {clients_url: '\1:7209', workers_url: '\1:7210'}
    zre: {}""",
        text,
    )


def running(flags: str = "--one-process") -> Iterator[Machines]:
    try:
        made = Machines(RAFT, flags, with_all_endpoints)
    except HostsMissing as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    try:
        made.set_up()
        yield made
    finally:
        print(made.log())
        made.close()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    yield from running()


def endpoints(machines: Machines) -> dict[str, tuple[str, str]]:
    """The url and the key of each endpoint: `n1.zerodb.url`, and `n1.zre`."""
    found = topology.load(str(machines.shells[ADMIN].folder / "topology.yaml"))
    urls = {}
    for name, node in found.nodes.items():
        for endpoint in ENDPOINTS:
            section, _, last = endpoint.rpartition(".")
            url = getattr(getattr(node, section) if section else node, last)
            urls[f"{name}.{endpoint}"] = url, found.server_keys[url]
        file = machines.shells[name].folder / f"var/{name}/logs/zre_node.log"
        (address, port), *_ = re.findall(r"mailbox address=(\S+) port=(\d+)", file.read_text())
        urls[f"{name}.zre"] = f"tcp://{address}:{port}", node.server_key
    return urls


def attack(
    machines: Machines, urls: dict[str, tuple[str, str]], replay: tuple[str, bytes]
) -> dict[str, Any]:
    given = {"endpoints": urls, "replay": [replay[0], replay[1].hex()]}
    with machines.program(ATTACKER, "attacker") as attacker:
        attacker.send(json.dumps(given))
        found: dict[str, Any] = json.loads(attacker.receive())
    return found


def check_attacker(machines: Machines, file: Path) -> None:
    """Attacks all endpoints while all traffic goes to a file."""
    urls = endpoints(machines)
    with machines.capture(file) as capture:
        assert capture.receive() == "up"
        command = f"kelek log append '{PLAIN_TEXT.decode()}' --own-key {KEY}"
        machines.shells[ADMIN].ok(command)
        sent = wait_until(lambda: recorded(file), "the capture misses the client")
        assert sent is not None
        flow, stream = sent
        url = f"tcp://{flow.target}:{flow.target_port}"
        found = attack(machines, urls, (url, stream))
    assert set(found["outcomes"]) == {*CASES, RAW}
    for case, outcomes in found["outcomes"].items():
        expected = "refused" if case == "unknown key" else "failed"
        assert outcomes == dict.fromkeys(urls, expected), case
        assert found["received"][case] == dict.fromkeys(urls, 0), case
    captured = b"".join(frames(file))
    assert MARKER in captured, "the capture misses what has no CURVE"
    assert PLAIN_TEXT not in captured

    # Its replay gets the WELCOME of another session, and is closed.
    assert stream[12:17] == b"CURVE"
    answer = bytes.fromhex(found["replay"]["received"])
    assert found["replay"]["is_closed"]
    assert b"\x07WELCOME" in answer
    assert b"\x05READY" not in answer
    entries = machines.shells[ADMIN].ok("kelek log entries -o json").splitlines()
    data = [json.loads(line).get("data") for line in entries]
    assert data.count(PLAIN_TEXT.decode()) == 1
    assert MARKER.decode() not in data


def recorded(file: Path) -> tuple[TcpFlow, bytes] | None:
    """What the client on the operator's machine sent to the leader, two messages at least; None:
    the other process has not written it yet."""
    found = [
        (flow, stream)
        for flow, stream in streams(file).items()
        if flow.source == "10.0.0.4"
        and flow.target_port == 7201
        and stream.count(b"\x07MESSAGE") >= 2
    ]
    return max(found, key=lambda of: len(of[1]), default=None)


def progress(clients: Program, count: int = 20) -> dict[str, Any]:
    clients.send(f"more {count}")
    found: dict[str, Any] = json.loads(clients.receive())
    assert found["problems"] == []
    return found


def ended(clients: Program) -> None:
    """Everything that was acknowledged is there, once."""
    clients.send("end")
    found = json.loads(clients.receive())
    problems = {key: found[key][:10] for key in ("lost", "doubled", "problems")}
    assert not any(problems.values()), problems


def test_an_attacker_gets_nothing(machines: Machines, tmp_path: Path) -> None:
    check_attacker(machines, tmp_path / "frames")


def test_the_leaders_machine_is_killed(machines: Machines) -> None:
    with machines.program(ADMIN, "clients", "topology.yaml", KEY) as clients:
        progress(clients)
        leader = machines.leader()
        assert machines.kill(leader) > 0
        gap_s = progress(clients)["gap_s"]
        assert gap_s < TIMEOUTS_MAX * ELECTION_MS_MAX / 1000
        machines.start(leader)
        progress(clients)
        ended(clients)


def test_a_revoked_key(machines: Machines) -> None:
    """A copy of the allowed keys reaches the nodes."""
    admin = machines.shells[ADMIN]
    admin.ok("kelek keys revoke keys/allowed orders")
    for node in NODES:
        machines.copy_allowed(node)
    logs = [machines.shells[node].folder / f"var/{node}/logs/raft_peer.log" for node in NODES]
    deadline_s = time.monotonic() + DEADLINE_S
    while not all("key-revoked name=orders" in path.read_text() for path in logs):
        assert time.monotonic() < deadline_s
        machines.status("n1", "raft_peer")  # It pauses.
    refused = admin.run(f"kelek log append no --own-key {KEY} --timeout 3")
    assert refused.returncode != 0
    assert "the server refused the key" in refused.stderr
