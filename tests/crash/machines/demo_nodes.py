"""`./demo --secure` with its nodes on machines of their own: `demo_nodes.py MACHINES OPTIONS...`.

It runs on the operator's machine. MACHINES is JSON, by node: its address, and what its commands are
put behind. The node "" is the operator's machine, on which the node that the demo adds runs. The
keys lie in one folder, as those of the demo do.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml

from kelek.actors.topology import topology as topologies
from kelek.actors.topology.topology import Topology
from kelek.examples.demo import __main__ as demo
from kelek.examples.demo import changes, cluster, keys, tables

HERE = "127.0.0.1"
PATIENCE_S = 900.0  # Of everything that the demo waits for: the machine may be busy.
COMMAND = f"""
from kelek.console.admin import start, supervisor_cli
start.DETACH_S = {PATIENCE_S}
supervisor_cli.main()
"""


class DemoMachines:
    """What the demo does otherwise."""

    def __init__(self, machines: dict[str, tuple[str, list[str]]]) -> None:
        self._machines = machines
        self._secured = keys.secured
        cluster.begin = self.begin
        cluster.free_url = self.new_url
        keys.secured = self.secured
        for module, name in ((demo, "APPLY_S"), (changes, "APPLY_S"), (tables, "BACK_S")):
            setattr(module, name, PATIENCE_S)

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """A command of `supervisor`; on a node's machine if it starts the node."""
        starts = words[0] == "start" and "--node" in words
        node = words[words.index("--node") + 1] if starts else ""
        _, within = self._machines.get(node, self._machines[""])
        return subprocess.Popen(
            [*within, sys.executable, "-P", "-c", COMMAND, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def new_url(self, known: str, used: set[str]) -> str:
        return re.sub(r"//[^:]+", f"//{self._machines[''][0]}", known)

    def secured(self, topology: Topology) -> Topology:
        """The topology with keys, and with the addresses of the machines."""
        path = Path(self._secured(topology).path)
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, node in text["nodes"].items():
            moved = json.dumps(node).replace(HERE, self._machines[name][0])
            text["nodes"][name] = {**json.loads(moved), "zre": {}}
        path.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
        return topologies.load(str(path))


if __name__ == "__main__":
    DemoMachines(json.loads(sys.argv[1]))
    demo.main(sys.argv[2:], prog_name="demo_nodes")
