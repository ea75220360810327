"""`supervisor systemd-unit`: prints a unit of systemd for a topology."""

import getpass
import sys
from pathlib import Path

import click

from ...actors.runtime import run_dir
from ..options import command, option
from .supervisor_client import NodeOptions, load, own_nodes

WATCHDOG_S = 30  # An actor that does not report for so long ends the service, which restarts.
UNIT = """\
# Install it as root, then see it as its user ({user}), whose supervisor the commands ask:
#   cp FILE /etc/systemd/system/{service}.service
#   systemctl daemon-reload && systemctl enable --now {service}
# `systemctl reload {service}` adopts a changed topology.
[Unit]
Description=kelek {nodes} of cluster {cluster}
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
User={user}
WorkingDirectory={folder}
ExecStart={command} start {topology}{flags}
ExecReload={command} reload {topology}
Restart=on-failure
RestartSec=2
# The topology, or what it needs, is wrong: another start would not help.
RestartPreventExitStatus=2
WatchdogSec={watchdog_s}
TimeoutStartSec=300
TimeoutStopSec=15
KillMode=mixed
# The supervisor itself restarts a process that the kernel ends.
OOMPolicy=continue
LimitNOFILE=65536
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


@command
def systemd_unit(
    options: NodeOptions,
    user: str = option("--user", default="", metavar="USER",
                       help="Whose processes they are (default: you)."),
) -> None:  # fmt: skip
    """Prints a unit of systemd that runs the nodes: supervisor systemd-unit > kelek.service.

    systemd knows when all processes are ready, shows their state, and restarts them when the
    supervisor or a process hangs.
    """
    found = load(options.topology)
    names = own_nodes(found, options.nodes)
    path = str(Path(found.path).resolve())
    service = f"kelek-{found.cluster}" + f"-{names[0]}" * (len(options.nodes) == 1)
    click.echo(
        UNIT.format(
            user=user or getpass.getuser(),
            service=service,
            nodes=", ".join(names),
            cluster=found.cluster,
            folder=_escaped(str(run_dir.home(path))),
            command=_command(),
            topology=quoted(path),
            flags="".join(f" --node={name}" for name in options.nodes),
            watchdog_s=WATCHDOG_S,
        ),
        nl=False,
    )


def _command() -> str:
    """This command by its absolute path."""
    script = Path(sys.executable).parent / "supervisor"
    if script.exists():
        return quoted(str(script))
    return f"{quoted(sys.executable)} -P -m {__package__}.supervisor_cli"


def quoted(word: str) -> str:
    """A word of ExecStart=: systemd expands % and $, and splits at blanks."""
    word = _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{word}"' if any(each in word for each in " \t'\"\\;") else word


def _escaped(word: str) -> str:
    return word.replace("%", "%%")
