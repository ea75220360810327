"""`supervisor dump`: one archive for a bug report, without secrets."""

import io
import json
import os
import platform
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...actors.errors import OperatorError
from ..admin import doctor
from ..admin.supervisor_client import NodeOptions, load, own_nodes
from ..cli_errors import CliError
from ..options import command, option
from ..status.collect import collect, rows_of_topology
from ..status.view import document
from .files import log_folders

LOG_BYTES_MAX = 1 << 20  # Of each log, its end.
FILES_MAX = 10_000  # Listed of each node's data.
SECRET_FILE_BYTES_MAX = 64 << 10
ENDINGS = (".tar", ".tar.gz", ".tgz", ".zip")  # No topology: the user means the archive.
REMOVED = "[removed]"
# What looks like a secret: in certificates, PEM files, and key=value or key: value.
_SECRETS = (
    re.compile(r"(?is)-----BEGIN [^-]*PRIVATE KEY-----.*?(-----END [^-]*-----|\Z)"),
    re.compile(
        r"""(?i)(?<=[\s,{"'])([\w.-]*(?:secret|password|passwd|token)[\w.-]*["']?\s*[=:]\s*)"""
        r"""("[^"\n]*"|'[^'\n]*'|[^\s,}]+)"""
    ),
)
_SECRET_KEY = re.compile(r"""secret-key\s*=\s*["']?([^"'\s]{40})""")


class DumpFile(NamedTuple):
    """One file of the archive."""

    name: str
    text: str


@command
def dump(
    options: NodeOptions,
    file: str | None = option("-o", "--output", metavar="FILE", type=click.Path(),
                              help="The archive (default: kelek-CLUSTER-TIME.tar.gz)."),
) -> None:  # fmt: skip
    """Writes one archive for a bug report: topology, status, logs, versions, lists of files.

    It has no data of logs and tables, no key files and no password files. What looks like a secret
    in a topology or a log is removed.
    """
    if options.topology and options.topology.endswith(ENDINGS):
        raise CliError(f"{options.topology}: not a topology; name the archive with -o FILE")
    found = load(options.topology)
    names = own_nodes(found, options.nodes)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = Path(file or f"kelek-{found.cluster}-{stamp}.tar.gz")
    if path.exists():
        raise CliError(f"{path}: exists; give another file with -o")
    if not os.access(path.parent, os.W_OK):
        raise CliError(f"{path}: cannot be written; give another file with -o")
    secrets = secrets_of(found)
    count = removed = 0
    with open(path, "xb", opener=_private) as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
        for entry in files_of(found, names):
            text, times = without_secrets(entry.text, secrets)
            data = text.encode("utf-8", "replace")
            info = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{entry.name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            tar.addfile(info, io.BytesIO(data))
            count, removed = count + 1, removed + times
    size = path.stat().st_size
    click.echo(f"{path}: {count} files, {size:,} bytes; {removed} secrets removed; read it first")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def files_of(found: Any, names: list[str]) -> Iterator[DumpFile]:
    """The files of the archive, with their secrets."""
    yield DumpFile("topology.yaml", Path(found.path).read_text("utf-8", "replace"))
    parts: dict[str, Callable[[], Any]] = {
        "status.json": lambda: document(collect(found.path, lambda: rows_of_topology(found.path))),
        "versions.json": lambda: [each._asdict() for each in doctor.findings()],
        "machine.json": lambda: _machine(found.data_dir),
    }
    for name, make in parts.items():
        try:
            value = make()
        except (CliError, OperatorError, OSError) as error:
            value = {"error": str(error)}
        yield DumpFile(name, json.dumps(value, indent=1, default=str))
    for node, folder in log_folders(found, names).items():
        yield DumpFile(f"{node}/files.txt", "\n".join(_listing(folder.parent)))
        for log in sorted((*folder.glob("*.log"), *folder.glob("*.log.1"))):
            yield DumpFile(f"{node}/{log.name}", _end_of(log))


def _machine(data_dir: Path) -> dict[str, Any]:
    place = next(it for it in (data_dir, *data_dir.parents) if it.exists())
    disk = shutil.disk_usage(place)
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_bytes": disk.total,
        "disk_free_bytes": disk.free,
    }


def _listing(folder: Path) -> list[str]:
    """Sizes, times and names of the files below a folder."""
    lines = []
    for path in sorted(folder.rglob("*"))[:FILES_MAX]:
        try:
            found = path.lstat()
        except OSError:
            continue  # It was removed meanwhile.
        changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
        mode = found.st_mode & 0o777
        lines.append(f"{mode:03o} {found.st_size:>12} {changed} {path.relative_to(folder)}")
    return lines


def _end_of(path: Path) -> str:
    """The last lines of a log."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - LOG_BYTES_MAX))
        data = file.read()
    if size > LOG_BYTES_MAX:
        data = data[data.find(b"\n") + 1 :]
    return data.decode("utf-8", "replace")


def secrets_of(found: Any) -> set[str]:
    """The secret keys in the folder `keys` beside a topology, and in the file that it names."""
    paths = {*(Path(found.path).resolve().parent / "keys").rglob("*")}
    if found.security is not None and found.security.key_file:
        paths.add(Path(found.resolve(found.security.key_file)))
    secrets = set()
    for path in paths:
        try:
            if path.is_file() and path.stat().st_size <= SECRET_FILE_BYTES_MAX:
                secrets |= {*_SECRET_KEY.findall(path.read_text("utf-8", "replace"))}
        except OSError:
            continue  # What this user can't read, no file of the archive was made from.
    return secrets


def without_secrets(text: str, secrets: set[str]) -> tuple[str, int]:
    """The text without known secrets and without what looks like one, and how many it had."""
    removed = 0
    for secret in secrets:
        removed += text.count(secret)
        text = text.replace(secret, REMOVED)
    for pattern in _SECRETS:
        text, times = pattern.subn(
            lambda match: (match[1] if match.re is _SECRETS[1] else "") + REMOVED, text
        )
        removed += times
    return text, removed
