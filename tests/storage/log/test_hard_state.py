"""The file of term and vote."""

from pathlib import Path

import pytest

from kelek.protocols.raft.messages import HardState
from kelek.storage.disk.disk import Disk
from kelek.storage.errors import StorageLocked
from kelek.storage.log.hard_state import HardStateFile
from kelek.tests.storage.log.test_log import ME


def test_term_and_vote_survive(tmp_path: Path) -> None:
    file = HardStateFile(Disk(tmp_path), ME)
    assert (file.state, file.voter, file.withheld, file.empty) == (HardState(), False, False, True)
    for term, vote in [(1, "n1"), (2, None), (2, "n3"), (2**53 - 1, ""), (7, "n" * 255)]:
        file.save(HardState(term, vote), term > 1)
        with pytest.raises(StorageLocked):
            HardStateFile(Disk(tmp_path), ME)
        file.close()
        file = HardStateFile(Disk(tmp_path), ME)
        assert file.state == HardState(term, vote)
        assert (file.voter, file.withheld, file.empty) == (term > 1, False, False)
    file.close()
