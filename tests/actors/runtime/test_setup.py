"""Setup files of actors: written, read, and refused by another version."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import plan
from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology import topology
from kelek.tests.actors.topology.test_topology import GOOD, write_topology


def test_a_setup_file_is_read_as_written(tmp_path: Path) -> None:
    found = topology.load(write_topology(tmp_path, GOOD))
    node = plan.node_plan(found, "a", one_process=False)
    setup = ActorSetup(
        "a", "x", "x", "c", "/r", "/d", "ipc://c", 1 << 62, False, node.settings, node.places
    )
    path = tmp_path / "setup.json"
    path.write_text(setup.to_json())
    assert ActorSetup.load(str(path)) == setup
    assert json.loads(setup.to_json())["epoch"] == 1 << 62


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda raft: raft.update(heartbeat_ms="70"), "raft.heartbeat_ms: is not int"),
        (lambda raft: raft.pop("pre_vote"), "raft.pre_vote: is missing"),
        (lambda raft: raft.update(later=1), "raft.later: is unknown"),
        (lambda raft: raft.update(election_timeout_ms=3), "election_timeout_ms: is not tuple"),
    ],
)
def test_a_setup_of_another_version_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    found = topology.load(write_topology(tmp_path, GOOD))
    node = plan.node_plan(found, "a", one_process=False)
    setup = ActorSetup("a", "x", "x", "c", "/r", "/d", "ipc://c", 7, False, node.settings, {})
    value = json.loads(setup.to_json())
    change(value["settings"]["raft"])
    path = tmp_path / "setup.json"
    path.write_text(json.dumps(value))
    with pytest.raises(OperatorError) as error:
        ActorSetup.load(str(path))
    assert str(error.value).startswith(f"{path}: settings.raft.")
    assert problem in str(error.value)
    path.write_text("{")
    with pytest.raises(OperatorError, match="not a setup file"):
        ActorSetup.load(str(path))
