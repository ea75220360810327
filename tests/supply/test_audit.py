"""The audit of locked packages fails on vulnerabilities, and when it learns nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from kelek.tests.supply import audit

SOUND = {"name": "sound", "version": "1.0", "vulns": []}
UNSOUND = {"name": "bad", "version": "2.0", "vulns": [{"id": "X-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "new", "skip_reason": "Dependency not found"}


def pip_audit(folder: Path, output: str, code: int = 0) -> str:
    """A program that prints this, and an error."""
    program = folder / "pip-audit"
    (folder / "output").write_text(output)
    program.write_text(f"#!/bin/sh\ncat '{folder}/output'\necho no route >&2\nexit {code}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([SOUND], 0, "0 known vulnerabilities, 0 times no answer"),
        ([SOUND, UNSOUND], 1, "lock: bad 2.0: X-1, fixed by 2.1"),
        ([SOUND, UNKNOWN], 1, "new: no answer: Dependency not found"),
        ([], 1, "no packages were audited"),
    ],
)
def test_reports(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    packages: list[dict[str, Any]],
    code: int,
    words: str,
) -> None:
    program = pip_audit(tmp_path, json.dumps({"dependencies": packages}))
    assert audit.main([program, "lock"]) == code
    assert words in capsys.readouterr().out


def test_no_connection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([pip_audit(tmp_path, "", 1), "lock"]) == 1
    assert "lock: the advisory service can't be asked: no route" in capsys.readouterr().out
