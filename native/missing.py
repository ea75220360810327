"""Explains why the C part of kelek is missing, and what to do."""

from pathlib import Path


def explain(package: Path) -> str:
    """package   the folder, or the place in an archive, that kelek was imported from"""
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
