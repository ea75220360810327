"""The farm and user of a `kelek farm` command, and its error messages."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...clients.errors import Error, FarmError, FarmNoLeader, FarmUnavailable, NodeError
from ...clients.farm.farm import Farm
from ...clients.farm.operations import FarmTuning
from ...clients.farm.values import TlsFiles, read_secret, secret_of
from .. import completion
from ..cli_errors import FAILED, CliError
from ..client_keys import of_discovery
from ..options import OUTPUT, option, timeout_option, topology_option, url_option
from ..render import stdin
from ..targets import load_topology, reach, report_errors

if TYPE_CHECKING:
    from ...clients.io.keys import KeyArguments


class FarmOptions(NamedTuple):
    """The farm and the user of a command, and the output format."""

    topology: str | None = topology_option("Topology of the farm")
    urls: tuple[str, ...] = url_option("A server, tls://HOST:PORT")
    farm: str | None = option(
        "--farm", metavar="NAME", shell_complete=completion.farms,
        help="Name of the farm (default: the topology's only one; with --url: farm).",
    )  # fmt: skip
    user: str | None = option(
        "--user", metavar="NAME",
        help="User (default: the servers' user in the topology, for changes the only "
             "administrator).",
    )  # fmt: skip
    secret_file: str | None = option(
        "--secret-file", metavar="FILE", type=click.Path(allow_dash=True),
        help="File with the user's password alone; `-` is standard input (default: the command "
             "asks).",
    )  # fmt: skip
    ca: str | None = option("--ca", metavar="FILE", type=click.Path(),
                            help="CA certificates (default: the topology's, else the "
                                 "system's).")  # fmt: skip
    certificate: str | None = option(
        "--certificate", metavar="FILE", type=click.Path(),
        help="The user's certificate, if the servers ask for one.",
    )  # fmt: skip
    key: str | None = option("--key", metavar="FILE", type=click.Path(),
                             help="Its private key, with mode 0600.")  # fmt: skip
    tls: str | None = option("--tls", type=click.Choice(["1.2", "1.3"]),
                             help="With --url: the lowest version (default: 1.3).")  # fmt: skip
    proxy: str | None = option("--proxy", metavar="HOST:PORT",
                               help="With --url: I2P's HTTP proxy.")  # fmt: skip
    i2p: bool = option("--i2p", is_flag=True,
                       help="With --url: a tunnel on this machine, no TLS.")  # fmt: skip
    insecure_jraft: bool = option(
        "--insecure-jraft", is_flag=True,
        help="With --url: a JRaft server on this machine: no TLS, no user.",
    )  # fmt: skip
    timeout_ms: int = timeout_option("Time limit.")
    output: str = OUTPUT


class FarmTarget(NamedTuple):
    """A farm's servers, and the user of a command."""

    source: str  # The topology's path or the urls, for error messages.
    servers: tuple[str, ...] | Mapping[int, str]
    farm: str
    user: str
    secret_file: str | None  # None: the command asks at the terminal.
    files: TlsFiles
    tuning: FarmTuning
    start: str = ""  # The way out when no server answers; empty with --url.
    keys: "KeyArguments | None" = None  # Of a search for zre://CLUSTER.


def _target_of_urls(options: FarmOptions) -> FarmTarget:
    if options.topology:
        raise CliError("--url: a topology is given too; remove one of the options")
    tuning = FarmTuning(
        options.tls or "1.3",
        proxy=options.proxy or "",
        i2p=options.i2p or bool(options.proxy),
        insecure_jraft=options.insecure_jraft,
    )
    if not options.user and not tuning.insecure_jraft:
        raise CliError("--user: missing; --url needs a user")
    who = options.user or "", options.secret_file
    name, source = options.farm or "farm", ", ".join(options.urls)
    files = TlsFiles(options.ca, options.certificate, options.key)
    return FarmTarget(source, options.urls, name, *who, files, tuning, keys=of_discovery())


def _target_of_topology(options: FarmOptions, needs_admin: bool) -> FarmTarget:
    """needs_admin: the command changes the farm. Raises CliError."""
    from ...actors.runtime.run_dir import home
    from ...actors.topology.farm import admins_of, endpoint_of

    for name in ("tls", "proxy", "i2p", "insecure_jraft"):
        if getattr(options, name):
            flag = name.replace("_", "-")
            raise CliError(f"--{flag}: valid only with --url; a topology has its own setting")
    path, topology = load_topology(options.topology)
    name = _farm_name(options.farm, path, topology.farms)
    settings_of = {name: node.farm for name, node in topology.nodes.items() if node.farm}
    servers = topology.farms[name].servers
    own = {number: settings_of[node] for number, node in servers.items() if node in settings_of}
    endpoints = {**servers, **{number: endpoint_of(found) for number, found in own.items()}}
    if not own:
        raise CliError(f"{path}: no node serves the farm {name}; give a server with --url")
    settings = next(iter(own.values()))
    tuning = FarmTuning(
        settings.tls, settings.server_name, settings.proxy, settings.i2p, settings.insecure_jraft
    )

    def absolute(file: str) -> str | None:
        return str(home(path) / Path(file).expanduser()) if file else None

    user, secret_file = options.user, options.secret_file
    admins = admins_of(topology.farms[name])
    if user is None and not tuning.insecure_jraft:
        own_secret = absolute(settings.secret_file)
        if needs_admin and settings.user not in admins:
            user = _only_admin(path, name, admins)
        elif secret_file is None and own_secret and os.access(own_secret, os.R_OK):
            user, secret_file = settings.user, own_secret
        elif len(admins) == 1:
            user = admins[0]
        elif secret_file is not None:
            raise CliError("--user: missing; name the user of the --secret-file")
        else:
            raise CliError(f"--user: missing; {path}: you cannot read the servers' secret_file")
    certificate, key = options.certificate, options.key
    if certificate is None and user == settings.user and settings.client_ca_file:
        certificate, key = absolute(settings.certificate_file), absolute(settings.key_file)
    files = TlsFiles(options.ca or absolute(settings.ca_file), certificate, key)
    start = f" start it: supervisor start {path}"
    return FarmTarget(path, endpoints, name, user or "", secret_file, files, tuning, start)


def _farm_name(name: str | None, path: str, farms: Mapping[str, Any]) -> str:
    if not farms:
        raise CliError(f"{path}: it has no farm; add `farms:` (docs/guides/farm.md) or use --url")
    if name is None:
        if len(farms) > 1:
            raise CliError(f"--farm: missing; {path} has {', '.join(farms)}")
        return next(iter(farms))
    if name not in farms:
        raise CliError(f"--farm: {path} has no farm '{name}'; it has {', '.join(farms)}")
    return name


def _only_admin(path: str, name: str, admins: Sequence[str]) -> str:
    if len(admins) == 1:
        return admins[0]
    if not admins:
        way_out = f"name one under farms.{name}.admins, and restart the servers"
        raise CliError(f"{path}: the farm {name} has no administrator; {way_out}")
    raise CliError(f"--user: missing; administrators of {name} are {', '.join(admins)}")


def password_of(secret_file: str | None, prompt: str) -> str:
    """A password from a file, standard input, or the terminal. Raises CliError."""
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
        raise CliError("--secret-file: missing; there is no terminal to ask for a password")
    try:
        given: str = click.prompt(prompt, hide_input=True, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None
    return given


@contextmanager
def open_farm(options: FarmOptions, needs_admin: bool = False) -> Iterator[Farm]:
    """A Farm for one command. Errors end the command with one line."""
    target = _target_of_urls(options) if options.urls else _target_of_topology(options, needs_admin)
    password = None
    if not target.tuning.insecure_jraft:
        prompt = f"Password of {target.user} for the farm {target.farm}"
        password = password_of(target.secret_file, prompt)
    with report_farm_errors(target):
        try:
            farm = Farm(
                target.servers,
                target.farm,
                user=target.user,
                password=password,
                **target.files._asdict(),
                key=target.keys.key if target.keys else None,
                server_keys=target.keys.server_keys if target.keys else None,
                timeout_ms=options.timeout_ms,
                tuning=target.tuning,
            )
        except ValueError as error:
            raise CliError(f"{target.source}: {error}") from error
        except NodeError as error:
            raise CliError(f"{error}; kelek discover lists the nodes", FAILED) from error
        except (FarmError, OSError) as error:
            raise CliError(f"{target.source}: {error}") from error
        with farm:
            reach(farm.reach, farm.timeout_ms)
            yield farm


@contextmanager
def report_farm_errors(target: FarmTarget) -> Iterator[None]:
    ways_out: dict[type[Error], str] = {
        FarmUnavailable: target.start,
        FarmNoLeader: " see kelek farm servers",
    }
    with report_errors(f"{target.source}: farm {target.farm}", ways_out):
        yield
