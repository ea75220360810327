"""Request ids that no other process makes: time, machine, process, counter (12 bytes)."""

import os
import time
from itertools import count, islice

from ...protocols.reqids import make_reqids

_machine = os.urandom(3)
_counter = count(int.from_bytes(os.urandom(3), "big"))


def _on_fork() -> None:
    global _machine
    _machine = os.urandom(3)


os.register_at_fork(after_in_child=_on_fork)


def new_reqids(number: int) -> list[bytes]:
    """Ids of this second, in order. Threads may call this: they share the process's counter.

    The 3 bytes of machine are random, since two containers may have the same name and process id.
    """
    return make_reqids(int(time.time()), _machine, os.getpid(), islice(_counter, number))


def new_reqid() -> bytes:
    return new_reqids(1)[0]
