"""Wire codecs and state machines without I/O: no sockets, clocks, files or random numbers."""
