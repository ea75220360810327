"""Limits that a command knows before it loads a protocol."""

PORT_MAX = 65535
IPC_PATH_BYTES_MAX = 107  # zmq.IPC_PATH_MAX_LEN: what fits into sockaddr_un with its final zero.
NUMBER_MAX = (1 << 53) - 1  # The highest term and log index that every wire can carry.
TABLE_MAX = (1 << 32) - 1  # The highest number of a table.
