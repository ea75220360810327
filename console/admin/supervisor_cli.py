"""The command `supervisor`: starts, stops and shows the processes of a topology.

Exit codes: 0 success; 1 something does not run as it should; 2 the command line, the topology or
its environment is wrong; 3 (status, logs) nothing of this topology runs or ran here.

Here are the names of all commands. A command's module is imported when the command runs.
"""

import click

from ...version import __version__
from ..cli_errors import CONTEXT, LazyGroup

main = LazyGroup(
    "supervisor",
    "Runs the processes of a topology: every role of every node is one process.\n\n"
    "TOPOLOGY is a YAML file; without it ./topology.yaml, or else the demo that comes with kelek."
    '\n\nShell completion: eval "$(_SUPERVISOR_COMPLETE=bash_source supervisor)" (or zsh_source, '
    "fish_source) in the shell's start-up file.",
    {
        "admin.start": "start stop",
        "admin.status": "status",
        "admin.reload": "reload",
        "admin.upgrade": "upgrade",
        "admin.processes": "restart profile",
        "logs.commands": "logs events",
        "logs.dump": "dump",
        "admin.check": "check schema",
        "admin.systemd": "systemd-unit",
    },
    context_settings=CONTEXT,
)
click.version_option(__version__, message="%(prog)s %(version)s")(main)

if __name__ == "__main__":
    main(prog_name="supervisor")
