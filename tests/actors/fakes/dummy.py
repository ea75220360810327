"""An actor for tests of the supervisor: it fails as $FAULTS says."""

import json
import os
import select
import signal

from kelek.actors.errors import OperatorError, UnitBroken
from kelek.actors.runtime.actor import Actor
from kelek.storage.errors import Damaged


class Dummy(Actor):
    role = "dummy"

    def on_start(self) -> None:
        fault = json.loads(os.environ["FAULTS"]).get(self.setup.name)
        if fault == "setup":
            raise OperatorError(self.setup.data_dir, "is not what it was", "give it back")
        if fault == "damaged" and self.setup.node == "n1":
            raise Damaged(self.setup.data_dir, "is not what it was", "give it back")
        if fault == "crash":
            raise AssertionError("a bug at the start")
        if fault == "slow start":
            self.log("starts-slowly")
            for _ in range(600):  # Again and again: a signal just before a wait does not end it.
                select.select([], [], [], 1)
        if fault == "can't be ended":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.fault = fault
        self.log("serves", pid=os.getpid())
        self.ready()

    def drained(self) -> bool:
        return bool(self.fault != "never drained")

    def on_wake(self, now_ms: int) -> None:
        if self.fault == "broken":
            raise UnitBroken("gap after seq 3")
        if self.fault == "can't be ended":
            select.select([], [], [], 600)
        if self.fault == "hangs at the end" and self.stopping:
            select.select([], [], [], 600)

    def status(self) -> dict[str, object]:
        return {"term": 3, "leader": "n1", "commit_index": 10, "applied_index": 8}
