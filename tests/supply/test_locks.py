"""The lock files satisfy pyproject.toml, and hold hashes but no package index; all offline."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
NPM = ROOT / "tests/interop/zmqraft/node"
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("linux", "darwin")


class LockedPackage(NamedTuple):
    """One entry of a lock file."""

    requirement: Requirement
    hashes: int


def entries(text: str) -> Iterator[LockedPackage]:
    for part in text.replace("\\\n", " ").splitlines():
        line = part.split("#")[0].strip()
        if line:
            hashes = HASH.findall(line)
            yield LockedPackage(Requirement(HASH.sub("", line).strip()), len(hashes))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def wanted(lock: str) -> list[str]:
    """What pyproject.toml asks of a lock file."""
    about = project()
    group = Path(lock).stem
    if group in about["dependency-groups"]:
        return list(about["dependency-groups"][group])
    metadata = about["project"]
    build = about["build-system"]["requires"]
    return [*metadata["dependencies"], *metadata["optional-dependencies"]["dev"], *build]


def missing(text: str, requirements: list[str], python: str, platform: str) -> list[str]:
    """The requirements that a lock file does not satisfy on one Python and platform."""
    environment = {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
        "platform_system": platform.capitalize(),
    }
    locked = {
        canonicalize_name(entry.requirement.name): entry.requirement.specifier
        for entry in entries(text)
        if entry.requirement.marker is None or entry.requirement.marker.evaluate(environment)
    }
    found = []
    for asked in map(Requirement, requirements):
        exact = [clause.version for clause in locked.get(canonicalize_name(asked.name), ())]
        if not exact or not asked.specifier.contains(exact[0], prereleases=True):
            found.append(f"{asked}: {exact}")
    return found


@pytest.mark.parametrize("lock", [".ci/dev.txt", ".ci/docs.txt", ".ci/tools.txt"])
def test_locks_satisfy_the_project(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    for python in PYTHONS:
        for platform in PLATFORMS:
            assert not missing(text, wanted(lock), python, platform), "run .ci/relock"
    for entry in entries(text):
        assert entry.hashes, f"{entry.requirement} has no hash"
        assert [clause.operator for clause in entry.requirement.specifier] == ["=="]
    assert "://" not in text, "a package index or a file of one machine"


def test_an_old_lock_is_noticed() -> None:
    text = "a==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\nb==1 ; python_version < '3.12'\n"
    assert [entry.hashes for entry in entries(text)] == [1, 0]
    assert not missing(text, ["a>=1", "b"], "3.11", "linux")
    assert missing(text, ["a>=1.1"], "3.11", "linux")
    assert missing(text, ["c"], "3.11", "linux")
    assert missing(text, ["b"], "3.12", "linux")


def installed_by(lock: str, without: str) -> str:
    """The entries that .ci/venv.sh gives to pip."""
    script = f'. .ci/venv.sh; locked . "{without}" <{lock}'
    return subprocess.run(
        ["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_another_spark_is_installed_without_the_locked_one() -> None:
    lock = ".ci/dev.txt"
    assert installed_by(lock, "^$") == (ROOT / lock).read_text(encoding="utf-8")
    names = {entry.requirement.name for entry in entries(installed_by(lock, "^(pyspark|py4j)$"))}
    everything = {entry.requirement.name for entry in entries(installed_by(lock, "^$"))}
    assert everything - names == {"pyspark", "py4j"}


def test_packages_of_the_npm_tree_have_hashes() -> None:
    package = json.loads((NPM / "package.json").read_text(encoding="utf-8"))
    text = (NPM / "package-lock.json").read_text(encoding="utf-8")
    root, *packages = json.loads(text)["packages"].values()
    assert root["dependencies"] == package["dependencies"]
    assert packages
    assert all(found["integrity"].startswith("sha512-") for found in packages)
    assert not [found for found in packages if "resolved" in found], "a package registry"
