"""`kelek bench`: the benchmarks of all parts of a cluster, one after the other."""

from uuid import uuid4

import click

from .options import OUTPUT, command, option, topology_option


@command
def bench(
    topology: str | None = topology_option("The cluster of this file"),
    quick: bool = option("--quick", is_flag=True, help="A fiftieth of the requests."),
    output: str = OUTPUT,
) -> None:
    """Measures the log, tables and broker of a running cluster. It writes to them!

    It runs `kelek log bench`, `table bench` and `broker bench`, as far as the topology has such
    servers, with a table of its own, which it drops.
    """
    from ..actors.runtime import run_dir
    from ..actors.topology import client_topology

    path = topology or run_dir.default_path()
    nodes = client_topology.load(path).nodes.values()
    table, count = f"bench.{uuid4().hex[:12]}", ["--count", "2000", "--alone", "20"] * quick
    show = ["-o", output]
    _run(path, output, "log", "bench", *count, *show)
    if any(node.tables_url for node in nodes):
        try:
            _run(path, output, "table", "bench", table, *count, *show)
        finally:
            _run(path, "", "table", "drop", table, "--yes")
    if any(node.clients_url for node in nodes):
        _run(path, output, "broker", "bench", *count, *show)


def _run(path: str, output: str, part: str, *words: str) -> None:
    from .kelek_cli import main  # It imports the modules of commands, as this one.

    if output == "text":
        click.echo(f"{part}:")
    main.main([part, *words, "-t", path], "kelek", standalone_mode=False)
