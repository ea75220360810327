"""Three nodes with supervisors of their own: what each serves while others are killed."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

import kelek
from kelek.bench.ports import free_ports

parser = pytest.importorskip("prometheus_client.parser", reason="kelek[metrics] is not installed")

DEADLINE_S = 60.0
SECONDS = {  # Histograms, each with a process.
    "kelek_raft_commit_seconds": "raft_peer",
    "kelek_raft_fsync_seconds": "raft_peer",
    "kelek_apply_seconds": "table_worker",
    "kelek_table_read_seconds": "zerodb_server",
    "kelek_table_write_seconds": "zerodb_server",
}
NODES = ("n1", "n2", "n3")


def fetch(port: int, path: str) -> tuple[int, str]:
    """(status, body); the status is 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait(port: int, path: str, is_so: Callable[[int, str], bool]) -> str:
    """The first page for which the condition holds."""
    until = time.monotonic() + DEADLINE_S
    while not is_so(*(found := fetch(port, path))):
        assert time.monotonic() < until, found
        select.select([], [], [], 0.1)  # Leaves the processor to the cluster.
    return found[1]


def value(text: str, name: str, role: str = "raft_peer") -> float:
    """The sample of a process in the text of /metrics."""
    (found,) = (
        sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels["role"] == role
    )
    return float(found)


def test_a_killed_node_is_seen_by_the_others(shell: Any) -> None:
    ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
    path = shell.folder / "topology.yaml"
    text = re.sub(
        r"(?m)^  (n\d):$", lambda it: f"{it[0]}\n    metrics: 127.0.0.1:{ports[it[1]]}",
        path.read_text(),
    )  # fmt: skip
    path.write_text(text)
    for name in NODES:
        shell.ok(f"supervisor start topology.yaml --node {name} --one-process --detach")
    for port in ports.values():
        wait(port, "/readyz", lambda status, _: status == 200)
    shell.ok("kelek log append one two three")

    def leads(name: str) -> bool:
        return value(fetch(ports[name], "/metrics")[1], "kelek_raft_leader") == 1.0

    wait(ports["n1"], "/metrics", lambda _, text: value(text, "kelek_raft_commit_index") >= 4)
    (leader,) = filter(leads, NODES)
    first, second = (name for name in NODES if name != leader)
    pids = {row["nodes"][0]: row["pid"] for row in shell.status() if row["role"] == "supervisor"}
    os.kill(pids[first], signal.SIGKILL)
    ready = wait(ports[leader], "/readyz", lambda _, text: f"note: down {first}" in text)
    assert ready.startswith("ready\n"), "a majority serves"
    assert fetch(ports[first], "/livez")[0] == 0
    os.kill(pids[second], signal.SIGKILL)
    lone = wait(ports[leader], "/readyz", lambda status, _: status == 503)
    assert "problem: no leader of the log" in lone
    assert fetch(ports[leader], "/livez") == (200, "alive\n")
    page = fetch(ports[leader], "/metrics")[1]
    assert value(page, "kelek_raft_has_leader") == 0.0
    assert value(page, "kelek_process_up", "metrics") == 1.0
    shown = json.loads(shell.run("supervisor status topology.yaml -o json").stdout)
    (row,) = (row for row in shown["processes"] if row["role"] == "raft_peer")
    assert value(page, "kelek_raft_term") == row["term"], "the numbers of `supervisor status`"


def test_durations_of_real_requests_are_counted(shell: Any) -> None:
    """One node with tables."""
    port, url, peer_url, tables = free_ports(4)
    text = "cluster: m\ndata: var\nnodes:\n  n1:\n" + "".join(
        f"    {line}\n"
        for line in (
            f"url: tcp://127.0.0.1:{url}", f"peer_url: tcp://127.0.0.1:{peer_url}",
            f"zerodb: {{url: 'tcp://127.0.0.1:{tables}'}}", f"metrics: 127.0.0.1:{port}",
        )
    )  # fmt: skip
    (shell.folder / "one.yaml").write_text(text)
    shell.ok("supervisor start one.yaml --one-process --detach")
    with kelek.Table([f"tcp://127.0.0.1:{tables}"], 7) as table:
        for number in range(5):
            table.put(b"%d" % number, b"v")
            assert table.get(b"%d" % number) == b"v"
    page = wait(
        port, "/metrics", lambda _, text: value(text, "kelek_table_read_seconds_count",
                                                "zerodb_server") >= 5
        and value(text, "kelek_apply_seconds_count", "table_worker") >= 5
        and value(text, "kelek_raft_commit_seconds_count") >= 5
        and value(text, "kelek_raft_fsync_seconds_count") >= 5,
    )  # fmt: skip
    assert value(page, "kelek_table_write_seconds_count", "zerodb_server") == 5
    assert value(page, "kelek_raft_commit_seconds_count") >= 5
    assert value(page, "kelek_raft_fsync_seconds_count") >= 5
    assert value(page, "kelek_apply_seconds_count", "table_worker") >= 5
    for name, role in SECONDS.items():
        total = value(page, f"{name}_sum", role)
        assert 0 < total < 60 * value(page, f"{name}_count", role), f"{name} is no duration"
    if shutil.which("promtool"):
        lint = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
