"""Old names of public methods, arguments and settings. They work for one release and warn."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar
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


def old_fields(**renamed: str) -> Callable[[type[T]], type[T]]:
    """A decorator of NamedTuples: old names work as arguments and as attributes, and warn.

    renamed   old name -> new name
    """

    def decorate(kind: type[T]) -> type[T]:
        make = kind.__new__

        def new(cls: type[T], *args: Any, **kwargs: Any) -> T:
            for old in renamed.keys() & kwargs.keys():
                warn_renamed(f"{old}=", f"{renamed[old]}=")
                kwargs.setdefault(renamed[old], kwargs.pop(old))
            return make(cls, *args, **kwargs)

        kind.__new__ = new  # type: ignore[assignment, method-assign]
        for old, name in renamed.items():
            setattr(kind, old, _old_attribute(old, name))
        return kind

    return decorate


def _old_attribute(old: str, name: str) -> property:
    def value(self: object) -> object:
        warn_renamed(old, name)
        return getattr(self, name)

    return property(value, doc=f"Deprecated: use {name}.")
