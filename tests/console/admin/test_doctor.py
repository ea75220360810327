"""`kelek doctor`: what is installed, in words and as JSON."""

import json
import sys

import pytest
from click.testing import CliRunner

from kelek.console.admin import doctor as doctor_command
from kelek.console.kelek_cli import main
from kelek.pipeline.errors import NoJava
from kelek.pipeline.java import Java


def test_it_says_which_java_and_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "find_java", lambda: Java("/j/bin/java", 21, "PATH"))
    monkeypatch.setattr(doctor_command, "version_of", {"pyspark": "4.2.0", "pyarrow": "20.0"}.get)
    done = CliRunner().invoke(main, ["doctor", "-o", "json"])
    assert done.exit_code == 0, done.output
    found = {one["part"]: one for one in json.loads(done.stdout)}
    assert found["spark"]["version"] == "4.2.0"
    assert found["java"] == {
        "part": "java", "version": "21", "place": "/j/bin/java (PATH)", "problem": ""
    }  # fmt: skip
    assert found["python"]["place"] == sys.executable
    lines = CliRunner().invoke(main, ["doctor"]).stdout.splitlines()
    assert "arrow    20.0" in lines
    assert "wasm     not installed: pip install 'kelek[wasm]'" in lines


@pytest.mark.parametrize(("spark", "code"), [("4.2.0", 1), (None, 0)])
def test_spark_without_java_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, spark: str | None, code: int
) -> None:
    def none() -> Java:
        raise NoJava("Spark needs Java")

    monkeypatch.setattr(doctor_command, "find_java", none)
    monkeypatch.setattr(doctor_command, "version_of", {"pyspark": spark}.get)
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == code
    assert done.stderr == ("kelek: Spark needs Java\n" if code else "")
    assert "java     not found" in done.stdout
