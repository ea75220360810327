"""The command `kelek`: the clients, from a shell. It starts no nodes; `supervisor` does.

Here are the names of all commands. A command's module is imported when the command runs, so that
`kelek --help` needs only click.
"""

import click

from ..version import __version__
from .cli_errors import LazyGroup

members = LazyGroup(
    "members",
    "The cluster's members: list, add, remove.",
    {
        "log.members": {
            "list": "Prints each member's id and url, and the leader.",
            "add": "Adds the node ID, which serves clients at URL, to the members.",
            "remove": "Removes the node ID from the members.",
        },
    },
)
log = LazyGroup(
    "log",
    "The replicated log: append, load, entries, watch, info, snapshot, members, transfer; "
    "dump and verify a data directory.",
    {
        "log.commands": {
            "append": "Appends each DATA as one entry, in order, and prints its index once it is "
            "committed.",
            "entries": "Prints committed entries: index, term and data.",
            "watch": "Prints entries as they are committed, until it is interrupted.",
            "info": "Prints the leader, and the written, committed and applied indexes of each "
            "node.",
            "transfer": "Moves the leadership to the node TO, by default to the most advanced "
            "follower.",
            "bench": "Measures the rate and the latency of appends on a running cluster.",
        },
        "log.load": {
            "load": "Appends every line of FILE as one entry, in order; `-` is standard input.",
        },
        "log.snapshot": {
            "snapshot": "Makes every node take a snapshot now and drop the entries in it.",
        },
        "log.offline": {
            "dump": "Prints the entries in a node's DATA_DIR, committed or not, without "
            "contacting the node.",
            "verify": "Verifies the files in a node's DATA_DIR, without contacting the node.",
        },
    },
    groups=[members],
    old={"put": "append", "tail": "entries", "subscribe": "watch"},
)
table = LazyGroup(
    "table",
    "Tables of keys and values: open, put, get, delete, scan, count, load, export, copy, map, "
    "...\n\n"
    "A TABLE is a number. A KEY or VALUE is UTF-8, or hexadecimal with the prefix 0x.",
    {
        "table.commands": {
            "open": "Creates TABLE with these options.",
            "put": "Stores VALUE under KEY; VALUE `-` is all of standard input.",
            "get": "Prints the value of each KEY; exit code 1 if a key does not exist.",
            "delete": "Deletes each KEY, or all keys of a range, in one atomic write.",
            "scan": "Prints keys and values in key order, separated by a tab.",
            "count": "Prints the number of keys.",
            "compact": "Makes every node rewrite TABLE, which frees the space of deleted keys.",
            "truncate": "Deletes all keys of TABLE, and its options.",
            "info": "Prints the properties of TABLE, or of all tables, on a node.",
            "watch": "Prints changes as they happen, until it is interrupted: log index, key, "
            "value.",
            "bench": "Measures puts, gets and scans on a running cluster.",
        },
        "table.files": {
            "load": "Stores every row of FILE: CSV with a header, JSON lines or Parquet; `-` is "
            "standard input.",
            "export": "Writes keys and values to FILE, which `load` can read; `-` is standard "
            "output.",
        },
        "table.jobs": {
            "copy": "Makes a node copy a snapshot of TABLE, or of a range of it, into the table "
            "TARGET.",
            "map": "Makes a node run the program in the file MAPPER over a snapshot of TABLE.",
            "jobs": "Prints the newest copy, map and range jobs of each node, or the details of "
            "one JOB.",
        },
    },
)
broker = LazyGroup(
    "broker",
    "Brokers: services, workers, queue, bench.",
    {
        "broker.lists": {
            "services": "Lists the services with workers or requests, of each broker.",
            "workers": "Lists the workers, their service and their load.",
            "queue": "Lists the services with waiting requests, the longest wait first.",
        },
        "broker.bench": {
            "bench": "Measures throughput and latency of a running broker.",
        },
    },
)
worker = LazyGroup(
    "worker",
    "Workers of services: run.",
    {
        "broker.worker": {
            "run": "Serves with a function, or with a function decorated by @kelek.service.",
        },
    },
)
node = LazyGroup(
    "node",
    "A ZRE node in this network: watch, chat.",
    {
        "node.commands": {
            "watch": "Shows the nodes of the network with groups and headers, as they change.",
            "chat": "Shouts each line of standard input to GROUP, and prints what others shout.",
        },
    },
)
user = LazyGroup(
    "user",
    "Password files of servers: add, passwd, remove, list, check.",
    {
        "farm.files": {
            "add": "Adds users to a password FILE, which is created if needed, with mode 0600.",
            "passwd": "Changes the password of a user in a password FILE.",
            "remove": "Removes users from a password FILE.",
            "list": "Prints the users in a password FILE, with farm and algorithms.",
            "check": "Checks whether servers accept a password FILE; with NAME, whether the "
            "password is right.",
        },
    },
)
farm = LazyGroup(
    "farm",
    "Farms: servers that share a log by Garlic Farm's protocol; docs/farm.md.\n\n"
    "status, servers, documents, entries, watch, append; add, remove, publish, exclude, "
    "include, export, import for administrators; user and cert for files.",
    {
        "farm.commands": {
            "status": "Shows the leader, how far the log is committed, the publisher, and the "
            "members as the leader sees them.",
            "servers": "Shows the members, each with its own status or the reason why there is "
            "none.",
            "documents": "Shows the last status of each server and the publisher; -o json prints "
            "everything.",
            "entries": "Prints committed entries, one a line: index, term, user and value.",
            "watch": "Prints entries as `kelek farm entries` does, then each new one, until it is "
            "interrupted.",
            "append": "Appends each DATA as an entry, in order, and ends when they are committed.",
        },
        "farm.changes": {
            "add": "Adds the server ID, which the others reach at ENDPOINT: tcp://HOST:PORT.",
            "remove": "Removes the server ID.",
            "publish": "Orders who publishes the MetaLS: the server ID, the rule's choice (auto), "
            "or no server (none).",
            "exclude": "Excludes destinations from the MetaLS.",
            "include": "Includes excluded destinations again.",
            "export": "Prints the administrators' configuration and the members as JSON for "
            "import.",
            "import": "Sets an exported configuration, of this farm or of another one; `-` is "
            "standard input.",
        },
        "farm.cert": {
            "cert": "Makes a certificate for servers at each HOST, for trials (default: "
            "127.0.0.1).",
        },
    },
    groups=[user],
)
main = LazyGroup(
    "kelek",
    "A client of a kelek cluster.\n\n"
    "Exit codes: 0 done; 1 failed, or no node answered; 2 the command line, a file or the topology "
    "is wrong; 130 interrupted. The reason is one line on stderr.\n\n"
    'Shell completion: eval "$(_KELEK_COMPLETE=bash_source kelek)" (or zsh_source, fish_source) in '
    "the shell's start-up file.",
    {
        "broker.commands": {
            "call": "Calls SERVICE, and prints its answer.",
        },
        "node.commands": {
            "discover": "Lists the services of kelek nodes in this network: cluster and urls.",
        },
        "admin.recovery": {
            "recover": "Starts a new cluster from one node's data, when a majority is lost FOR "
            "GOOD.",
        },
        "admin.doctor": {
            "doctor": "Prints which optional parts of kelek work here: Spark with its Java, "
            "Arrow, mappers, profiles.",
        },
        "table.shell": {
            "shell": "Runs commands interactively, with history and completion.",
        },
    },
    groups=[log, table, broker, worker, node, farm],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, message="%(prog)s %(version)s")(main)

if __name__ == "__main__":
    main(prog_name="kelek")
