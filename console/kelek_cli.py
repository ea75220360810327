"""The command `kelek`: the clients, from a shell. It starts no nodes; `supervisor` does.

Here are the names of all commands. A command's module is imported when the command runs, so that
`kelek --help` needs only click.
"""

import click

from ..version import __version__
from .cli_errors import CONTEXT, LazyGroup

members = LazyGroup(
    "members",
    "The cluster's members: list, add, remove.",
    {"log.members": "list add remove"},
)
log = LazyGroup(
    "log",
    "The replicated log: append, load, entries, watch, info, snapshot, members, transfer; "
    "dump and verify a data directory.",
    {
        "log.commands": "append entries watch info transfer bench",
        "log.load": "load",
        "log.snapshot": "snapshot",
        "log.offline": "dump verify",
    },
    groups=[members],
    old={"put": "append", "tail": "entries", "subscribe": "watch"},
)
snapshot = LazyGroup(
    "snapshot",
    "Kept snapshots of tables, which --as-of reads: keep, list, release.",
    {"table.snapshots": "keep list release"},
)
table = LazyGroup(
    "table",
    "Tables of keys and values: list, put, get, delete, scan, watch, load, export, copy, map."
    "\n\n"
    "A TABLE is a name or a number. A KEY or VALUE is UTF-8, or hexadecimal with the prefix 0x.",
    {
        "table.commands": "list open put get delete increment append expire scan count "
        "compact truncate rename drop info watch bench",
        "table.files": "load export",
        "table.jobs": "copy map jobs",
        "table.schema": "schema",
    },
    groups=[snapshot],
)
stream = LazyGroup(
    "stream",
    "Streams of records: list, create, append, read, tail, groups, trim.\n\n"
    "START is `first`, `last`, `end`, an offset, or a time such as 2026-11-28T18:00.",
    {
        "stream.commands": "list create retain append read tail info trim drop",
        "stream.groups": "groups reset forget",
    },
)
broker = LazyGroup(
    "broker",
    "Brokers: services, workers, queue, bench.",
    {
        "broker.lists": "services workers queue",
        "broker.bench": "bench",
    },
)
queue = LazyGroup(
    "queue",
    "Queues of jobs: info, list, show, put, cancel, retry, dead; docs/guides/queues.md.\n\n"
    "NAME is the name of a kelek.Queue. Its workers: kelek worker run MODULE:QUEUE.",
    {
        "queue.counts": "info",
        "queue.commands": "list show put cancel retry dead",
    },
)
worker = LazyGroup(
    "worker",
    "Workers of services and queues: run.",
    {"broker.worker": "run"},
)
node = LazyGroup(
    "node",
    "A ZRE node in this network: watch, chat.",
    {"node.commands": "watch chat"},
)
user = LazyGroup(
    "user",
    "Password files of servers: add, passwd, remove, list, check.",
    {"farm.files": "add passwd remove list check"},
)
farm = LazyGroup(
    "farm",
    "Farms: servers that share a log by Garlic Farm's protocol; docs/guides/farm.md.\n\n"
    "status, servers, documents, entries, watch, append; add, remove, publish, exclude, "
    "include, export, import for administrators; user and cert for files.",
    {
        "farm.commands": "status servers documents entries watch append",
        "farm.changes": "add remove publish exclude include export import",
        "farm.cert": "cert",
    },
    groups=[user],
)
keys = LazyGroup(
    "keys",
    "CURVE keys, and what each may do: new, show, list, allow, revoke, rotate; docs/security.md.",
    {"keys": "new show list allow revoke rotate"},
)
backup = LazyGroup(
    "backup",
    "Backups: `kelek backup FILE` makes one; verify reads it; docs/operations/backup.md.",
    {"admin.backup": "create verify"},
    default="create",
)
main = LazyGroup(
    "kelek",
    "A client of a kelek cluster.\n\n"
    "Exit codes: 0 done; 1 failed, or no node answered; 2 the command line, a file or the topology "
    "is wrong; 130 interrupted. The reason is one line on stderr.\n\n"
    'Shell completion: eval "$(_KELEK_COMPLETE=bash_source kelek)" (or zsh_source, fish_source) in '
    "the shell's start-up file.",
    {
        "bench": "bench",
        "broker.commands": "call",
        "node.commands": "discover",
        "lock.commands": "lock elect",
        "admin.recovery": "recover",
        "admin.restore": "restore",
        "admin.doctor": "doctor",
        "docs": "docs",
        "status.commands": "status",
        "top.commands": "top",
        "table.shell": "shell",
    },
    groups=[log, table, stream, queue, broker, worker, node, farm, keys, backup],
    context_settings=CONTEXT,
)
click.version_option(__version__, message="%(prog)s %(version)s")(main)

if __name__ == "__main__":
    main(prog_name="kelek")
