"""A farm in virtual time whose servers have applications and routers."""

import json
from typing import Any

from kelek.protocols.garlicfarm.app.application import Application, AppSetup
from kelek.protocols.garlicfarm.app.orders import Order, OrderKind, PublishChoice, encode_order
from kelek.protocols.garlicfarm.app.router import Publication, RouterStatus
from kelek.protocols.garlicfarm.server.inbound import PeerSession
from kelek.protocols.garlicfarm.server.values import FarmSnapshot
from kelek.protocols.garlicfarm.wire.http_api import ViewRequest
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmCluster, client_request

INTERVAL_MS = 10_000
EPOCH_MS = 1_558_000_000_000


class Router:
    """A router with a settable status. It records its calls."""

    def __init__(self) -> None:
        self.said = RouterStatus({"router": {"uptime": 1}, "meta": {"lastPublishedTime": 0}})
        self.told: list[Publication | None] = []

    def status(self, cluster: str) -> RouterStatus:
        return self.said

    def publish(self, cluster: str, publication: Publication | None) -> None:
        self.told.append(publication)


class AppWorld(FarmCluster):
    """A farm whose servers each have an application and a router."""

    def __init__(
        self, seed: int = 1, members: tuple[int, ...] = (1, 2, 3), others: tuple[int, ...] = ()
    ) -> None:
        self.apps: dict[int, Application] = {}
        self.routers: dict[int, Router] = {}
        self.epoch_ms = EPOCH_MS  # Unix time at now_ms 0.
        self.app_setup = AppSetup("farm", post_interval_ms=INTERVAL_MS, admins=frozenset({"admin"}))
        super().__init__(seed, members, others)

    def start(self, number: int, servers: Any = (), **setup: Any) -> None:
        super().start(number, servers, **setup)
        self.routers.setdefault(number, Router())
        self.apps[number] = Application(
            self.app_setup, self.peers[number], self.routers[number], lambda: {"inbound": number}
        )

    def kill(self, number: int) -> None:
        super().kill(number)
        self.apps.pop(number, None)

    def deadlines(self) -> list[int]:
        return [*super().deadlines(), *(app.deadline_ms for app in self.apps.values())]

    def turn(self) -> None:
        for app in self.apps.values():
            app.wake(self.now_ms, self.epoch_ms + self.now_ms)
        super().turn()

    # The status it returns.

    def order(self, order: Order, grant: PeerSession | None = None) -> bool:
        value = encode_order(order)
        return self.ask(client_request(value), session=grant or PeerSession("admin")).is_accepted

    def view(self, number: int, name: str = "status", **numbers: int) -> dict[str, Any]:
        numbers = {key.strip("_"): value for key, value in numbers.items()}
        found = json.loads(self.apps[number].render(ViewRequest(name, numbers, "admin")))
        assert isinstance(found, dict)
        return found

    def is_settled(self) -> bool:
        """Whether every application has applied what is committed."""
        indexes = {app.state.index for app in self.apps.values()}
        return len(indexes) == 1 and not any(app.is_behind for app in self.apps.values())

    def settle(self) -> None:
        """Runs until each server's document is in the log and applied everywhere."""
        self.elect()
        self.run_until(
            lambda: all(len(app.state.posted) == len(self.apps) for app in self.apps.values())
        )
        self.run_until(self.is_settled)

    @property
    def encoded(self) -> set[bytes]:
        return {app.state.encode() for app in self.apps.values()}


def settled_farm(seed: int = 1, members: tuple[int, ...] = (1, 2, 3)) -> AppWorld:
    farm = AppWorld(seed, members)
    farm.settle()
    return farm


def order(kind: OrderKind, **fields: Any) -> Order:
    return Order(kind, "farm", EPOCH_MS, "admin")._replace(**fields)


def publish(choice: int | PublishChoice) -> Order:
    return order(OrderKind.PUBLISH, publish=choice)


def make_snapshot(cluster: AppWorld, number: int) -> FarmSnapshot:
    mark, pieces = cluster.apps[number].snapshot()
    assert mark.last_index == cluster.apps[number].state.index
    assert cluster.snapshot(number, b"".join(pieces))._replace(size=0) == mark
    return mark
