"""Runs an installed kelek: three nodes, a log, a table. What cibuildwheel does with each wheel."""

import kelek.testing

with kelek.testing.cluster() as cluster:
    with cluster.log() as log:
        index = log.append(b"an entry")
    with cluster.table() as table:
        table.put(b"key", b"value")
        assert table.get(b"key") == b"value"
print("three nodes replicate; the log is at", index)
