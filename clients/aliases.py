"""Old names of public methods and arguments. They work for one release and warn."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar
from warnings import warn

P = ParamSpec("P")
T = TypeVar("T")


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns the caller's caller that old is deprecated and new replaces it."""
    warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel)


def old_name(old: str, method: Callable[P, T]) -> Callable[P, T]:
    """A method under its old name: it warns and calls the method."""

    @wraps(method)
    def alias(*args: P.args, **kwargs: P.kwargs) -> T:
        warn_renamed(f"{old}()", f"{method.__name__}()")
        return method(*args, **kwargs)

    alias.__name__ = old
    alias.__doc__ = f"Deprecated: use {method.__name__}()."
    return alias
