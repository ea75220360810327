"""A supervisor of dummies in a process of its own: driver.py JSON.

JSON: {run_dir, data_dir, nodes, faults, one_process, bootstrap, backoff_ms}
"""

import json
import os
import sys
from pathlib import Path

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import supervisor
from kelek.actors.runtime.plan import ActorPlan, NodePlan, UnitPlan
from kelek.actors.runtime.supervisor import StartOptions, Supervisor
from kelek.tests.actors.node_settings import node_settings


def node_plan(name: str, told: dict[str, object]) -> NodePlan:
    data_dir = f"{told['data_dir']}/{name}"

    def actor(role: str, stop_rank: int) -> ActorPlan:
        return ActorPlan(role, role, "dummy", data_dir, stop_rank)

    pair = (actor("writer", 1), actor("peer", 0))
    single = (actor("machine", 1),)
    units = (
        (UnitPlan(name, "node", (*pair, *single)),)
        if told.get("one_process")
        else (UnitPlan(name, "pair", pair), UnitPlan(name, "machine", single))
    )
    places = {"data_dir": "t.yaml:1:1: data"}
    return NodePlan(name, "test", data_dir, node_settings(), places, units)


def main() -> int:
    told = json.loads(sys.argv[1])
    os.environ["FAULTS"] = json.dumps(told.get("faults", {}))
    supervisor.BACKOFF_MS = tuple(told.get("backoff_ms", supervisor.BACKOFF_MS))
    plans = [node_plan(name, told) for name in told["nodes"]]
    options = StartOptions(
        "t.yaml",
        Path(told["run_dir"]),
        bool(told.get("one_process")),
        bool(told.get("bootstrap")),
    )
    try:
        return Supervisor(plans, options).run()
    except OperatorError as error:
        print(f"supervisor: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
