"""A defect as patches of source text (planted.py)."""

from pathlib import Path
from typing import NamedTuple

import kelek

PACKAGE = Path(kelek.__file__).parent
CORE = "protocols/raft/core.py"
SAFETY_BROKEN = (
    "leader completeness|committed otherwise|log matching|state machine safety|append-only|"
    "acknowledged|commits what it has not"
)


class Patch(NamedTuple):
    """A piece of source text, which must occur exactly once, and its replacement."""

    path: str
    old: str
    new: str


class PlantedBug(NamedTuple):
    """A defect: its patches, and a regular expression for the failure that must be found."""

    name: str
    patches: tuple[Patch, ...]
    expected: str = SAFETY_BROKEN
    first_seed: int = 1  # The seed to begin with.
    runs: str = "log"  # A name of campaign.RUNS.
    seeds: int = 60  # So many are tried.
