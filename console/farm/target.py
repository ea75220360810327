"""Which farm a command of `kelek` is about, as whom it is spoken to, and how failures are said."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from ...clients.errors import FarmError, FarmNoLeader, FarmUnavailable, NodeError
from ...clients.farm.farm import Farm
from ...clients.farm.operations import FarmTuning
from ...clients.farm.values import read_secret, secret_of
from ..cli_errors import FAILED, CliError
from ..output import stdin
from ..targets import Where, load_topology

REACH_MS = 2000  # Nobody waits longer for servers that are not there at all.


class FarmTarget(NamedTuple):
    """Where a farm is, and who speaks with it."""

    place: str  # For errors: the topology's path, or the urls.
    servers: tuple[str, ...] | Mapping[int, str]
    farm: str
    user: str
    secret_file: str | None  # None: it is asked for.
    ca: str | None
    tuning: FarmTuning
    by_topology: bool


def find_farm(where: Where, changes: bool) -> FarmTarget:
    """From --url, or from a topology. changes: it takes an administrator. Raises Ending."""
    return _of_urls(where) if where["urls"] else _of_topology(where, changes)


def _of_urls(where: Where) -> FarmTarget:
    if where["topology"]:
        raise CliError("--url: a topology is given too; leave one of them out")
    tuning = FarmTuning(
        where["tls"] or "1.3",
        proxy=where["proxy"] or "",
        i2p=where["i2p"] or bool(where["proxy"]),
        insecure_jraft=where["insecure_jraft"],
    )
    if not where["user"] and not tuning.insecure_jraft:
        raise CliError("--user: missing; with --url somebody has to be named")
    name = where["name"] or "farm"
    user, secret_file = where["user"] or "", where["secret_file"]
    place = ", ".join(where["urls"])
    return FarmTarget(place, where["urls"], name, user, secret_file, where["ca"], tuning, False)


def _of_topology(where: Where, changes: bool) -> FarmTarget:
    from ...actors.runtime.run_dir import home
    from ...actors.topology.farm import endpoint_of

    for option in ("tls", "proxy", "i2p", "insecure_jraft"):
        if where[option]:
            name = option.replace("_", "-")
            raise CliError(f"--{name}: it goes with --url; a topology says so itself")
    path, found = load_topology(where)
    name = _name_of(where, path, found.farms)
    own = {node: one.farm for node, one in found.nodes.items() if one.farm}
    servers = found.farms[name]["servers"]
    endpoints = {
        number: endpoint_of(own[server]) if server in own else server
        for number, server in servers.items()
    }
    settings = next((own[server] for server in servers.values() if server in own), None)
    if settings is None:
        raise CliError(f"{path}: no node of it serves the farm {name}; name a server with --url")
    tuning = FarmTuning(
        settings["tls"], settings["server_name"], settings["proxy"], settings["i2p"],
        settings["insecure_jraft"],
    )  # fmt: skip

    def file(key: str) -> str | None:
        return str(home(path) / Path(settings[key]).expanduser()) if settings[key] else None

    user, secret_file = where["user"], where["secret_file"]
    admins = found.farms[name]["admins"]
    if user is None and not tuning.insecure_jraft:
        own_secret = file("secret_file")
        if changes and settings["user"] not in admins:
            user = _only_admin(path, name, admins)
        elif secret_file is None and own_secret and os.access(own_secret, os.R_OK):
            user, secret_file = settings["user"], own_secret
        elif len(admins) == 1:
            user = admins[0]
        elif secret_file is not None:
            raise CliError("--user: missing; whose password is in --secret-file?")
        else:
            raise CliError(
                f"--user: missing; {path}: the servers' secret_file can't be read by you"
            )
    ca = where["ca"] or file("ca")
    return FarmTarget(path, endpoints, name, user or "", secret_file, ca, tuning, True)


def _name_of(where: Where, path: str, farms: Mapping[str, Any]) -> str:
    name = where["name"]
    if not farms:
        raise CliError(f"{path}: it has no farm; give it `farms:` (docs/farm.md), or --url")
    if name is None:
        if len(farms) > 1:
            raise CliError(f"--farm: missing; {path} has {', '.join(farms)}")
        return next(iter(farms))
    if name not in farms:
        raise CliError(f"--farm: {path} has no farm '{name}'; it has {', '.join(farms)}")
    return str(name)


def _only_admin(path: str, name: str, admins: list[str]) -> str:
    if len(admins) == 1:
        return admins[0]
    if not admins:
        way_out = f"name one under farms.{name}.admins, and start the servers anew"
        raise CliError(f"{path}: the farm {name} has no administrator; {way_out}")
    raise CliError(f"--user: missing; administrators of {name} are {', '.join(admins)}")


def password_of(secret_file: str | None, prompt: str) -> str:
    """From a file, from standard input, or from whoever sits at the terminal. Raises Ending."""
    try:
        if secret_file == "-":
            return secret_of(stdin().read(), "standard input")
        if secret_file is not None:
            return read_secret(secret_file)
    except FarmError as error:
        raise CliError(f"--secret-file: {error}") from error
    except OSError as error:
        raise CliError(f"--secret-file: {secret_file}: {error.strerror}") from error
    if sys.stdin is None or not sys.stdin.isatty():
        raise CliError("--secret-file: missing; there is no terminal to ask for a password at")
    try:
        given: str = click.prompt(prompt, hide_input=True, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None
    return given


@contextmanager
def opened_farm(where: Where, changes: bool = False) -> Iterator[Farm]:
    """A Farm for one command; what goes wrong with it ends the command with one line."""
    doors = find_farm(where, changes)
    password = None
    if not doors.tuning.insecure_jraft:
        prompt = f"Password of {doors.user} for the farm {doors.farm}"
        password = password_of(doors.secret_file, prompt)
    with in_one_line(doors):
        try:
            farm = Farm(
                doors.servers,
                doors.farm,
                user=doors.user,
                password=password,
                ca_file=doors.ca,
                timeout_ms=int(where["timeout_s"] * 1000),
                tuning=doors.tuning,
            )
        except ValueError as error:
            raise CliError(f"{doors.place}: {error}") from error
        except NodeError as error:
            raise CliError(f"{error}; kelek discover lists who is there", FAILED) from error
        except (FarmError, OSError) as error:
            raise CliError(f"--ca: {error}") from error
        with farm:
            farm.reach(min(REACH_MS, farm.timeout_ms))
            yield farm


@contextmanager
def in_one_line(doors: FarmTarget) -> Iterator[None]:
    """Ends the command when the farm can't be asked."""
    place = f"{doors.place}: farm {doors.farm}"
    try:
        yield
    except FarmUnavailable as error:
        way_out = f"start it: supervisor start {doors.place}"
        if not doors.by_topology:
            way_out = "does it run there?"
        raise CliError(f"{place}: {error}; {way_out}", FAILED) from error
    except FarmNoLeader as error:
        way_out = "a majority of its servers has to run: kelek farm servers"
        raise CliError(f"{place}: {error}; {way_out}", FAILED) from error
    except FarmError as error:
        raise CliError(f"{place}: {error}", FAILED) from error
