"""`kelek farm user`: password files of farm servers. A command replaces a file completely or not
at all.
"""

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click

from ...net.private_files import replace_file
from ...protocols.garlicfarm.wire import htdigest
from ...protocols.garlicfarm.wire.htdigest import PasswordFileError
from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, argument, command, option
from ..render import show, show_json, show_table
from .target import password_of

PASSWORD_BYTES = 24  # Random bytes of a generated password.


class PasswordFileOptions(NamedTuple):
    """The farm of a password file, and a password."""

    farm: str = option("--farm", default="farm", show_default=True, metavar="NAME",
                       help="The farm's name; a file may serve several farms.")  # fmt: skip
    secret_file: str | None = None
    make_dir: str | None = None
    output: str = OUTPUT


SECRET = option(
    "--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
    help="File with the password alone; `-` is standard input (default: the command asks).",
)  # fmt: skip
MAKE = option("--make", metavar="DIR", type=click.Path(),
              help="Generate a password and write it to DIR/NAME.secret.")  # fmt: skip
PasswordOptions = Annotated[PasswordFileOptions, {"secret_file": SECRET}]
NewPasswordOptions = Annotated[PasswordFileOptions, {"secret_file": SECRET, "make_dir": MAKE}]


@command
def add(
    options: NewPasswordOptions,
    file: str = argument(type=click.Path()),
    names: tuple[str, ...] = argument(metavar="NAME...", nargs=-1, required=True),
) -> None:
    """Adds users to a password FILE, which is created if needed, with mode 0600.

    Running servers see it within seconds.
    """
    farm = options.farm
    if len(names) > 1 and not options.make_dir:
        raise CliError("--make: missing; several users need generated passwords")

    def change(text: str) -> str:
        known = htdigest.users_of(text, farm).secrets
        for name in names:
            if name in known:
                way_out = f"kelek farm user passwd {file} {name}"
                raise CliError(f"{file}: {name} of the farm {farm} already exists; {way_out}")
        for name, password in passwords.items():
            text = htdigest.with_user(text, farm, name, password)
        return text

    with _checked(file):
        for name in names:
            htdigest.with_user("", farm, name, "")  # Checks the names.
        passwords: dict[str, str] = {}
        change(_read(file, missing=True)[0])  # Report problems before asking for a password.
        passwords.update({name: _new_password(name, options) for name in names})
        secret_files = _write_secrets(passwords, options)
        edit(file, change, missing=True)
    line = f"{file}: {', '.join(names)} of the farm {farm} added"
    _print_result(options, line, file=file, added=names, secret_files=secret_files)


@command
def passwd(
    options: NewPasswordOptions,
    file: str = argument(type=click.Path()),
    name: str = argument(metavar="NAME"),
) -> None:
    """Changes the password of a user in a password FILE.

    Running servers disconnect users of the old password within seconds.
    """
    farm = options.farm
    with _checked(file):
        _check_user(_read(file)[0], file, farm, name)
        password = _new_password(name, options)

        def change(text: str) -> str:
            _check_user(text, file, farm, name)
            return htdigest.with_user(text, farm, name, password)

        secret_files = _write_secrets({name: password}, options)
        edit(file, change)
    line = f"{file}: {name} of the farm {farm} has a new password"
    _print_result(options, line, file=file, changed=name, secret_files=secret_files)


@command
def remove(
    options: PasswordFileOptions,
    file: str = argument(type=click.Path()),
    names: tuple[str, ...] = argument(metavar="NAME...", nargs=-1, required=True),
) -> None:
    """Removes users from a password FILE. Running servers disconnect them within seconds."""
    farm = options.farm

    def change(text: str) -> str:
        for name in names:
            _check_user(text, file, farm, name)
            text = htdigest.without_user(text, farm, name)
        return text

    with _checked(file):
        edit(file, change)
    line = f"{file}: {', '.join(names)} of the farm {farm} removed"
    _print_result(options, line, file=file, removed=names)


@command
def list_(output: str = OUTPUT, file: str = argument(type=click.Path())) -> None:
    """Prints the users in a password FILE, with farm and algorithms."""
    with _checked(file):
        lines = htdigest.parse_lines(_read(file)[0])
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        found.setdefault((line.realm, line.user), []).append(line.hash_name)
    keys = ("farm", "user", "algorithms")
    if output == "json":
        for (farm, user), names in found.items():
            show_json(dict(zip(keys, (farm, user, names), strict=True)))
    else:
        show_table(keys, [(*user, ", ".join(names)) for user, names in found.items()])


@command
def check(
    options: PasswordOptions,
    file: str = argument(type=click.Path()),
    name: str | None = argument(metavar="[NAME]", required=False),
) -> None:
    """Checks whether servers accept a password FILE; with NAME, whether the password is right."""
    farm = options.farm
    with _checked(file):
        text, mode = _read(file)
        if mode & 0o077:
            problem = f"others may read it (mode {mode:04o}), so servers refuse it"
            raise CliError(f"{file}: {problem}; chmod 600 {file}", FAILED)
        users = htdigest.users_of(text, farm)
        if not users.secrets:
            raise CliError(
                f"{file}: it has no user of the farm {farm}; kelek farm user add", FAILED
            )
        incomplete = [user for user, known in users.secrets.items() if len(known) < 2]
        if name is not None:
            _check_user(text, file, farm, name)
            password = password_of(options.secret_file, f"Password of {name}")
            if not htdigest.is_password(users, name, password):
                raise CliError(f"{file}: that is not the password of {name}", FAILED)
            line = f"{file}: that is the password of {name} for the farm {farm}"
            _print_result(options, line, file=file, user=name, right=True)
            return
    lines = [f"{file}: good, {len(users.secrets)} users of the farm {farm}"]
    for user in incomplete:
        (algorithm,) = users.secrets[user]
        lines.append(f"{file}: {user} has only a {algorithm} line; a new password adds the other")
    _print_result(options, *lines, file=file, users=list(users.secrets), lacking=incomplete)


def _print_result(options: PasswordFileOptions, *lines: str, **values: Any) -> None:
    """Prints the values as a JSON object, or where generated passwords are and lines."""
    secret_files = values.get("secret_files", {})
    passwords = (f"{path}: the password of {name}" for name, path in secret_files.items())
    show(options.output, {"farm": options.farm, **values}, *passwords, *lines)


def _check_user(text: str, file: str, farm: str, name: str) -> None:
    users = htdigest.users_of(text, farm).secrets
    if name not in users:
        others = ", ".join(users) or "no users"
        raise CliError(f"{file}: no user {name} of the farm {farm}; it has {others}", FAILED)


def _new_password(name: str, options: PasswordFileOptions) -> str:
    if options.make_dir:
        if options.secret_file:
            raise CliError("--make: a password is given too; remove one of the options")
        return secrets.token_urlsafe(PASSWORD_BYTES)
    if options.secret_file is not None:
        return password_of(options.secret_file, "")
    password = password_of(None, f"New password of {name}")
    if password_of(None, "Repeat the password") != password:
        raise CliError("the passwords differ; nothing was changed")
    return password


def _write_secrets(passwords: dict[str, str], options: PasswordFileOptions) -> dict[str, str]:
    """Writes generated passwords to files; returns the paths by user."""
    if not options.make_dir:
        return {}
    paths = {name: str(Path(options.make_dir, f"{name}.secret")) for name in passwords}
    for name, path in paths.items():
        replace_file(path, f"{passwords[name]}\n")
    return paths


# ---- the file ----


@contextmanager
def _checked(file: str) -> Iterator[None]:
    try:
        yield
    except PasswordFileError as error:
        raise CliError(f"{file}: {error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{file}: not a password file: it is not UTF-8") from error
    except OSError as error:
        raise CliError(f"{error.filename or file}: {error.strerror}") from error


def _read(file: str, missing: bool = False) -> tuple[str, int]:
    """The file's text and mode. missing: an absent file counts as empty."""
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
    """Changes a file under a lock, so that concurrent changes are not lost."""
    folder = Path(file).resolve().parent
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        replace_file(file, change(_read(file, missing)[0]))
    finally:
        os.close(lock)
