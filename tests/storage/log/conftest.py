"""Fixtures of the tests of logs."""

import pytest

from kelek.storage.log.log import SegmentIo


@pytest.fixture(params=["pwrite", "mmap"])
def io(request: pytest.FixtureRequest) -> SegmentIo:
    return "mmap" if request.param == "mmap" else "pwrite"
