"""The only door to csrc: buffers in, batches out. It never opens a file or a socket of its own."""

from pathlib import Path

try:
    from .._native import ffi as ffi
    from .._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != f"{__package__.rpartition('.')[0]}._native":  # One of what it needs.
        raise
    from .missing import explain

    raise ImportError(explain(Path(__file__).parents[1])) from None
