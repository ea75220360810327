"""Compiles csrc/ into kelek._native: csrc/api.h is read by the compiler and by cffi alike."""

import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = sorted(path.relative_to(HERE).as_posix() for path in (HERE / "csrc").rglob("*.c"))
PARTS = (
    "latency.h",
    "api.h",
    "columns.h",
    "gets.h",
    "row_cache.h",
    "rows.h",
    "runs.h",
    "sst.h",
    "budget.h",
    "bundles.h",
    "guard.h",
    "shares.h",
    "connections.h",
    "exchange.h",
    "serve.h",
    "channels.h",
    "cached.h",
    "rounds.h",
    "plain.h",
    "beacons.h",
    "zre.h",
    "farm.h",
    "steady.h",
    "table_wait.h",
)
HEADERS = {path.name: path.relative_to(HERE).as_posix() for path in (HERE / "csrc").rglob("*.h")}
API = [HERE / HEADERS[name] for name in PARTS]  # One API in pieces.
FOLDERS = [
    "csrc",
    *(
        f"csrc/{name}"
        for name in (
            "broker",
            "connections",
            "log",
            "net",
            "rows",
            "server",
            "sst",
            "steady",
            "tables",
        )
    ),
]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
# The first of each line that this compiler and linker take (not all of them are for every system).
HARDENING = (
    ("-fstack-protector-strong",),
    ("-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3", "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"),
    ("-fstack-clash-protection",),
    ("-fcf-protection=full", "-mbranch-protection=standard"),
)
LINK_HARDENING = (("-Wl,-z,relro,-z,now",), ("-Wl,-z,noexecstack",))


def accepts(flags: str) -> bool:
    """Whether a shared object can be built with these flags, without a warning."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text('#include <string.h>\nint f(void) { return (int)strlen(""); }\n')
        shared = ["-O2", "-Werror", "-fPIC", "-shared", str(source), "-o", f"{source}.so"]
        command = [*compiler, *flags.split(), *shared]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def accepted(choices: tuple[tuple[str, ...], ...]) -> list[str]:
    """Of each line the first choice that works, in words."""
    found = (next(filter(accepts, line), "") for line in choices)
    return [flag for flags in found for flag in flags.split()]


def without_preprocessor_lines(path: Path) -> str:
    """The declarations of a header: cffi's parser takes no `#` lines (constants are enums)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef("\n".join(map(without_preprocessor_lines, API)))
ffibuilder.set_source(
    "kelek._native",
    "\n".join(f'#include "{name}"' for name in PARTS),
    sources=SOURCES,
    include_dirs=FOLDERS,
    depends=sorted(HEADERS.values()),
    libraries=["dl", "pthread"],
    # cffi's own generated wrapper is not written to our warnings; check compiles csrc/ with them.
    extra_compile_args=["-O2", "-g", *accepted(HARDENING)],
    extra_link_args=accepted(LINK_HARDENING),
    py_limited_api=True,
)
