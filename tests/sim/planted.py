"""Defects planted into a copy of the package; the simulation must find each of them.

`python -m kelek.tests.sim.planted [NAME...]` searches for all or some, and prints which run finds
which.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kelek.tests.sim.broker.bugs import BROKER_BUGS
from kelek.tests.sim.farm.bugs import FARM_BUGS
from kelek.tests.sim.log.bugs import LOG_BUGS
from kelek.tests.sim.patches import PACKAGE, PlantedBug
from kelek.tests.sim.tables.bugs import TABLE_BUGS

COPIED = (
    "__init__.py",
    "native",
    "protocols",
    "storage",
    "tests/sim",
    "tests/crash/histories/linear.py",
    "tests/protocols/garlicfarm",
    "tests/storage/memory_disk.py",
    "tests/storage/memory_tables.py",
)
CAMPAIGN = "kelek.tests.sim.campaign"
BUGS = (*LOG_BUGS, *TABLE_BUGS, *BROKER_BUGS, *FARM_BUGS)


def plant(bug: PlantedBug, folder: Path) -> None:
    """Makes folder/kelek, a copy of the package and the simulation with the bug in it."""
    target = folder / "kelek"
    target.mkdir()
    for name in COPIED:
        source = PACKAGE / name
        if source.is_dir():
            # With compiled files, except those that another process is writing.
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)
    for library in PACKAGE.glob("_native*.so"):
        shutil.copy(library, target / library.name)
    for path, old, new in bug.patches:
        text = (target / path).read_text()
        assert text.count(old) == 1, f"{bug.name}: {path} has changed, mend its patch: {old!r}"
        (target / path).write_text(text.replace(old, new))


def find(bug: PlantedBug) -> str | None:
    """Runs seeds until one fails as expected. Returns its message; None when none fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plant(bug, folder)
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        environment.pop("KELEK_SEED", None)
        command = [sys.executable, "-m", CAMPAIGN, bug.runs, "--quiet", "--until", bug.expected]
        command += ["--seeds", str(bug.seeds), "--first", str(bug.first_seed)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise AssertionError(f"{bug.name}: the campaign itself failed:\n{done.stderr}")
    return done.stdout.splitlines()[0] if done.returncode == 1 else None


def main() -> int:
    wanted = sys.argv[1:]
    missed = 0
    for bug in BUGS:
        if wanted and bug.name not in wanted:
            continue
        begun = time.monotonic()
        found = find(bug)
        missed += found is None
        seconds = time.monotonic() - begun
        print(f"{bug.name}: {(found or 'NOT FOUND')[:150]} ({seconds:.0f} s)", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
