"""Warnings for a user whose call waits."""


def warn(text: str) -> None:
    """Logs why requests wait."""
    import logging  # Loaded at the first warning: 10 ms of a start.

    logging.getLogger("kelek").warning("kelek: %s", text)
