"""Messages to systemd about this process: sd_notify(3), by a datagram socket of our own."""

import contextlib
import os
import socket
from collections.abc import MutableMapping

from .clock import monotonic_ms

SOCKET = "NOTIFY_SOCKET"
WATCHDOG_US, WATCHDOG_PID = "WATCHDOG_USEC", "WATCHDOG_PID"


class ServiceNotifier:
    """Tells the service manager that started this process how it does; without one, nothing.

    environment   its variables are removed, so that children do not speak for this process

    watchdog_ms   the manager ends the process after this time without alive(); 0: never
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        address = environment.pop(SOCKET, "")
        period_us = environment.pop(WATCHDOG_US, "0")
        pid = environment.pop(WATCHDOG_PID, str(os.getpid()))
        self.watchdog_ms = 0
        self.due_ms = 0  # Of the next alive(), in monotonic_ms().
        self._shown = ""
        self.is_heard = False  # A manager listens.
        self._socket: socket.socket | None = None
        if address[:1] not in ("/", "@"):  # A path, or a name in Linux' abstract namespace.
            return
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self.is_heard = True
        if pid == str(os.getpid()) and period_us.isdecimal():
            self.watchdog_ms = int(period_us) // 1000

    def ready(self) -> None:
        """It serves, after its start or a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ms() * 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def show(self, status: str) -> None:
        """What `systemctl status` shows: one line, sent when it changes."""
        if status != self._shown:
            self._shown = status
            self._send(f"STATUS={status}")

    def alive(self, now_ms: int) -> None:
        """Call it twice in each watchdog_ms, while everything works."""
        if self.watchdog_ms and now_ms >= self.due_ms:
            self.due_ms = now_ms + self.watchdog_ms // 2
            self._send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # The manager restarts, or its queue is full.
                self._socket.sendto(text.encode(), self._address)
