"""Errors that end an actor."""

from ..net.errors import OperatorError as OperatorError


class UnitBroken(Exception):
    """Actors of a restart unit disagree. All of them end and restart together."""
