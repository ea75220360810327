"""How an error of a user's function becomes its answer."""

from typing import Self


class CatchErrors:
    """Catches the exceptions of a user's function, which become its answer."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None
