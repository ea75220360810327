"""kelek without its C part, as Python may come across it: what is wrong is said, and what to do."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kelek.tests.conftest import ROOT

TABLE = "import kelek\nkelek.Table('tcp://127.0.0.1:7100')\n"
PACKAGES = sysconfig.get_path("platlib")
SESSION = "import kelek.pipeline\nkelek.pipeline.session()\n"


def last_line(script: Path, path: str = "") -> str:
    """Without `site`, which would find the C part of the checkout."""
    done = subprocess.run(
        [sys.executable, "-S", str(script)], env={"PYTHONPATH": f"{path}:{PACKAGES}"},
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A source tree by the name of kelek."""
    tree = tmp_path / "kelek"
    for folder in ("clients", "native", "net", "pipeline", "protocols"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("__init__.py", "__init__.pyi", "version.py"):
        shutil.copy(ROOT / file, tree)
    return tree


@pytest.mark.parametrize("text", [TABLE, SESSION])
def test_a_script_beside_a_clone_that_is_not_built(clone: Path, text: str) -> None:
    script = clone.parent / "script.py"
    script.write_text(text, encoding="utf-8")
    line = last_line(script)
    assert f"{clone} is a source tree of kelek that is not built. Start the program from" in line
    assert line.endswith(f"or build it: pip install -e {clone}")


@pytest.mark.parametrize("text", [TABLE, SESSION])
def test_a_wheel_in_the_path(clone: Path, tmp_path: Path, text: str) -> None:
    """As spark-submit --py-files puts it there."""
    wheel = shutil.make_archive(str(tmp_path / "wheel"), "zip", tmp_path, "kelek")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(text, encoding="utf-8")
    line = last_line(script, wheel)
    assert f"kelek was imported from the archive {wheel}" in line
    assert "spark-submit --py-files can't bring kelek. Install the wheel in" in line
