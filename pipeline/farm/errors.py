"""What goes wrong between a farm and Spark, each with the way out."""

from ..errors import PipelineError


class FarmUnreachable(PipelineError):
    """None of the servers answers, or none leads."""

    def __init__(self, urls: tuple[str, ...], farm: str, why: object) -> None:
        super().__init__(
            f"{why}; does a server of the farm {farm!r} (option farm) run at one of "
            f"{', '.join(urls)} (option urls), and do most of its servers run?"
        )


class FarmRefuses(PipelineError):
    """The servers do not let us in, or we do not trust them."""

    def __init__(self, why: object) -> None:
        super().__init__(
            f"{why}; look at the options user, secretFile (a file with the password alone, that "
            "nobody else may read, on each executor) and caFile (whose certificates are trusted)"
        )
