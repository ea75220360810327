"""By this module's name Spark finds the format `kelek` by itself, without session()."""

from kelek.pipeline.source import KelekSource as DefaultSource

__all__ = ["DefaultSource"]
