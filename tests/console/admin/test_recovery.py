"""`kelek recover`: from one node's data to a cluster that takes updates again."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kelek.tests.conftest import demo_shell
from kelek.tests.waiting import wait_until

DEADLINE_S = 60.0
RECOVER = "kelek recover --from n1 --cluster anew"
CONFIRM = " --lose-what-only-others-have"


@pytest.fixture(scope="module", params=[""])
def burnt(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Where a cluster with these settings of its log has run; n2 and n3 have burnt."""
    with demo_shell(tmp_path_factory.mktemp("burnt")) as shell:
        topology = shell.folder / "topology.yaml"
        text = topology.read_text().replace("log: {", f"log: {{{request.param}")
        topology.write_text(text)
        shell.ok("supervisor start --detach --bootstrap")
        wait_until(lambda: shell.run("kelek log info").returncode == 0)  # Beside other tests.
        for lines in (b"first\n", b"".join(b"%d\n" % number for number in range(999))):
            loaded = json.loads(shell.ok("kelek log load - --timeout 60 -o json", lines))
            wait_applied(shell, loaded["commit_index"])  # The others would do without n1.
        shell.ok("supervisor stop")
        for node in ("n2", "n3"):
            shutil.rmtree(shell.folder / "var/demo" / node)
        yield shell.folder


@pytest.fixture
def lost(shell: Any, burnt: Path) -> Any:
    """A copy of it, with the same addresses: no other node uses them meanwhile."""
    shutil.copytree(burnt / "var", shell.folder / "var")
    shutil.copy(burnt / "topology.yaml", shell.folder)
    return shell


def wait_applied(shell: Any, index: int) -> None:
    """Until n1 has applied it."""
    until = time.monotonic() + DEADLINE_S
    while True:
        node = json.loads(shell.ok("kelek log info -o json"))["nodes"][0]
        if (node["applied_index"] or 0) >= index:
            return
        assert time.monotonic() < until, f"{index} was never applied"


def alone(shell: Any) -> None:
    """The topology of the new cluster: n1 alone."""
    topology: Path = shell.folder / "topology.yaml"
    text = topology.read_text().replace("cluster: demo", "cluster: anew")
    topology.write_text(text[: text.index("  n2:")])


@pytest.mark.parametrize("burnt", ["", "snapshot_entries: 100, "], indirect=True)
def test_it_goes_on_from_one_nodes_data(lost: Any, request: pytest.FixtureRequest) -> None:
    before = lost.ok("kelek log dump var/demo/n1 -o json").splitlines()
    done = lost.run(RECOVER + CONFIRM + " -o json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert done.stderr.count("WARNING") == 4
    [audit] = (lost.folder / "var/demo/n1/recovery.log").read_text().splitlines()
    found = json.loads(audit)
    assert (found["old_cluster"], found["new_cluster"]) == ("demo", "anew")
    assert found["old_members"] == ["n1", "n2", "n3"]
    kept = lost.folder / "var/demo/n1" / found["kept"]
    assert lost.ok(f"kelek log dump {kept} -o json").splitlines() == before
    after = lost.ok("kelek log dump var/demo/n1 -o json").splitlines()
    assert after[:-1] == before
    assert json.loads(after[-1])["kind"] == "config"
    assert report["term"] > json.loads(before[-1])["term"]

    alone(lost)
    lost.ok("supervisor start --detach")
    index = int(lost.ok("kelek log append goes-on"))
    assert index > report["last_index"]
    wait_applied(lost, index)
    if not request.node.callspec.params["burnt"]:  # Else they are in the snapshot's state.
        assert lost.ok("kelek log entries --after 1 -o json").count('"state"') == 1001
    members = json.loads(lost.ok("supervisor status -o json"))["processes"]
    [peer] = [row for row in members if row["role"] == "raft_peer"]
    assert peer["members"].keys() == {"n1"}
    assert peer["term"] > report["term"] - 1


def test_nothing_happens_without_the_confirmation(lost: Any) -> None:
    """Nor is the data read: the warnings come at once, also of what could not be recovered."""
    segment = max((lost.folder / "var/demo/n1/raft/log").glob("*.seg"))
    with segment.open("r+b") as file:
        file.seek(4096 + 8)
        file.write(b"\xff" * 64)
    before = sorted(path.name for path in (lost.folder / "var/demo/n1").iterdir())
    done = lost.run(RECOVER)
    assert done.returncode == 2
    assert done.stderr.count("WARNING") == 4
    assert "nothing was changed; repeat it with --lose-what-only-others-have" in done.stderr
    assert sorted(path.name for path in (lost.folder / "var/demo/n1").iterdir()) == before
    damaged = lost.run(RECOVER + CONFIRM)
    assert damaged.returncode == 1
    assert "take another node, whose data is sound" in damaged.stderr
    assert sorted(path.name for path in (lost.folder / "var/demo/n1").iterdir()) == before


def test_what_runs_or_is_damaged_is_not_recovered(lost: Any) -> None:
    for words, line in {
        "--from n9 --cluster anew": "--from: unknown node 'n9'",
        "--from n1 --cluster demo": "is the ident of the lost cluster",
        "--from n1 --cluster 'a b'": "is not a name",
        "--from n2 --cluster anew": "the directory does not exist",
    }.items():
        done = lost.run(f"kelek recover {words}{CONFIRM}")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
        assert line in done.stderr
    lost.ok("supervisor start --detach --node n2")
    answers = lost.run(RECOVER + CONFIRM)
    assert answers.returncode == 1
    assert "n2: answers" in answers.stderr
    lost.ok("supervisor start --detach --node n1")
    runs = lost.run(RECOVER + CONFIRM)
    assert runs.returncode == 1
    assert "writes here already; stop it first" in runs.stderr
