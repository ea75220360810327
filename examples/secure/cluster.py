"""Starts three nodes with keys on this machine: `python examples/secure/cluster.py FOLDER`.

FOLDER gets the topology, the keys and the data. The keys are made once. `supervisor stop` in the
folder ends the nodes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NODES = ("n1", "n2", "n3")
# Spark notes its snapshots in table 3221225471.
CLIENTS = {"admin": ("admin", "log.read"), "flights": ("tables:7,3221225471:rw", "jobs")}


def run(*command: str) -> None:
    subprocess.run(command, cwd=folder, check=True)


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
shutil.copy(HERE / "topology.yaml", folder)
for name in (*NODES, *CLIENTS):
    if not (folder / "keys" / f"{name}.key_secret").exists():
        run("kelek", "keys", "new", name)
for name, grants in CLIENTS.items():
    if not (folder / "keys" / "allowed" / f"{name}.key").exists():
        options = [word for grant in grants for word in ("--grant", grant)]
        run("kelek", "keys", "allow", "keys/allowed", f"keys/{name}.key", *options)
run("supervisor", "start", "--detach")
# The key `flights` may write it, but open none. An open table stays as it is.
run("kelek", "table", "open", "7")
