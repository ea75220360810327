"""Python processes of the catalogue that die, are missing, or are left in the middle of rows."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.tests.conftest import ROOT

pytest.importorskip("pyspark")
ROWS = 200_000


def workers() -> set[int]:
    """The Python processes of the JVM, which is a child of this process."""
    listed = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.decode().splitlines()]
    parents = {int(pid) for pid, parent, _ in rows if int(parent) == os.getpid()}
    return {
        int(pid)
        for pid, parent, command in rows
        if int(parent) in parents and command.endswith("-m kelek.pipeline.jvm")
    }


@pytest.fixture
def table(catalogue: Any, name: str) -> str:
    catalogue.sql(f"CREATE TABLE kelek.{name} (n BIGINT, v STRING, PRIMARY KEY (n))")
    catalogue.range(ROWS).selectExpr("id AS n", "'v' AS v").writeTo(f"kelek.{name}").append()
    return f"kelek.{name}"


def test_an_idle_process_is_killed(catalogue: Any, table: str) -> None:
    found = workers()
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    assert catalogue.table(table).count() == ROWS


KILLS = """\
import contextlib, os, pathlib, runpy, signal, sys
from kelek.pipeline.jvm import scans

read = scans.do_read

def do_read(channel, request):
    with contextlib.suppress(StopIteration):
        next(pathlib.Path({folder!r}).iterdir()).unlink()
        print("this is the end", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    read(channel, request)

scans.do_read = do_read
runpy.run_module("kelek.pipeline.jvm", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("kills", [1, 4])
def test_a_task_is_repeated_after_its_process_was_killed(
    catalogue: Any, node: str, name: str, table: str, tmp_path: Path, kills: int
) -> None:
    """Spark tries a task four times."""
    (tmp_path / "kills").mkdir()
    for place in range(kills):
        (tmp_path / "kills" / str(place)).touch()
    (tmp_path / "kills.py").write_text(KILLS.format(folder=str(tmp_path / "kills")))
    add_catalogue(
        catalogue, name, node, f"exec {shlex.quote(sys.executable)} {tmp_path}/kills.py", tmp_path
    )
    frame = catalogue.read.option("partitions", "1").table(f"{name}.{name}").where("v = 'v'")
    if kills < 4:
        assert frame.count() == ROWS
    else:
        with pytest.raises(Exception, match=r"(?s)ended with 137:\n.*this is the end"):
            frame.count()
    assert not [*(tmp_path / "kills").iterdir()]


def add_catalogue(spark: Any, name: str, url: str, command: str, folder: Path) -> None:
    """A catalogue with a shell command as its Python."""
    from kelek.pipeline.spark_session import CATALOGUE_CLASS

    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    script.chmod(0o755)
    spark.conf.set(f"spark.sql.catalog.{name}", CATALOGUE_CLASS)
    spark.conf.set(f"spark.sql.catalog.{name}.urls", url)
    spark.conf.set(f"spark.sql.catalog.{name}.python", str(script))


def test_rows_that_nobody_wants_do_not_cost_the_process(catalogue: Any, table: str) -> None:
    assert len(catalogue.table(table).where("v = 'v'").take(3)) == 3
    before = workers()
    for _ in range(3):
        assert len(catalogue.table(table).where("v = 'v'").take(3)) == 3
    assert workers() == before


def test_a_python_without_kelek(catalogue: Any, node: str, name: str, tmp_path: Path) -> None:
    add_catalogue(catalogue, name, node, "echo no kelek here >&2; exit 3", tmp_path)
    with pytest.raises(Exception, match=r"(?s)\(.*/python\) ended with 3:\nno kelek here"):
        catalogue.sql(f"SHOW TABLES IN {name}")
    catalogue.conf.set(f"spark.sql.catalog.{name}2", "kelek.spark.KelekCatalog")
    catalogue.conf.set(f"spark.sql.catalog.{name}2.python", str(tmp_path / "no-such"))
    with pytest.raises(Exception, match="no-such"):
        catalogue.sql(f"SHOW TABLES IN {name}2")


@pytest.mark.parametrize("first", ["conda: activated", r"\377\377\377\377"])
def test_a_python_whose_start_prints(
    catalogue: Any, node: str, name: str, tmp_path: Path, first: str
) -> None:
    """The JVM reads the text as the size of a response: no memory is allocated for it."""
    command = f"printf '{first}'; exec {shlex.quote(sys.executable)} -m kelek.pipeline.jvm"
    add_catalogue(catalogue, name, node, command, tmp_path)
    told = r"announced a response of \d+ bytes, at most are 67108864: its start must print nothing"
    with pytest.raises(Exception, match=told):
        catalogue.sql(f"SHOW TABLES IN {name}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "option urls is missing"),
        ({"urls": "tcp://127.0.0.1:1", "timeoutMs": "100"}, r"no connection to tcp://127.0.0.1:1"),
        ({"urls": "tcp://127.0.0.1:1", "colour": "red"}, "unknown option 'colour'"),
        ({"urls": "tcp://127.0.0.1:1", "keyFile": ""}, "option keyFile is the path of a file"),
    ],
)
def test_wrong_options_are_reported(
    catalogue: Any, options: dict[str, str], told: str, number: int
) -> None:
    from kelek.pipeline.spark_session import CATALOGUE_CLASS

    catalogue.conf.set(f"spark.sql.catalog.wrong{number}", CATALOGUE_CLASS)
    for name, value in options.items():
        catalogue.conf.set(f"spark.sql.catalog.wrong{number}.{name}", value)
    with pytest.raises(Exception, match=told):
        catalogue.sql(f"SHOW TABLES IN wrong{number}")


def test_options_of_a_query(catalogue: Any, table: str) -> None:
    reader = catalogue.read
    assert reader.option("partitions", "1").table(table).rdd.getNumPartitions() == 1
    assert reader.option("local", "off").table(table).count() == ROWS
    for option, told in (("urls", "is for spark.sql.catalog"), ("rowLimit", "unknown option")):
        with pytest.raises(Exception, match=told):
            catalogue.read.option(option, "1").table(table).collect()


def test_the_process_ends_with_the_jvm() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".build")}
    process = subprocess.Popen(
        [sys.executable, "-m", "kelek.pipeline.jvm"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    # No server is there: it waits for 100 s, as long as the pipe is open.
    request = (
        b'{"op": "names", "prefix": "", "options": {"urls": "tcp://127.0.0.1:1", '
        b'"timeoutMs": "100000"}}'
    )
    process.stdin.write(len(request).to_bytes(4, "big") + request)
    process.stdin.close()
    assert process.wait(60) == 0


def test_without_the_jar_a_session_has_no_catalogue(
    catalogue: Any, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kelek.pipeline import spark_session
    from kelek.pipeline.spark_session import CATALOGUE, CATALOGUE_CLASS

    catalogue.conf.unset(CATALOGUE)
    with monkeypatch.context() as patch:
        patch.setattr(spark_session, "JAR", "/no/such.jar")
        assert spark_session.session().conf.get(CATALOGUE, None) is None
        options = {"kind": "table", "urls": node, "table": "3221225471"}
        assert catalogue.read.format("kelek").options(**options).load().columns == ["key", "value"]
    assert spark_session.session().conf.get(CATALOGUE) == CATALOGUE_CLASS
    with kelek.Table(node, "jar", timeout_ms=60_000) as table:
        table.declare("n int64", key=["n"])
        assert catalogue.table("kelek.jar").count() == 0
        table.drop()
