"""Hosts on a network of their own: namespaces of Linux, joined by a bridge, each cable of which can
be pulled. Root makes them, or anybody where user namespaces are allowed."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

NETWORK = "10.66.0"
NETWORKS_V6 = "fd66::", "fe80::"
BROADCAST = f"{NETWORK}.255"
HOLD = ["sh", "-c", "echo up; exec cat"]  # Until its stdin is closed.


class HostsMissing(Exception):
    """This machine does not allow it; the reason."""


class Hosts:
    """Hosts 0 to count - 1, address(i) each."""

    def __init__(self, count: int, network: str = NETWORK) -> None:
        self._network = network
        self._stack = ExitStack()
        self._as_root = os.geteuid() == 0
        try:
            unshare = ["unshare", "-n"] if self._as_root else ["unshare", "-rn"]
            self._switch = self._hold([*unshare, *HOLD])
            self._do(self._switch, "ip link add br0 type bridge forward_delay 0")
            self._do(self._switch, "ip link set br0 up")
            self._hosts = [self._add(number) for number in range(count)]
        except (OSError, subprocess.CalledProcessError) as error:
            self._stack.close()
            said = getattr(error, "stderr", b"") or str(error).encode()
            raise HostsMissing(said.decode().strip()) from error

    def address(self, number: int) -> str:
        return f"{self._network}.{number + 1}"

    def add_v6(self) -> None:
        """Gives host 0 fd66::1 and fe80::1, and so on."""
        try:
            for number, host in enumerate(self._hosts):
                for network in NETWORKS_V6:
                    self._do(host, f"ip -6 addr add {network}{number + 1}/64 dev eth0 nodad")
        except subprocess.CalledProcessError as error:
            raise HostsMissing(error.stderr.decode().strip()) from error

    def within(self, number: int) -> list[str]:
        """What a command is put behind to run on that host."""
        return self._enter(self._hosts[number])

    def on_bridge(self) -> list[str]:
        """What a command is put behind to see the traffic of all hosts."""
        return self._enter(self._switch)

    def kill(self, number: int, command: bytes = b"") -> int:
        """Ends all processes of a host at once, as a power failure does, or those whose command
        line has these words. Returns their number."""
        processes = [*self._processes(self._hosts[number], command)]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
        return len(processes)

    def _processes(self, holder: int, command: bytes) -> Iterator[int]:
        """A pidfd of each such process in the namespace that a process holds."""
        namespace = os.readlink(f"/proc/{holder}/ns/net")
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(path.name)
                if pid == holder or os.readlink(path / "ns/net") != namespace:
                    continue
                if command in (path / "cmdline").read_bytes().replace(b"\0", b" "):
                    process = os.pidfd_open(pid)
                    if os.readlink(path / "ns/net") == namespace:  # Not a new one of this id.
                        yield process

    def cut(self, number: int) -> None:
        """Pulls its cable: nothing passes, and no machine is told."""
        self._do(self._switch, f"ip link set cable{number} nomaster")

    def heal(self, number: int) -> None:
        self._do(self._switch, f"ip link set cable{number} master br0")

    def _add(self, number: int) -> int:
        host = self._hold([*self._enter(self._switch), "unshare", "-n", *HOLD])
        cable = f"cable{number}"
        self._do(
            self._switch, f"ip link add {cable} type veth peer name eth0 netns {host}",
            f"ip link set {cable} master br0 up",
        )  # fmt: skip
        self._do(
            host, f"ip addr add {self.address(number)}/24 brd {self._network}.255 dev eth0",
            "ip link set eth0 up", "ip link set lo up",
        )  # fmt: skip
        return host

    def _hold(self, command: list[str]) -> int:
        """A process that keeps a namespace; its pid."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._stack.callback(process.communicate)
        assert process.stdout is not None
        if process.stdout.readline() != b"up\n":
            _, said = process.communicate()
            raise subprocess.CalledProcessError(process.returncode, command, stderr=said)
        return process.pid

    def _enter(self, pid: int) -> list[str]:
        user = [] if self._as_root else ["-U", "--preserve-credentials"]
        return ["nsenter", "-t", str(pid), *user, "-n"]

    def _do(self, pid: int, *commands: str) -> None:
        for command in commands:
            subprocess.run([*self._enter(pid), *command.split()], check=True, capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
