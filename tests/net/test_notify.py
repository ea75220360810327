"""sd_notify over a real datagram socket, as systemd has."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.net.notify import ServiceNotifier

Manager = tuple[socket.socket, dict[str, str]]


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """A manager's socket, and the environment that it gives."""
    is_path = request.param == "path"
    name = str(tmp_path / "n") if is_path else f"@kelek-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name if is_path else f"\0{name[1:]}")
        listener.settimeout(5)
        yield listener, {"NOTIFY_SOCKET": name, "HOME": "kept"}


def test_each_state_is_one_datagram(manager: Manager) -> None:
    listener, environment = manager
    notifier = ServiceNotifier(environment)
    assert environment == {"HOME": "kept"}, "children must not speak for this process"
    notifier.ready()
    assert listener.recv(100) == b"READY=1"
    notifier.reloading()
    assert listener.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
    notifier.show("3 processes")
    notifier.show("3 processes")
    notifier.stopping()
    assert [listener.recv(100) for _ in range(2)] == [b"STATUS=3 processes", b"STOPPING=1"]
    notifier.close()
    notifier.ready()


def test_the_watchdog_is_told_twice_in_its_time(manager: Manager) -> None:
    listener, environment = manager
    environment |= {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = ServiceNotifier(environment)
    assert notifier.watchdog_ms == 3000
    for now_ms in (10_000, 10_001, 11_499, 11_500, 12_999):
        notifier.alive(now_ms)
    notifier.stopping()
    assert [listener.recv(100) for _ in range(3)] == [b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]
    notifier.close()


@pytest.mark.parametrize(
    "variables",
    [{}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"NOTIFY_SOCKET": "/nowhere/at/all"}],
)
def test_without_a_manager_nothing_is_sent(variables: dict[str, str]) -> None:
    notifier = ServiceNotifier({**variables, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"})
    assert notifier.watchdog_ms == 0, "it is meant for another process"
    notifier.ready()
    notifier.alive(1)
    notifier.close()
