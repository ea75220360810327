"""Old names of public methods, arguments and settings. They work for one release and warn."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from warnings import warn

from .io.operations import Declared

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any] | Declared[..., Any, Any, Any])


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns the caller's caller that old is deprecated and new replaces it."""
    warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel)


def old_name(old: str, method: Method, stacklevel: int = 3) -> Method:
    """A method or an operation under its old name: it warns and calls the method."""
    if isinstance(method, Declared):
        return cast(Method, Declared(old_name(old, method.steps, 4), method.runner))
    name = method.__name__

    @wraps(method)
    def alias(*args: Any, **kwargs: Any) -> Any:
        warn_renamed(f"{old}()", f"{name}()", stacklevel)
        return method(*args, **kwargs)

    alias.__name__ = old
    alias.__doc__ = f"Deprecated: use {name}()."
    return cast(Method, alias)


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
