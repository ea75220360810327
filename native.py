"""The only door to csrc: buffers in, batches out. It never opens a file or a socket of its own."""

from ._native import ffi, lib


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC32C (Castagnoli) of data, continued from value."""
    buffer = ffi.from_buffer(data)
    return int(lib.klk_crc32c(value, buffer, len(buffer)))
