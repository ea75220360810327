"""`python -m kelek.bench QUESTION`: one module a question. Each measures both sides in one call."""

import sys
from collections.abc import Callable
from functools import partial

from kelek.bench import commands, everything, question
from kelek.bench.broker import broker
from kelek.bench.broker import durable as broker_durable
from kelek.bench.curve import curve, grants
from kelek.bench.farm import farm, logins
from kelek.bench.log import (
    backup,
    broadcast,
    entries,
    log,
    members,
    open_loop,
    reads,
    reload,
    segment,
    snapshot,
)
from kelek.bench.pipeline import catalogue as pipeline_catalogue
from kelek.bench.pipeline import changes as pipeline_changes
from kelek.bench.pipeline import log as pipeline_log
from kelek.bench.pipeline import memory as pipeline_memory
from kelek.bench.pipeline import pipeline
from kelek.bench.tables import lock, queue, soak, stream, tables
from kelek.bench.tables import memory as tables_memory
from kelek.bench.tables import restart as tables_restart
from kelek.bench.zre import zre

# Questions with goals, beside `log`.
QUESTIONS = [
    broadcast.QUESTION,
    broker.QUESTION,
    broker_durable.QUESTION,
    entries.QUESTION,
    members.QUESTION,
    reads.QUESTION,
    snapshot.QUESTION,
    tables.QUESTION,
    tables_memory.QUESTION,
]
# Run only by name: they need programs that few machines have, or much time.
ALONE = [
    backup.QUESTION,
    commands.QUESTION,
    curve.QUESTION,
    farm.QUESTION,
    grants.QUESTION,
    lock.QUESTION,
    logins.QUESTION,
    open_loop.QUESTION,
    pipeline.QUESTION,
    pipeline_catalogue.QUESTION,
    pipeline_changes.QUESTION,
    pipeline_log.QUESTION,
    pipeline_memory.QUESTION,
    queue.QUESTION,
    reload.QUESTION,
    stream.QUESTION,
    tables_restart.QUESTION,
    zre.QUESTION,
]
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "all": partial(everything.main, QUESTIONS),
    "log": log.main,
    "segment": segment.main,
    "soak": soak.main,
    **{one.name: partial(question.main, one) for one in [*QUESTIONS, *ALONE]},
}


def main() -> int:
    usage = f"usage: python -m kelek.bench {{{','.join(COMMANDS)}}} ..."
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(usage)
        return 0
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(usage, file=sys.stderr)
        return 2
    return COMMANDS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
