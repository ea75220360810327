"""Wire codecs and sans-IO state machines: no sockets, no clocks, no files, no dice in here."""
