"""What goes wrong between kelek and Spark, in words that say what to do about it."""


class PipelineError(Exception):
    """Something about a pipeline could not be done."""


class OptionError(PipelineError, ValueError):
    """An option is unknown, missing or has a value that it can't have."""


class SchemaError(PipelineError, ValueError):
    """The columns are not what this source has, or this sink takes."""


class NoJava(PipelineError):
    """There is no Java that Spark runs on."""
