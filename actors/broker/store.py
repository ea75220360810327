"""The store of a broker's durable requests: a replicated table, used like by any client.

protocols/majordomo/store.py makes its requests.
"""

import os
import time
from itertools import count
from typing import NamedTuple

from ...net.client_keys import ClientKeys
from ...net.links import LinkLimits
from ...protocols.majordomo.durable import Durable
from ...protocols.majordomo.store import StoreRequests
from ...protocols.reqids import MACHINE_BYTES, make_reqids
from ...protocols.zerodb.client.client import TableClientMachine, TableClientSetup
from ..raft.leader_link import LeaderLink
from ..runtime.process_loop import ProcessLoop

LIMITS = LinkLimits(message_bytes_max=256 << 20, message_frames_max=1 << 18)


class StoreTarget(NamedTuple):
    """The table of the store."""

    urls: tuple[str, ...]  # Of table servers, the nearest first.
    table: int
    secret: bytes = b""  # Proves that the table is the broker's.


class BrokerStore:
    """Connects a Durable with its table."""

    def __init__(
        self,
        loop: ProcessLoop,
        target: StoreTarget,
        durable: Durable,
        keys: ClientKeys | None = None,
    ) -> None:
        """keys: None: connections without CURVE"""
        self._machine = os.urandom(MACHINE_BYTES)
        self._numbers = count(int.from_bytes(os.urandom(3), "big"))
        client = TableClientMachine(TableClientSetup(target.urls, owner=target.secret))
        self._requests = StoreRequests(target.table, durable, client, self._new_reqid, loop)
        self._requests.open_table(loop.now_ms)
        self._link = LeaderLink(loop, client, LIMITS, keys)
        self._is_new = True

    def _new_reqid(self) -> bytes:
        return make_reqids(int(time.time()), self._machine, os.getpid(), [next(self._numbers)])[0]

    def receive_answers(self, now_ms: int) -> None:
        """Reports the results of answered orders."""
        self._requests.receive_answers(now_ms)

    def send_orders(self, now_ms: int) -> None:
        """Sends new orders; called at the end of a wake."""
        has_orders = self._requests.send_orders(now_ms)
        self._link.act(now_ms, has_orders or self._is_new)
        self._is_new = False

    @property
    def deadline_ms(self) -> int | None:
        return self._link.deadline_ms

    def close(self) -> None:
        self._link.close()
