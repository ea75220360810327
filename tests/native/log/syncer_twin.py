"""A plain Python twin of csrc/log/syncer.c."""

import errno
import os
import queue
import select
import threading

SYNCS_MAX = 16


class SyncerTwin:
    """klk_syncer_*() with a queue, a thread of Python, a pipe and os.fdatasync()."""

    def __init__(self) -> None:
        self.answered, self._answer = os.pipe()
        self._orders: queue.SimpleQueue[tuple[int, int, int] | None] = queue.SimpleQueue()
        self._errors: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._running = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            (fd, start, end), error = order, 0
            try:
                if start < end:
                    os.pwrite(fd, bytes(end - start), start)
                os.fdatasync(fd)
            except OSError as caught:
                error = caught.errno or 0
            self._errors.put(error)
            os.write(self._answer, b"x")

    def fileno(self) -> int:
        return self.answered

    def start(self, fd: int) -> None:
        self.fill(fd, 0, 0)

    def fill(self, fd: int, start: int, end: int) -> None:
        self._check()
        if self._running == SYNCS_MAX:
            raise ValueError("too many")
        self._running += 1
        self._orders.put((fd, start, end))

    def poll(self, wait: bool = False) -> bool:
        self._check()
        if not self._running:
            return False
        if not wait and not select.select([self.answered], [], [], 0)[0]:
            return False
        os.read(self.answered, 1)
        self._running -= 1
        error = self._errors.get()
        if error:
            raise OSError(error, os.strerror(error))
        return True

    def close(self) -> None:
        if self._thread.is_alive():
            self._orders.put(None)
            self._thread.join()
            os.close(self.answered)
            os.close(self._answer)

    def _check(self) -> None:
        if not self._thread.is_alive():
            raise OSError(errno.EBADF, "closed")
