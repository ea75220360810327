"""The long form: a process for each role, failures of machines and links, Spark, the demo."""

import importlib.util
import json
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kelek.examples.demo.flights import PACKAGE
from kelek.tests.conftest import ROOT, Shell
from kelek.tests.crash.machines import demo_nodes
from kelek.tests.crash.machines.machines import ADMIN, NODES, Machines
from kelek.tests.crash.machines.test_machines import (
    ELECTION_MS_MAX,
    KEY,
    RAFT,
    TIMEOUTS_MAX,
    check_attacker,
    ended,
    progress,
    running,
)
from kelek.tests.hosts import Hosts, HostsMissing

ROUNDS = 12
CAUGHT_UP_S = 60.0
CUT_S = 15.0
HEALED_S = 6.0  # TCP alone would repeat its data 25 s after the cut, the next time after 51 s.
SERVICE, CALLS = "kelek.tests.clients.broker.services:echo", 100
SERVICE_S = 15.0  # A broker misses its worker after 10 s.
SPARK_S = 900.0  # About 15 s on an idle machine.
DEMO_S = 1800.0  # About a minute on an idle machine.
ANSWERS = {"each flight once, in order": "yes", "each answered once, right": "yes"}
SPARK = "tables:8,3221225471:rw"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    yield from running(flags="")


def wait_applied(machines: Machines, index: int, *nodes: str) -> float:
    """Waits until these nodes have applied an index; returns how long it took, in s."""
    begun = time.monotonic()
    while True:
        rows = [machines.status(node, "state_machine") for node in nodes]
        if all((row.get("applied_index") or 0) >= index for row in rows):
            return time.monotonic() - begun
        assert time.monotonic() < begun + CAUGHT_UP_S, rows


def applied_index(machines: Machines) -> int:
    """The newest of all nodes."""
    rows = [machines.status(node, "state_machine") for node in NODES]
    return max(row.get("applied_index") or 0 for row in rows)


def test_an_attacker_gets_nothing(machines: Machines, tmp_path: Path) -> None:
    check_attacker(machines, tmp_path / "frames")


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_machine_is_cut_off(machines: Machines, victim: str) -> None:
    with machines.program(ADMIN, "clients", "topology.yaml", KEY) as clients:
        progress(clients)
        leader = machines.leader()
        name = leader if victim == "leader" else next(it for it in NODES if it != leader)
        machines.cut(name)
        begun = time.monotonic()
        gaps = []
        while time.monotonic() < begun + CUT_S:
            gaps.append(progress(clients)["gap_s"])
        index = applied_index(machines)
        machines.heal(name)
        healed_s = wait_applied(machines, index, name)
        gaps.append(progress(clients)["gap_s"])
        ended(clients)
    assert max(gaps) < TIMEOUTS_MAX * ELECTION_MS_MAX / 1000, gaps
    assert healed_s < HEALED_S, (healed_s, gaps)


def test_kill_drills(machines: Machines) -> None:
    """A process, or all of a machine, again and again."""
    dice = Random(18)
    gaps = []
    with machines.program(ADMIN, "clients", "topology.yaml", KEY) as clients:
        for _ in range(ROUNDS):
            progress(clients)
            leader = machines.leader()
            node = leader if dice.random() < 0.5 else dice.choice(NODES)
            if dice.random() < 0.5:
                machines.kill(node)
                gaps.append(progress(clients)["gap_s"])
                machines.start(node)
            else:
                role = dice.choice(("raft_peer", "zerodb_server", "table_worker", "state_machine"))
                machines.kill_process(node, role)
            gaps.append(progress(clients)["gap_s"])
        ended(clients)
    wait_applied(machines, applied_index(machines), *NODES)
    assert max(gaps) < TIMEOUTS_MAX * ELECTION_MS_MAX / 1000, gaps


def test_ipv6() -> None:
    """All commands of the page, and a writer while the leader's machine is killed."""
    try:
        made = Machines(RAFT, "--one-process", ipv6=True)
    except HostsMissing as reason:
        pytest.skip(f"no IPv6 here: {reason}")
    try:
        made.set_up()
        with made.program(ADMIN, "clients", "topology.yaml", KEY) as clients:
            progress(clients)
            made.kill(made.leader())
            assert progress(clients)["gap_s"] < TIMEOUTS_MAX * ELECTION_MS_MAX / 1000
            ended(clients)
    finally:
        made.close()


def test_services(machines: Machines) -> None:
    """Two workers: one is killed, and then the machines of two brokers, one after the other."""
    admin = machines.shells[ADMIN]
    admin.ok("kelek keys new echo")
    grants = "--grant services:echo --grant worker:echo"
    admin.ok(f"kelek keys allow keys/allowed keys/echo.key {grants}")
    for node in NODES:
        machines.copy_allowed(node)
    key = "keys/echo.key_secret"
    python = admin.folder / "bin/python"
    worker = f"{python} -m kelek.console.kelek_cli worker run {SERVICE} --own-key {key}"
    workers = [admin.start(worker) for _ in range(2)]
    try:
        with machines.program(ADMIN, "clients", "topology.yaml", key, "--services") as caller:
            gaps = [progress(caller, CALLS)["gap_s"]]
            workers[0].kill()
            gaps.append(progress(caller, CALLS)["gap_s"])
            for node in NODES[:2]:
                machines.kill(node)
                gaps.append(progress(caller, CALLS)["gap_s"])
                machines.start(node)
            ended(caller)
    finally:
        for process in workers:
            with process:
                process.kill()
    assert max(gaps) < SERVICE_S, gaps


def test_a_spark_job(machines: Machines) -> None:
    """examples/secure/spark_job.py on the operator's machine."""
    pytest.importorskip("pyspark")
    admin = machines.shells[ADMIN]
    admin.ok("kelek keys new flights")
    admin.ok(f"kelek keys allow keys/allowed keys/flights.key --grant {SPARK} --grant jobs")
    for node in NODES:
        machines.copy_allowed(node)
    text = (ROOT / "examples/secure/spark_job.py").read_text()
    for number, old in enumerate((7621, 7622, 7623), 1):
        assert f"127.0.0.1:{old}" in text
        text = text.replace(f"127.0.0.1:{old}", f"10.0.0.{number}:7204")
    text = text.replace('"7"', '"8"')  # The tests before wrote table 7.
    admin.ok("kelek table open 8")
    (admin.folder / "spark_job.py").write_text(text)
    shown = admin.ok("SPARK_LOCAL_IP=127.0.0.1 python spark_job.py .", timeout_s=SPARK_S)
    assert shown.endswith("table 7 has 1000 rows\n"), shown


def test_the_demo() -> None:
    """`./demo --short --secure`, each node on a machine of its own; one more joins on a fourth."""
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip(f"the flights are not installed: ./check --long machines installs {PACKAGE}")
    try:
        hosts = Hosts(len(NODES) + 1, "10.0.0")
    except HostsMissing as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    admin = len(NODES)
    with hosts, tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as name:
        folder, run_dir = Path(name) / "demo", Path(name) / "run"
        folder.mkdir()
        run_dir.mkdir()
        shell = Shell(folder, run_dir, {}, hosts.within(admin))
        shell.environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        shutil.copy(ROOT / "topology.yaml", folder)
        # The commands begin on the operator's machine: all are in its user namespace.
        user = {"-U", "--preserve-credentials"}
        machines: dict[str, tuple[str, list[str]]] = {"": (hosts.address(admin), [])}
        for number, node in enumerate(NODES):
            within = [word for word in hosts.within(number) if word not in user]
            machines[node] = hosts.address(number), within
        words = json.dumps(machines), "--short", "--secure"
        command = shlex.join(["python", "-P", "-m", demo_nodes.__name__, *words])
        try:
            shown = shell.ok(command, timeout_s=DEMO_S)
        finally:
            for log in folder.glob("var/demo/*.log"):
                print(f"{log.name}: {log.read_text()[-4000:]}")
            for number in range(admin + 1):
                hosts.kill(number)
    for question, answer in ANSWERS.items():
        assert re.search(rf"  {question} +{answer}\n", shown), shown
    assert re.search(r"  the pipeline in Spark +[\d.]+ s\n", shown), shown
