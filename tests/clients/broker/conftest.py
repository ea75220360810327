"""The broker of the client tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.tests.clients.broker.broker_thread import BrokerThread


@pytest.fixture
def broker_thread(tmp_path: Path) -> Iterator[BrokerThread]:
    broker_thread = BrokerThread(tmp_path)
    yield broker_thread
    broker_thread.close()
