"""Answers the requests of Spark's JVM until it closes the pipe."""

import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..table.connection import drop_connections, kept_connections
from ..table.local_read import drop_snapshot
from .deltas import do_commit_delta, do_delta, do_plan_delta
from .messages import REPORTED, Channel, error_of, own_channel
from .overwrites import (
    do_abort_overwrite,
    do_bulk,
    do_commit_overwrite,
    do_plan_overwrite,
    do_rows,
)
from .scans import do_estimate, do_plan, do_push, do_read
from .tables import (
    do_add_columns,
    do_create,
    do_delete,
    do_drop,
    do_load,
    do_names,
    do_rename,
    do_stage,
)
from .writes import do_plan_write, do_write

OPERATIONS: Mapping[str, Callable[[Channel, Any], None]] = {
    "ping": lambda channel, request: channel.send({}),
    "names": do_names,
    "load": do_load,
    "create": do_create,
    "stage": do_stage,
    "add_columns": do_add_columns,
    "rename": do_rename,
    "drop": do_drop,
    "delete": do_delete,
    "plan_write": do_plan_write,
    "write": do_write,
    "plan_delta": do_plan_delta,
    "delta": do_delta,
    "commit_delta": do_commit_delta,
    "plan_overwrite": do_plan_overwrite,
    "rows": do_rows,
    "bulk": do_bulk,
    "commit_overwrite": do_commit_overwrite,
    "abort_overwrite": do_abort_overwrite,
    "push": do_push,
    "estimate": do_estimate,
    "plan": do_plan,
    "read": do_read,
    "stop": lambda channel, request: None,  # It came when all rows were sent.
}
KEEP_S = 5  # Connections and a snapshot stay open for the next request.


def main() -> int:
    channel = own_channel()
    threading.Thread(target=_end_with_jvm, name="kelek-jvm", daemon=True).start()
    with kept_connections():
        while True:
            if not channel.pipe.has_more(KEEP_S):
                drop_connections()
                drop_snapshot()
            if (request := channel.receive()) is None:
                return 0
            try:
                OPERATIONS[request["op"]](channel, request)
            except REPORTED as error:
                channel.send(error_of(error))


def _end_with_jvm() -> None:
    """Ends this process when the JVM has ended, also while it waits for a server."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # A hang-up alone.
    poll.poll()
    os._exit(0)


sys.exit(main())
