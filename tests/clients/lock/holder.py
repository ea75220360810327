"""A process that takes a lock again and again, and writes while it believes that it holds it.

    python -m kelek.tests.clients.lock.holder URLS TABLE OWNER TTL_S [slow | stops]

Each turn prints `taken TOKEN`, then writes KIND/TOKEN/NUMBER a few times with each kind of guard in
TABLE, where KIND is `alive` (a batch with when_alive), `fenced` (the store refuses a smaller token
than it has seen) or `bare` (none). A write that a guard refuses prints `refused KIND TOKEN`.

slow   its clock runs at half the speed, so it believes for too long that it holds the lock
stops  it stops itself (SIGSTOP) when it holds the lock for the first time, before its first write
"""

import os
import signal
import sys

import kelek
from kelek.clients.lock import session

NAME = "drill"
FENCE = b"fence"
WRITES = 8
KINDS = b"alive", b"fenced", b"bare"


def slow_down() -> None:
    boot_ms = session.boot_ms
    begun_ms = boot_ms()
    session.boot_ms = lambda: begun_ms + (boot_ms() - begun_ms) // 2


def write(table: kelek.Table, kind: bytes, lock: kelek.Lock, session: int, number: int) -> bool:
    token = lock.token.to_bytes(8, "big")
    batch = table.batch().put(kind + b"/" + token + b"/%d" % number, b"")
    if kind == b"alive":
        batch.when_alive(session)
    elif kind == b"fenced":
        batch.when_less(FENCE, (lock.token + 1).to_bytes(8, "big")).put(FENCE, token)
    return table.commit(batch).succeeded


def turn(table: kelek.Table, lock: kelek.Lock, stops: bool) -> None:
    """Writes as long as it believes that it holds the lock, checking before each round alone."""
    session = lock.session
    print("taken", lock.token, flush=True)
    if stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    for number in range(WRITES):
        for kind in KINDS:
            if not write(table, kind, lock, session, number):
                print("refused", kind.decode(), lock.token, flush=True)
        if not lock.held:
            return


def main() -> None:
    urls, number, owner, ttl_s, *rest = sys.argv[1:]
    if rest == ["slow"]:
        slow_down()
    lock = kelek.Lock(urls, NAME, ttl_s=float(ttl_s), owner=owner)
    stops = rest == ["stops"]
    with kelek.Table(urls, int(number)) as table:
        while True:
            try:
                lock.acquire()
                turn(table, lock, stops)
                stops = False
                lock.release()
            except (kelek.LockLost, kelek.Timeout):
                print("lost", flush=True)


if __name__ == "__main__":
    main()
