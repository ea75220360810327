"""Lets Spark find the format `kelek` by this module's name, without session()."""

from kelek.pipeline.source import KelekSource as DefaultSource

__all__ = ["DefaultSource"]
