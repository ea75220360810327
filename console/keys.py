"""`kelek keys`: CURVE keys, and the directory of the keys that a node allows.

A key is two files: NAME.key, which is public, and NAME.key_secret. A node reads all *.key files of
its directory. Each file there has the key's grants; a name may have several keys.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import zmq

from ..net.errors import OperatorError
from ..net.private_files import read_private_file, replace_file
from ..protocols.access.certificates import (
    FILE_BYTES_MAX,
    Certificate,
    CertificateError,
    check_name,
    decode_key,
    encode_key,
    format_certificate,
    parse_certificate,
)
from ..protocols.access.grants import GrantError, parse_grants
from .cli_errors import FAILED, CliError
from .options import OUTPUT, argument, command, option
from .render import show, show_rows

PUBLIC, SECRET = ".key", ".key_secret"
FILES_MAX = 1000  # Of one name in a directory.


class Stored(NamedTuple):
    """A public key in a directory."""

    path: Path
    certificate: Certificate

    @property
    def row(self) -> dict[str, str]:
        certificate = self.certificate
        since = time.strftime("%Y-%m-%d", time.gmtime(self.path.stat().st_mtime))
        return {
            "name": certificate.name,
            "key": encode_key(certificate.public_key),
            "grants": certificate.metadata.get("grants", ""),
            "since": since,
            "file": str(self.path),
        }


DIR = argument(metavar="DIR", type=click.Path(file_okay=False))
GRANTS = option("--grant", multiple=True, required=True, metavar="GRANT",
                help="What the key may do; repeatable, docs/security.md.")  # fmt: skip


@command
def new(
    output: str = OUTPUT,
    name: str = argument(metavar="NAME"),
    folder: str = argument(metavar="[DIR]", default="keys", type=click.Path(file_okay=False)),
) -> None:
    """Makes a key: DIR/NAME.key, which is public, and DIR/NAME.key_secret (default DIR: keys)."""
    with _checked(name):
        check_name(name)
    path = Path(folder, name)
    with _checked(folder):
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        for end in (PUBLIC, SECRET):
            if Path(f"{path}{end}").exists():
                raise CliError(f"{path}{end}: already exists; kelek keys rotate, or another NAME")
        made = _make(name)
        _write_files(path, made)
    key = encode_key(made.public_key)
    found = {"name": name, "key": key, "public": f"{path}{PUBLIC}", "secret": f"{path}{SECRET}"}
    show(
        output,
        found,
        f"{path}{PUBLIC}: the public key, for `kelek keys allow` and for clients",
        f"{path}{SECRET}: the secret key; it stays with its owner",
    )


@command
def show_(output: str = OUTPUT, file: str = argument(type=click.Path())) -> None:
    """Prints a key FILE: name, public key, grants. It never prints a secret key."""
    stored = _load(Path(file))
    row = {**stored.row, "secret": bool(stored.certificate.secret_key)}
    show(output, row, *(f"{key + ':':8}{value}" for key, value in row.items() if value != ""))


@command
def list_(output: str = OUTPUT, folder: str = DIR) -> None:
    """Prints the keys that a directory allows, with their grants."""
    rows = [each.row for each in _all(folder)]
    if output == "text":
        rows = [{**row, "key": f"{row['key'][:8]}.."} for row in rows]
    show_rows(output, rows, ("name", "key", "grants", "since"))


@command
def allow(
    grant: tuple[str, ...] = GRANTS,
    output: str = OUTPUT,
    folder: str = DIR,
    file: str = argument(type=click.Path()),
) -> None:
    """Allows the key in a public FILE: copies it into DIR, with its grants.

    A key that DIR already has gets the new grants. Running nodes see it within a second.
    """
    certificate = _load(Path(file)).certificate
    text = " ".join(grant)
    with _checked("--grant"):
        parse_grants(text)
    with _checked(folder):
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        path = _write_allowed(folder, certificate.public_key, certificate.name, text)
    row = Stored(path, _load(path).certificate).row
    show(output, row, f"{path}: {certificate.name} may {text}")


@command
def revoke(
    output: str = OUTPUT,
    folder: str = DIR,
    which: str = argument(metavar="NAME|KEY"),
) -> None:
    """Removes a key from DIR, or all keys of a name. Running nodes end its connections."""
    found = [each for each in _all(folder) if which in (each.row["name"], each.row["key"])]
    if not found:
        names = ", ".join(dict.fromkeys(each.certificate.name for each in _all(folder)))
        raise CliError(f"{folder}: no key {which}; it has {names or 'no keys'}", FAILED)
    rows = [each.row for each in found]
    with _checked(folder):
        for each in found:
            each.path.unlink()
    lines = [f"{row['file']}: {row['name']} is revoked ({row['key']})" for row in rows]
    show(output, {"revoked": rows}, *lines)


@command
def rotate(
    output: str = OUTPUT,
    folder: str = DIR,
    file: str = argument(metavar="SECRET", type=click.Path()),
) -> None:
    """Replaces the key in the file SECRET by a new one, which DIR allows too.

    The new key gets the grants of the old one. Both are allowed until you revoke the old key.
    """
    path = Path(file)
    if not path.name.endswith(SECRET):
        raise CliError(f"{file}: give the file NAME{SECRET}")
    old = _load(path).certificate
    allowed = [each for each in _all(folder) if each.certificate.public_key == old.public_key]
    if not allowed:
        raise CliError(f"{folder}: it does not allow the key of {file}; kelek keys allow", FAILED)
    grants = allowed[0].certificate.metadata.get("grants", "")
    base = Path(str(path).removesuffix(SECRET))
    with _checked(folder):
        made = _make(old.name)
        stored = _write_allowed(folder, made.public_key, old.name, grants)  # Before it is used.
        _write_files(base, made)
    old_key = encode_key(old.public_key)
    show(
        output,
        {"name": old.name, "key": encode_key(made.public_key), "old": old_key, "file": str(stored)},
        f"{path}: {old.name} has a new key; restart what uses it",
        f"the old key stays allowed until: kelek keys revoke {folder} '{old_key}'",
    )


# ---- files ----


def _make(name: str) -> Certificate:
    while True:
        public, secret = (decode_key(key.decode()) for key in zmq.curve_keypair())
        if public[0]:  # zyre ignores the beacons of other keys.
            return Certificate(public, secret, {"name": name})


def _write_files(base: Path, certificate: Certificate) -> None:
    """The secret file first: without it the public one is of no use."""
    replace_file(f"{base}{SECRET}", format_certificate(certificate))
    public = format_certificate(certificate._replace(secret_key=b""))
    replace_file(f"{base}{PUBLIC}", public, mode=0o644)


def _write_allowed(folder: str, key: bytes, name: str, grants: str) -> Path:
    """Writes a key with its grants into its file, or into a new one of its name."""
    known = [each.path for each in _all(folder) if each.certificate.public_key == key]
    paths = (Path(folder, f"{name}{number}{PUBLIC}") for number in ("", *range(2, FILES_MAX)))
    path = known[0] if known else next((each for each in paths if not each.exists()), None)
    if path is None:
        raise CliError(f"{folder}: {name} has {FILES_MAX} keys; revoke old ones", FAILED)
    certificate = Certificate(key, b"", {"name": name, "grants": grants})
    replace_file(path, format_certificate(certificate), mode=0o644)
    return path


def _load(path: Path) -> Stored:
    with _checked(str(path)):
        if path.name.endswith(SECRET):
            text = read_private_file(path, FILE_BYTES_MAX)
        else:
            with path.open("rb") as file:
                text = file.read(FILE_BYTES_MAX + 1).decode()
        return Stored(path, parse_certificate(text))


def _all(folder: str) -> Iterator[Stored]:
    with _checked(folder):
        paths = sorted(path for path in Path(folder).iterdir() if path.name.endswith(PUBLIC))
    return map(_load, paths)


@contextmanager
def _checked(place: str) -> Iterator[None]:
    try:
        yield
    except (CertificateError, GrantError) as error:
        raise CliError(f"{place}: {error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{place}: not a key: it is not UTF-8") from error
    except OperatorError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error.filename or place}: {os.strerror(error.errno or 0)}") from error
