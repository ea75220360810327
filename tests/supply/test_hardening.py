"""The C core is built with what the compiler and the linker offer against memory errors."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kelek import build_ext

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the headers of ELF")

PT_DYNAMIC = 2
PT_GNU_STACK = 0x6474E551
PT_GNU_RELRO = 0x6474E552
PF_EXECUTABLE = 1
DT_FLAGS, DF_BIND_NOW = 30, 8
DT_FLAGS_1, DF_1_NOW = 0x6FFFFFFB, 1
ELF64_LITTLE = b"\x7fELF\x02\x01"


def segments(elf: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, flags, content) of each segment."""
    assert elf.startswith(ELF64_LITTLE)
    [start] = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for at in range(start, start + size * count, size):
        kind, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", elf, at)
        yield kind, flags, elf[offset : offset + length]


def missing(elf: bytes) -> list[str]:
    """Which protections a shared object lacks."""
    found = {kind: (flags, content) for kind, flags, content in segments(elf)}
    dynamic = dict(struct.iter_unpack("<QQ", found[PT_DYNAMIC][1]))
    binds_now = dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW or dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
    holds = {
        "read-only relocations": PT_GNU_RELRO in found,
        "symbols bound at load": bool(binds_now),
        "no executable stack": not found[PT_GNU_STACK][0] & PF_EXECUTABLE,
        "stack protector": b"\0__stack_chk_fail\0" in elf,
        "checked copies": b"\0__memcpy_chk\0" in elf,
    }
    return [name for name, held in holds.items() if not held]


def test_the_core_is_hardened() -> None:
    core = find_spec("kelek._native")
    assert core
    assert core.origin
    assert missing(Path(core.origin).read_bytes()) == []


def test_a_plain_build_is_noticed(tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    assert compiler, "kelek needs a C compiler (README.md)"
    source, shared = tmp_path / "plain.c", tmp_path / "plain.so"
    source.write_text("int f(void) { return 0; }\n")
    options = ["-shared", "-fPIC", "-Wl,-z,norelro,-z,lazy,-z,execstack"]
    subprocess.run([compiler, *options, source, "-o", shared], check=True, capture_output=True)
    assert len(missing(shared.read_bytes())) == 5


def test_flags_that_a_compiler_lacks_are_left_out() -> None:
    choices = (("-no-such-flag", "-fPIC -O1"), ("-no-such-flag",))
    assert build_ext.accepted(choices) == ["-fPIC", "-O1"]
