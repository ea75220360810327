"""Checks a database's files against their checksums, so that no damage gets into a snapshot.

An archive's own checksums are right for damage that was in a file before: it would spread to other
nodes with the snapshot. RocksDB itself finds damage only in what it reads.
"""

from ..disk.files import ReadableFile
from ..errors import Damaged
from .log_format import BadRecord, log_records
from .sst_file import REPAIR, SortedFile, Unsupported

MANIFEST = "MANIFEST-"
TABLE = ".sst"


def check_file(name: str, file: ReadableFile) -> None:
    """Compares the checksums of a file of sorted keys or a manifest. Other files, and forms that
    only RocksDB knows, count as sound. Raises Damaged; StorageError: refused by the system."""
    try:
        if name.endswith(TABLE):
            SortedFile(file).check()
        elif name.startswith(MANIFEST):
            _check_records(file)
    except Unsupported:
        return


def _check_records(file: ReadableFile) -> None:
    """Checks a file of RocksDB's log format: records of a changing database's files."""
    try:
        for _ in log_records(file):
            pass
    except BadRecord as bad:
        raise Damaged(file.full_path, str(bad), REPAIR) from None
