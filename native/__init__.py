"""The Python side of csrc: buffers in, batches out. Only these modules call it."""

from pathlib import Path


def _why_missing(package: Path) -> str:
    """Why there is no C part, and what to do.

    package   the folder, or the place in an archive, that kelek was imported from
    """
    if not package.is_dir():
        return (
            f"kelek was imported from the archive {package.parent}, and Python loads no C from "
            "archives: so spark-submit --py-files can't bring kelek. Install the wheel in the "
            "Python of the driver and of each executor, or send a packed environment by --archives"
        )
    return (
        f"{package} is a source tree of kelek that is not built. Start the program from another "
        f"folder, as Python looks in its own first, or build it: pip install -e {package}"
    )


try:
    from .._native import ffi as ffi
    from .._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != f"{__package__.rpartition('.')[0]}._native":  # A module that _native needs.
        raise
    raise ImportError(_why_missing(Path(__file__).parents[1])) from None
