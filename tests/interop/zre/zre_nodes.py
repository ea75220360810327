"""Nodes of ZRE in processes of their own, for tests: what they are told and what they have said."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

DEADLINE_S = 60
PLAIN, PYRE, OURS, ZYRE = "zre_plain", "zre_pyre", "zre_ours", "zre_zyre"
Event = dict[str, Any]


class NodeProcess:
    """One node. Its events are kept, in their order."""

    def __init__(
        self, kind: str, port: int, *, name: str = "", within: Sequence[str] = (), **options: Any
    ) -> None:
        """within: what the command is put behind, to run somewhere else."""
        self.kind, self.name, self.port = kind, name or kind, port
        given = {"port": port, "name": self.name, **options}
        if "headers" in given:
            given["headers"] = json.dumps(given["headers"])
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
        self.process = subprocess.Popen(
            [*within, sys.executable, "-P", "-m", f"kelek.tests.interop.zre.{kind}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.events: list[Event] = []
        self._after = 0
        self.errors = b""
        self._changed = threading.Condition()
        self._ended = False
        self._threads = [threading.Thread(target=each) for each in (self._listen, self._complain)]
        for thread in self._threads:
            thread.start()
        with ExitStack() as stack:
            stack.callback(self.kill)
            self.uuid = str(self.wait_for("READY")["uuid"])
            stack.pop_all()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                if line.endswith(b"\n"):  # Of one that was killed half a line may be left.
                    self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _complain(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def tell(self, do: str, **values: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **values}).encode() + b"\n")
        self.process.stdin.flush()

    def mark(self) -> None:
        """What was said until now is no answer any more."""
        with self._changed:
            self._after = len(self.events)

    def wait_for(self, event: str, **values: object) -> Event:
        """The first event of this kind and with these values behind the mark."""
        wanted = {"event": event, **values}

        def found() -> Event | None:
            for one in self.events[self._after :]:
                if wanted.items() <= one.items():
                    return one
            return None

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, DEADLINE_S)
            one = found()
        if one is None:
            tail = "\n".join(map(str, self.events[-30:]))
            ended = f"ended: {self.process.poll()}" if self._ended else "still there"
            raise AssertionError(f"{self.name} never says {wanted} ({ended}); it says\n{tail}")
        return one

    def said(self, event: str, **values: object) -> list[Event]:
        """All events of a kind with these values."""
        wanted = {"event": event, **values}
        with self._changed:
            return [one for one in self.events if wanted.items() <= one.items()]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends it politely."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(DEADLINE_S)
        self._close()
        assert code == 0, self.errors.decode()

    def kill(self) -> None:
        """Ends it in the middle of whatever it does."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for thread in self._threads:
            thread.join(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()
        else:
            self._close()


def pairs(nodes: Sequence[NodeProcess]) -> list[tuple[NodeProcess, NodeProcess]]:
    """Those who can know each other, both ways: version 1 and pyre have no word in common."""
    strange = {PLAIN, PYRE}
    return [
        (one, other) for one in nodes for other in nodes
        if one is not other and {one.kind, other.kind} != strange
    ]  # fmt: skip


def meet(nodes: Sequence[NodeProcess], group: str) -> None:
    """Has all of them find each other, and join a group that they then see each other in."""
    for node in nodes:
        node.tell("join", group=group)
    for node, other in pairs(nodes):
        node.wait_for("ENTER", peer=other.uuid)
        node.wait_for("JOIN", peer=other.uuid, group=group)


def talk(nodes: Sequence[NodeProcess], group: str, mark: str) -> None:
    """Everybody whispers to everybody, and shouts once: all of it arrives."""
    for node in nodes:
        node.tell("shout", group=group, content=f"{mark} from {node.uuid}")
    for node, other in pairs(nodes):
        node.tell("whisper", to=other.uuid, content=f"{mark} to {other.uuid}")
    for node, other in pairs(nodes):
        node.wait_for("WHISPER", peer=other.uuid, content=[f"{mark} to {node.uuid}"])
        shouted = [f"{mark} from {other.uuid}"]
        node.wait_for("SHOUT", peer=other.uuid, group=group, content=shouted)
