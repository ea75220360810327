"""The processes of a node, planned from its topology."""

from pathlib import Path

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
