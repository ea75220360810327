"""The processes of a node, planned from its topology."""

from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import plan
from kelek.actors.topology import topology
from kelek.actors.topology.settings import SparkSettings
from kelek.tests.actors.topology.test_topology import GOOD, write_topology


def test_the_plan_has_the_actors_of_each_section(tmp_path: Path) -> None:
    text = GOOD.replace("writer: inline", "writer: process")
    found = topology.load(write_topology(tmp_path, text))
    units = plan.node_plan(found, "a", one_process=False).units
    assert [[actor.role for actor in unit.actors] for unit in units] == [
        ["log_writer", "raft_peer"],
        ["snapshot_sender"],
        ["state_machine"],
        ["table_worker"],
        ["table_worker"],
        ["zerodb_server"],
        ["job_server"],
        ["broker"],
        ["zre_beacon"],
        ["zre_node"],
        ["zre_log"],
    ]
    assert [unit.name for unit in units[3:5]] == ["table_worker", "table_worker.2"]
    assert len(plan.node_plan(found, "b", one_process=False).units) == 3, "it has no tables"
    (unit,) = plan.node_plan(found, "a", one_process=True).units
    assert len(unit.actors) == 12
    spark = "zerodb:\n  mapper: wasm\n  spark: {memory_bytes: 2 GiB}"
    found = topology.load(write_topology(tmp_path, GOOD.replace("zerodb:\n  workers: 2", spark)))
    assert found.zerodb.spark == SparkSettings(memory_bytes=2 << 30)
    units = plan.node_plan(found, "a", one_process=False).units
    assert "spark_job" in [unit.name for unit in units]
    assert len(plan.node_plan(found, "b", one_process=False).units) == 3, "it has no tables"
    for own in ("thread", "inline"):
        found = topology.load(
            write_topology(tmp_path, GOOD.replace("writer: inline", f"writer: {own}"))
        )
        assert len(plan.node_plan(found, "a", one_process=False).units[0].actors) == 1


@pytest.mark.parametrize(
    ("section", "extra", "package"),
    [
        ("metrics: '127.0.0.1:9100'", "metrics", "prometheus_client"),
        ("web: {address: '127.0.0.1:7080'}", "web", "starlette"),
    ],
)
def test_a_missing_extra_is_an_error_before_anything_starts(
    section: str, extra: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "url: 'tcp://127.0.0.1:7201', peer_url: 'tcp://127.0.0.1:7221'"
    text = f"cluster: demo\nnodes: {{a: {{{url}, {section}}}}}\n"
    found = topology.load(write_topology(tmp_path, text))
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    with pytest.raises(OperatorError, match=rf"2:.*: nodes\.a\.{extra}.*kelek\[{extra}\]") as error:
        plan.node_plans(found, ["a"], one_process=False)
    assert f"`{extra}` needs {package}, which is not installed" in str(error.value)
