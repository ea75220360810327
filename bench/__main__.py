"""`python -m kelek.bench QUESTION`: one module a question, both sides measured in one call."""

import sys

from kelek.bench import log, segment

QUESTIONS = {"log": log.main, "segment": segment.main}


def main() -> int:
    usage = f"usage: python -m kelek.bench {{{','.join(QUESTIONS)}}} ..."
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(usage)
        return 0
    if len(sys.argv) < 2 or sys.argv[1] not in QUESTIONS:
        print(usage, file=sys.stderr)
        return 2
    return QUESTIONS[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
