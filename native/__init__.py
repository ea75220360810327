"""The Python side of csrc: buffers in, batches out. Only these modules call it."""

from pathlib import Path

try:
    from .._native import ffi as ffi
    from .._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != f"{__package__.rpartition('.')[0]}._native":  # A module that _native needs.
        raise
    from .missing import explain

    raise ImportError(explain(Path(__file__).parents[1])) from None
