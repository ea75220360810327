"""Password files of a farm's servers: `kelek farm user`. They are replaced as a whole, or not."""

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from ...protocols.garlicfarm.wire import htdigest
from ...protocols.garlicfarm.wire.htdigest import PasswordFileError
from ..cli_errors import FAILED, CliError
from ..output import show_json, show_table
from ..targets import Where
from .target import password_of

PASSWORD_BYTES = 24  # Of one that is made up.


def add(file: str, names: Sequence[str], options: Where) -> None:
    """Adds users."""
    farm = options["realm"]
    if len(names) > 1 and not options["made"]:
        raise CliError("--make: missing; several users get passwords that are made up")

    def change(text: str) -> str:
        known = htdigest.users_of(text, farm).secrets
        for name in names:
            if name in known:
                way_out = f"kelek farm user passwd {file} {name}"
                raise CliError(f"{file}: {name} of the farm {farm} is there already; {way_out}")
        for name, password in passwords.items():
            text = htdigest.with_user(text, farm, name, password)
        return text

    with _checked(file):
        check_names(farm, names)
        passwords: dict[str, str] = {}
        change(
            _read(file, missing=True)[0]
        )  # What can't be done is said before a password is asked.
        passwords.update({name: _new_password(name, options) for name in names})
        kept = _keep(passwords, options)
        edit(file, change, missing=True)
    found = {"file": file, "farm": farm, "added": list(names), "secret_files": kept}
    _tell(options, found, f"{file}: {', '.join(names)} of the farm {farm} added")


def passwd(file: str, name: str, options: Where) -> None:
    """Gives a user another password."""
    farm = options["realm"]
    with _checked(file):
        _known(_read(file)[0], file, farm, name)
        password = _new_password(name, options)

        def change(text: str) -> str:
            _known(text, file, farm, name)
            return htdigest.with_user(text, farm, name, password)

        kept = _keep({name: password}, options)
        edit(file, change)
    found = {"file": file, "farm": farm, "changed": name, "secret_files": kept}
    _tell(options, found, f"{file}: {name} of the farm {farm} has a new password")


def remove(file: str, names: Sequence[str], options: Where) -> None:
    """Removes users."""
    farm = options["realm"]

    def change(text: str) -> str:
        for name in names:
            _known(text, file, farm, name)
            text = htdigest.without_user(text, farm, name)
        return text

    with _checked(file):
        edit(file, change)
    found = {"file": file, "farm": farm, "removed": list(names)}
    _tell(options, found, f"{file}: {', '.join(names)} of the farm {farm} removed")


def show(file: str, output: str) -> None:
    """Prints the users."""
    with _checked(file):
        lines = htdigest.parse_lines(_read(file)[0])
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        found.setdefault((line.realm, line.user), []).append(line.hash_name)
    if output == "json":
        for (farm, user), names in found.items():
            show_json({"farm": farm, "user": user, "algorithms": names})
    else:
        rows = [(farm, user, ", ".join(names)) for (farm, user), names in found.items()]
        show_table(("farm", "user", "algorithms"), rows)


def check(file: str, name: str | None, options: Where) -> None:
    """Says whether a file is good, and a password right."""
    farm = options["realm"]
    with _checked(file):
        text, mode = _read(file)
        if mode & 0o077:
            problem = f"others may read it (mode {mode:04o}), so no server will start with it"
            raise CliError(f"{file}: {problem}; chmod 600 {file}", FAILED)
        users = htdigest.users_of(text, farm)
        if not users.secrets:
            raise CliError(
                f"{file}: it has no user of the farm {farm}; kelek farm user add", FAILED
            )
        lacking = [user for user, known in users.secrets.items() if len(known) < 2]
        if name is not None:
            _known(text, file, farm, name)
            password = password_of(options["secret_file"], f"Password of {name}")
            if not htdigest.is_password(users, name, password):
                raise CliError(f"{file}: that is not the password of {name}", FAILED)
            found = {"file": file, "farm": farm, "user": name, "right": True}
            _tell(options, found, f"{file}: that is the password of {name} for the farm {farm}")
            return
    lines = [f"{file}: good, {len(users.secrets)} users of the farm {farm}"]
    for user in lacking:
        (algorithm,) = users.secrets[user]
        lines.append(f"{file}: {user} has a line for {algorithm} alone; a new password has both")
    found = {"file": file, "farm": farm, "users": list(users.secrets), "lacking": lacking}
    _tell(options, found, *lines)


def _tell(options: Where, found: dict[str, object], *lines: str) -> None:
    """What was done, as an object or as text; with the files of passwords that were made up."""
    if options["output"] == "json":
        show_json(found)
        return
    secret_files = found.get("secret_files", {})
    assert isinstance(secret_files, dict)
    for name, path in secret_files.items():
        click.echo(f"{path}: the password of {name}")
    for line in lines:
        click.echo(line)


def check_names(farm: str, names: Sequence[str]) -> None:
    """Raises PasswordFileError."""
    for name in names:
        htdigest.with_user("", farm, name, "")


def _known(text: str, file: str, farm: str, name: str) -> None:
    users = htdigest.users_of(text, farm).secrets
    if name not in users:
        others = ", ".join(users) or "nobody"
        raise CliError(f"{file}: no user {name} of the farm {farm}; it has {others}", FAILED)


def _new_password(name: str, options: Where) -> str:
    if options["made"]:
        if options["secret_file"]:
            raise CliError("--make: a password is given too; leave one of them out")
        return secrets.token_urlsafe(PASSWORD_BYTES)
    if options["secret_file"] is not None:
        return password_of(options["secret_file"], "")
    password = password_of(None, f"New password of {name}")
    if password_of(None, "The same again") != password:
        raise CliError("the two passwords are not the same; nothing was changed")
    return password


def _keep(passwords: dict[str, str], options: Where) -> dict[str, str]:
    """Writes those that were made up where they are wanted; the files, by the names."""
    if not options["made"]:
        return {}
    paths = {name: str(Path(options["made"], f"{name}.secret")) for name in passwords}
    for name, path in paths.items():
        write(path, f"{passwords[name]}\n")
    return paths


# ---- the file ----


@contextmanager
def _checked(file: str) -> Iterator[None]:
    try:
        yield
    except PasswordFileError as error:
        raise CliError(f"{file}: {error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{file}: not UTF-8, so no password file") from error
    except OSError as error:
        raise CliError(f"{error.filename or file}: {error.strerror}") from error


def _read(file: str, missing: bool = False) -> tuple[str, int]:
    """Its text, and its mode. missing: it may be, and is empty then."""
    try:
        with Path(file).open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            data = opened.read(htdigest.FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        if not missing:
            raise
        return "", 0o600
    return data.decode(), mode


def edit(file: str, change: Callable[[str], str], missing: bool = False) -> None:
    """Changes a file. Who does so at the same time waits: no change is lost."""
    folder = Path(file).resolve().parent
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write(file, change(_read(file, missing)[0]))
    finally:
        os.close(lock)


def write(file: str, text: str) -> None:
    """Puts a file in the place of what was there, for its owner alone: whoever reads meanwhile sees
    the old one or the new one."""
    path = Path(file).resolve()
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # Mode 0600.
    try:
        with os.fdopen(handle, "wb") as opened:
            _keep_owner(opened.fileno(), path)
            opened.write(text.encode())
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):  # It is in its place.
            os.unlink(name)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_owner(file: int, path: Path) -> None:
    """Root must not take a file away from the servers' user."""
    try:
        before = path.stat()
    except FileNotFoundError:
        return
    if os.geteuid() == 0:
        os.fchown(file, before.st_uid, before.st_gid)
