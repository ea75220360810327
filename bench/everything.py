"""Runs all questions in one call and writes their answers on one page.

    python -m kelek.bench all [--quick] [--shared DIR] [--dir DIR] [--results FILE]

The options are those of `log`, which runs first. A question that cannot run is named with the
reason and left out.
"""

import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kelek.bench.log import log
from kelek.bench.machine import BenchError
from kelek.bench.question import QUICK_ROUNDS, Question, ask, say


def main(questions: Sequence[Question], arguments: list[str]) -> int:
    options = log.parse(arguments, "all", __doc__)
    if platform.system() != "Linux":
        print("bench: needs Linux (/proc)", file=sys.stderr)
        return 2
    sections = []
    with tempfile.TemporaryDirectory(prefix="kelek-bench-", dir=options.dir) as directory:
        plan = log.plan_of(options)
        try:
            found = log.LogBench(Path(directory), options.shared, plan).run()
        except BenchError as error:
            found = log.about(Path(directory), plan, {"log": str(error)})
            say(f"without log: {error}")
        for question in questions:
            say(question.name)
            rounds = QUICK_ROUNDS if options.quick else question.rounds
            try:
                sections.append(ask(question, Path(directory), rounds))
            except BenchError as error:
                found["missing"][question.name] = str(error)
                say(f"without {question.name}: {error}")
    log.show(found, sections, options)
    return 0
