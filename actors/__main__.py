"""The process of an actor: `python -m kelek.actors MODULE --setup FILE.json`."""

import sys

from .errors import OperatorError
from .runtime.actor import actor_class
from .runtime.setup import EXIT_SETUP, ActorSetup


def main() -> int:
    if len(sys.argv) != 4 or sys.argv[2] != "--setup":
        sys.exit("usage: python -m kelek.actors MODULE --setup FILE.json")
    try:
        setup = ActorSetup.load(sys.argv[3])
    except OperatorError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETUP
    return actor_class(sys.argv[1])(setup).run()


if __name__ == "__main__":
    sys.exit(main())
