"""The demo with keys (`./demo --secure`): each node and the demo get a key, each connection CURVE.

The topology, the keys and the keys that the nodes allow lie beside the data. docs/security.md says
what a real cluster does otherwise: each secret key stays on its own machine.
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from kelek.actors.topology import topology as topologies
from kelek.actors.topology.topology import Topology
from kelek.console.cli_errors import CliError

DEMO = "demo"
SPARK = "3221225471-4294967294"  # Spark notes its snapshots in the first, and fills the others.
GRANTS = ("admin", "log.read", "log.append", f"tables:1-2,{SPARK}:rw", "jobs", "services:*",
          "worker:*", "observer")  # fmt: skip
TOPOLOGY = "secure.yaml"


def secured(topology: Topology) -> Topology:
    """Writes keys and a topology that uses them into the data directory; returns the topology.

    The cluster's own keys are new. Raises CliError, OperatorError.
    """
    folder = topology.data_dir
    for name in (*topology.own_nodes, DEMO):
        make_key(folder, name)
    options = [word for grant in GRANTS for word in ("--grant", grant)]
    _keys(folder, "allow", "keys/allowed", f"keys/{DEMO}.key", *options)
    text = yaml.safe_load(Path(topology.path).read_text(encoding="utf-8"))
    text["data"] = "."
    text["security"] = {"key_file": f"keys/{DEMO}.key_secret"}
    path = folder / TOPOLOGY
    path.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    return topologies.load(str(path))


def make_key(folder: Path, name: str) -> None:
    """Makes keys/NAME.key and keys/NAME.key_secret in a folder."""
    _keys(folder, "new", name)


def public_key(folder: Path, name: str) -> str:
    return str(json.loads(_keys(folder, "show", f"keys/{name}.key", "-o", "json"))["key"])


def _keys(folder: Path, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "keys", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CliError(done.stderr.strip() or f"kelek keys {words[0]} failed")
    return done.stdout
