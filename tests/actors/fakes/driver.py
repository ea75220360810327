"""A supervisor of dummy actors in its own process: driver.py JSON.

JSON: {run_dir, data_dir, nodes, faults, one_process, bootstrap, backoff_ms, insecure}
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import supervisor
from kelek.actors.runtime.plan import ActorPlan, NodePlan, UnitPlan
from kelek.actors.runtime.supervisor import StartOptions, Supervisor
from kelek.actors.topology.security import OpenEndpoints
from kelek.tests.actors.node_settings import node_settings


def node_plan(name: str, wanted: dict[str, Any]) -> NodePlan:
    data_dir = f"{wanted['data_dir']}/{name}"

    def actor(role: str, stop_rank: int) -> ActorPlan:
        return ActorPlan(role, role, "dummy", data_dir, stop_rank)

    pair = (actor("writer", 1), actor("peer", 0))
    single = (actor("machine", 1),)
    units = (
        (UnitPlan(name, "node", (*pair, *single)),)
        if wanted.get("one_process")
        else (UnitPlan(name, "pair", pair), UnitPlan(name, "machine", single))
    )
    places = {"data_dir": "t.yaml:1:1: data"}
    unsafe = OpenEndpoints(wanted.get("insecure", {}))
    return NodePlan(name, "test", data_dir, node_settings(), places, units, unsafe)


def main() -> int:
    wanted = json.loads(sys.argv[1])
    os.environ["FAULTS"] = json.dumps(wanted.get("faults", {}))
    supervisor.RETRY_MS = wanted.get("retry_ms", supervisor.RETRY_MS)
    supervisor.BACKOFF_MS = tuple(wanted.get("backoff_ms", supervisor.BACKOFF_MS))
    plans = [node_plan(name, wanted) for name in wanted["nodes"]]
    options = StartOptions(
        "t.yaml",
        Path(wanted["run_dir"]),
        bool(wanted.get("one_process")),
        bool(wanted.get("bootstrap")),
        verbose=True,
    )
    try:
        return Supervisor(plans, options).run()
    except OperatorError as error:
        print(f"supervisor: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
