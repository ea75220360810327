"""Errors between a table and Spark, with the way out."""

from ..errors import PipelineError


class TableUnreachable(PipelineError):
    """No table server answers, or none can serve the request."""

    def __init__(self, urls: tuple[str, ...], why: object) -> None:
        super().__init__(
            f"{why}; is one of {', '.join(urls)} (option urls) the zerodb url of a node that runs, "
            "and do most nodes of its cluster run? Option timeoutMs says how long to wait"
        )
