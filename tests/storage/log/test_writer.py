"""The log's writer: one sync for all queued jobs."""

import select
from pathlib import Path

import pytest

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.raft.messages import AppendJob
from kelek.storage.log.writer import Writer
from kelek.tests.storage.log.test_log import batch, opened


def test_a_writer_syncs_once_for_its_jobs(tmp_path: Path) -> None:
    writer = Writer(opened(tmp_path), 7)
    assert writer.flush() is None
    writer.enqueue(AppendJob(6, 1, 0, 0, [batch(1).block]))
    assert writer.dropped == 1
    assert writer.flush() is None
    writer.enqueue(AppendJob(7, 1, 0, 0, [batch(1, 3).block, batch(4).block]))
    writer.enqueue(AppendJob(7, 2, 4, 1, [batch(5, 2).block]))
    writer.enqueue(AppendJob(7, 3, 2, 1, [batch(3, 1, 2).block]))
    writer.enqueue(AppendJob(7, 4, 3, 2, [batch(4, 1, 2).block]))
    assert writer.flush() == 4
    assert writer.log.runs == [(1, 1), (3, 2)]
    assert writer.log.last_index == 4
    with pytest.raises(LocalProtocolError, match="after job 4"):
        writer.enqueue(AppendJob(7, 6, 4, 2, [batch(5, 1, 2).block]))
    writer.enqueue(AppendJob(7, 5, 4, 1, [batch(5, 1, 2).block]))
    with pytest.raises(LocalProtocolError, match="do not follow"):
        writer.flush()
    writer.log.close()


def test_jobs_queued_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    writer = Writer(opened(tmp_path, background_sync=True), 7)
    log = writer.log
    assert log.sync_fd is not None
    writer.enqueue(AppendJob(7, 1, 0, 0, [batch(1).block]))
    assert writer.flush() is None
    assert log.syncing
    for index in range(2, 40):
        writer.enqueue(AppendJob(7, index, index - 1, 1, [batch(index, size=900).block]))
        assert writer.flush() is None
        assert log.last_index == 1, "nothing is written while the disk syncs"
    ready, _, _ = select.select([log.sync_fd], [], [], 10.0)
    assert ready
    assert writer.poll_sync() == 1
    assert writer.poll_sync() is None
    assert writer.flush() is None  # All segments but the last are synced already.
    assert log.last_index == 39
    select.select([log.sync_fd], [], [], 10.0)
    assert writer.poll_sync() == 39
    writer.enqueue(AppendJob(7, 40, 38, 1, []))
    assert writer.flush() == 40, "a cut is durable at once"
    log.close()
    reopened = opened(tmp_path, epoch=2)
    assert reopened.last_index == 38
    reopened.close()
