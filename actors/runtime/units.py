"""The restart units of a supervisor: actors that start and end together, and their state."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .children import Child, LogFile
from .plan import ActorPlan, NodePlan, UnitPlan
from .setup import EXIT_BROKEN

STOP_KILL_MS = 4000  # After SIGTERM.
# Orders of an operator to a unit.
RESTART, STOP, REMOVE = "restart", "stop", "remove"
UPDATE = "update"  # Its actors adopt their new settings while they run.


class Member:
    """One actor of a unit, across restarts."""

    def __init__(self, unit: "Unit", plan: ActorPlan, log: LogFile) -> None:
        self.unit = unit
        self.plan = plan
        self.log = log
        self.child: Child | None = None
        self.state = "waiting"
        self.started_ms = 0
        self.reported_ms = 0
        self.status: dict[str, Any] = {}
        self.tail_shown: list[str] = []

    @property
    def routing_id(self) -> bytes:
        """Of its connection to the supervisor."""
        return f"{self.unit.node.name}/{self.plan.name}/{self.unit.epoch}".encode()

    @property
    def words(self) -> dict[str, object]:
        """What names it in a lifecycle line."""
        pid = self.child.pid if self.child else 0
        return {"node": self.unit.node.name, "role": self.plan.name, "pid": pid}


class Unit:
    """A restart unit: actors that start and end together."""

    def __init__(self, node: NodePlan, plan: UnitPlan) -> None:
        self.node = node
        self.plan = plan
        self.members: list[Member] = []
        self.epoch = 0
        self.restarts = 0
        self.failures = 0  # In a row, less than HEALTH_MS apart.
        self.failed = False  # One of its actors has ended: the others are being killed.
        self.fault_code = EXIT_BROKEN
        self.fault_role = ""
        self.fault = ""
        self.was_ready = False
        self.ready_ms: int | None = None
        self.restart_ms: int | None = None
        self.order = ""  # An operator's; but UPDATE, carried out when its actors have ended.
        self.order_ms = 0
        self.updating: set[str] = set()  # Actors that have not adopted what UPDATE gave them.
        self.next: tuple[NodePlan, UnitPlan] | None = None  # For its next start.
        self.proved = False  # It has been ready with its present plan.
        self.given_up = ""

    @property
    def children(self) -> list[Child]:
        return [member.child for member in self.members if member.child]

    @property
    def is_ready(self) -> bool:
        return all(member.state == "ready" for member in self.members)

    @property
    def is_settled(self) -> bool:
        """Whether it has its settings, and nothing happens to it."""
        has_settings = self.is_ready and self.order != UPDATE
        return has_settings or bool(self.given_up) or self.order == STOP

    def give(self, order: str, now_ms: int) -> None:
        """Notes an order of an operator, which gives a failed unit new attempts."""
        self.order, self.order_ms = order, now_ms
        self.failures, self.given_up, self.restart_ms = 0, "", None

    def adopt_plan(self, make_dir: Callable[[Path], None]) -> None:
        """Takes the next plan, if there is one, when no actor runs. Actors of both keep their logs.

        make_dir   makes a directory
        """
        if self.next is None:
            return
        self.node, self.plan = self.next
        self.next, self.proved = None, False
        self.make_members(make_dir)

    def make_members(self, make_dir: Callable[[Path], None]) -> None:
        former = {member.plan.name: member for member in self.members}
        logs = Path(self.node.data_dir) / "logs"
        self.members = []
        for actor in self.plan.actors:
            make_dir(Path(actor.data_dir))
            member = former.pop(actor.name, None)
            if member is None:
                member = Member(self, actor, LogFile(logs / f"{actor.name}.log"))
            member.plan = actor
            self.members.append(member)
        for member in former.values():
            member.log.close()

    def set_state(self, state: str) -> None:
        for member in self.members:
            member.state = state


def stop_members(members: Sequence[Member], elapsed_ms: int, rank: int = 0) -> None:
    """Sends SIGTERM to the lowest rank that runs, at least to this one; SIGKILL after some time."""
    running = [(member, member.child) for member in members if member.child is not None]
    lowest = min((member.plan.stop_rank for member, _ in running), default=0)
    for member, child in running:
        if elapsed_ms >= STOP_KILL_MS:
            child.kill()
        elif member.plan.stop_rank <= max(lowest, rank) and member.state != "stopping":
            member.state = "stopping"
            child.request_stop()
