"""examples/secure: a cluster with keys, and a Spark job with one of them, on free ports."""

import re
from pathlib import Path

import pytest

from kelek.bench.ports import free_ports
from kelek.tests.conftest import ROOT, Shell

FOLDER = ROOT / "examples" / "secure"
SPARK_S = 240  # Of which the start of Spark takes most on a busy machine.


def test_two_commands(tmp_path: Path) -> None:
    texts = {path.name: path.read_text() for path in FOLDER.iterdir() if path.is_file()}
    ports = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", texts["topology.yaml"])))
    free = free_ports(len(ports))
    addresses = {
        f"127.0.0.1:{old}": f"127.0.0.1:{new}" for old, new in zip(ports, free, strict=True)
    }
    shell = Shell(tmp_path, tmp_path, addresses)
    for name, text in texts.items():
        (tmp_path / name).write_text(shell.translate(text))
    try:
        shell.ok("python cluster.py nodes")
        shown = shell.ok("cd nodes && kelek log info -o json")
        assert '"leader"' in shown
        denied = shell.run("cd nodes && kelek table put 8 a b --own-key keys/flights.key_secret")
        assert denied.returncode == 1
        assert "the key has no grant" in denied.stderr
        pytest.importorskip("pyspark")
        rows = shell.ok("python spark_job.py nodes", timeout_s=SPARK_S)
        assert rows.endswith("table 7 has 1000 rows\n")
    finally:
        shell.run("cd nodes && supervisor stop")
