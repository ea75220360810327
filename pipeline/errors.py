"""Errors of the pipeline. Each message says what to do."""


class PipelineError(Exception):
    """Root of the pipeline's errors."""


class OptionError(PipelineError, ValueError):
    """An option is unknown, is missing or has an invalid value."""


class SchemaError(PipelineError, ValueError):
    """The columns differ from those that the source returns or the sink accepts."""


class NoJava(PipelineError):
    """No Java that Spark supports was found."""
