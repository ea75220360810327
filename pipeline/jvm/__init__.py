"""The Python side of the catalogue: processes that Spark's JVM starts (java/, Worker.java).

`python -m kelek.pipeline.jvm` answers requests on its standard input until that closes. It decides
what a read can do for a query (filters.py), plans and reads tables, changes and writes them.
"""
