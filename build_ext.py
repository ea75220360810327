"""Compiles csrc/ into kelek._native: csrc/api.h is read by the compiler and by cffi alike."""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = sorted(path.relative_to(HERE).as_posix() for path in (HERE / "csrc").rglob("*.c"))
PARTS = (
    "api.h",
    "columns.h",
    "runs.h",
    "sst.h",
    "budget.h",
    "guard.h",
    "exchange.h",
    "serve.h",
    "beacons.h",
    "zre.h",
    "farm.h",
)
HEADERS = {path.name: path.relative_to(HERE).as_posix() for path in (HERE / "csrc").rglob("*.h")}
API = [HERE / HEADERS[name] for name in PARTS]  # One API in pieces.
FOLDERS = ["csrc", *(f"csrc/{name}" for name in ("broker", "log", "net", "tables"))]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]


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
    extra_compile_args=["-O2", "-g"],
    py_limited_api=True,
)
