"""The process of an actor: `python -m kelek.actors MODULE --setup FILE.json`; or a fork server."""

import sys

from .errors import OperatorError
from .runtime.actor import actor_class
from .runtime.fork_server import FLAG, serve
from .runtime.setup import EXIT_SETUP, ActorSetup


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == [FLAG]:
        forked = serve(int(words[1]), words[2].split(","))
        if forked is None:
            return 0
        words = [forked.module, "--setup", forked.path]
    if len(words) != 3 or words[1] != "--setup":
        sys.exit("usage: python -m kelek.actors MODULE --setup FILE.json")
    try:
        setup = ActorSetup.load(words[2])
    except OperatorError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETUP
    return actor_class(words[0])(setup).run()


if __name__ == "__main__":
    sys.exit(main())
