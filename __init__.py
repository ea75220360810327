"""kelek: a replicated log, tables, a broker, discovery and JRaft over ZeroMQ."""
