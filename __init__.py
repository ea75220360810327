"""kelek: a replicated log, tables, a broker, discovery and JRaft over ZeroMQ."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .clients.async_log import AsyncLog as AsyncLog
    from .clients.errors import LogError as LogError
    from .clients.log import Log as Log

# Loaded when first asked for: `import kelek` alone loads neither ZeroMQ nor the C core.
_LAZY = {
    "AsyncLog": ".clients.async_log",
    "Log": ".clients.log",
    "LogError": ".clients.errors",
}

__all__ = ["AsyncLog", "Log", "LogError"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value
