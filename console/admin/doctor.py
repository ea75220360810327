"""`kelek doctor`: which extras work here, with their versions."""

import importlib.metadata
import pkgutil
import sys
from typing import NamedTuple

from ...pipeline.errors import NoJava
from ...pipeline.java import find_java
from ...version import __version__
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, command
from ..render import show

# Extra -> its package.
PARTS = {
    "arrow": "pyarrow",
    "farm": "cryptography",
    "metrics": "prometheus-client",
    "web": "uvicorn",
    "otel": "opentelemetry-api",
    "profile": "py-spy",
    "tui": "textual",
    "wasm": "wasmtime",
    "llvm": "llvmlite",
}


class Finding(NamedTuple):
    part: str
    version: str | None  # None: it is not installed.
    place: str = ""
    problem: str = ""


@command
def doctor(output: str = OUTPUT) -> None:
    """Prints which optional parts of kelek work here: Spark with its Java, Arrow, mappers,
    profiles.

    It starts nothing but `java -version`. Exit code 1: Spark is installed and cannot start.
    """
    found = findings()
    width = max(len(finding.part) for finding in found)
    lines = (f"{finding.part:<{width}}  {_status(finding)}" for finding in found)
    show(output, [finding._asdict() for finding in found], *lines)
    problems = [finding.problem for finding in found if finding.problem and finding.version]
    if problems:
        raise CliError(problems[0], FAILED)


def findings() -> list[Finding]:
    """Looks every package up without importing it."""
    found = [
        Finding("kelek", __version__),
        Finding("python", sys.version.split()[0], sys.executable),
        *(Finding(part, version_of(package)) for part, package in PARTS.items()),
    ]
    spark = version_of("pyspark")
    try:
        java = find_java()
    except NoJava as error:
        return [*found, Finding("spark", spark, problem=str(error)), Finding("java", None)]
    return [
        *found,
        Finding("spark", spark, _format_of_spark()),
        Finding("java", str(java.version), f"{java.path} ({java.origin})"),
    ]


def _format_of_spark() -> str:
    """How Spark comes to know the format kelek: it looks for modules by their names."""
    if any(module.name == "pyspark_kelek" for module in pkgutil.iter_modules()):
        return "(finds the format kelek by itself)"
    return "(knows the format kelek in sessions of kelek.pipeline.session())"


def version_of(package: str) -> str | None:
    """None: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _status(finding: Finding) -> str:
    if finding.version is not None:
        return " ".join(filter(None, (finding.version, finding.place)))
    if finding.part == "java":
        return "not found"
    return f"not installed: pip install 'kelek[{finding.part}]'"
