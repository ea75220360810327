"""`supervisor check` and `schema`: a topology, without running it."""

import json

import click

from ...actors.runtime import data_dir, plan
from ...actors.runtime.cluster_status import drift_of
from ...actors.topology.json_values import encode
from ...actors.topology.reference import json_schema
from ..options import command
from .supervisor_client import OUTPUT, TOPOLOGY, load, rows_of

SECTIONS = ("raft", "log", "clients", "zerodb", "broker", "zre", "farms")


@command
def check(topology: str | None = TOPOLOGY, output: str = OUTPUT) -> None:
    """Checks a topology and prints what it would run, without starting anything.

    Also prints differences to the members of a cluster that runs here, and folders of its data that
    other users can enter.
    """
    found = load(topology)
    rows = [
        {"node": node.name, "unit": unit.name, "role": actor.role, "data_dir": actor.data_dir}
        for node in plan.node_plans(found, found.own_nodes, one_process=False)
        for unit in node.units
        for actor in unit.actors
    ]
    folders = [found.data_dir / name for name in found.own_nodes]
    differences = {
        "drift": drift_of(rows_of(found.path)),
        "open": [line for folder in folders for line in data_dir.open_folders(folder)],
    }
    if output == "json":
        settings = {name: encode(getattr(found, name)) for name in SECTIONS}
        text = {"topology": found.path, "cluster": found.cluster, **settings, "processes": rows}
        click.echo(json.dumps({**text, **differences}, indent=2))
        return
    click.echo(
        f"{found.path}: ok: cluster {found.cluster}, {len(found.own_nodes)} nodes, "
        f"{len(rows)} processes"
    )
    for row in rows:
        url = found.nodes[row["node"]].url
        click.echo(f"  {row['node']:<8} {row['role']:<16} {row['data_dir']:<32} {url}")
    for word, lines in differences.items():
        for line in lines:
            click.echo(f"{word} {line}")


@command
def schema() -> None:
    """Prints the JSON Schema of a topology, for editors and other programs that check YAML.

    For editors with the YAML language server: supervisor schema > topology.schema.json, and in the
    topology `# yaml-language-server: $schema=topology.schema.json`.
    """
    click.echo(json.dumps(json_schema(), indent=2))
