"""Runs one user's mapper in a locked process of its own (docs/guides/mapper.md).

The process is a child of job_server. It receives calls on standard input and sends outputs on
standard output, and it can reach nothing else.
"""

import ctypes
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from . import sandbox

FRAME = struct.Struct("<BI")  # kind, size of what follows
# To the mapper's process.
MODULE = 1  # WebAssembly or bitcode; answered with STARTED or FAILED.
BATCH = 2  # Packed records; answered with OUTPUT or FAILED.
END = 3  # No more batches; answered with OUTPUT or FAILED.
PARAMETERS = 4  # Packed records, before MODULE; not answered.
# From it.
READY = 10  # Everything is loaded and the process is locked.
STARTED = 11
OUTPUT = 12  # Packed operations of one batch.
FAILED = 13  # UTF-8 text: the reason.

WASM_MAGIC = b"\0asm"
BITCODE_MAGIC = b"BC\xc0\xde"

FUEL = 1_000_000_000  # Instructions of one call: about 0.25 s.
MEMORY_BYTES_MAX = 256 << 20  # Of a WebAssembly module.
PROCESS_BYTES_MAX = 768 << 20  # Of the whole process: the module, the compiler and batches.
TABLE_ELEMENTS_MAX = 100_000
OUTPUT_BYTES_MAX = 8 << 20  # Of one batch, which becomes one log entry.
TEXT_BYTES_MAX = 1000


class MapperError(Exception):
    """The mapper failed; the text is the reason."""


class Mapper(ABC):
    """A loaded mapper. Each call may raise MapperError."""

    @abstractmethod
    def has(self, name: str) -> bool: ...

    @abstractmethod
    def call(self, name: str, *arguments: int) -> int: ...

    @abstractmethod
    def copy(self, data: bytes) -> int:
        """Copies data into the mapper's memory and returns its address."""

    @abstractmethod
    def read_output(self, size: int) -> bytes: ...

    def start(self, parameters: bytes) -> None:
        if self.has("kelek_start"):
            code = self.call("kelek_start", self.copy(parameters), len(parameters))
            if code != 0:
                raise MapperError(f"kelek_start refused its parameters with {code}")

    def map(self, records: bytes) -> bytes:
        return self._output(self.call("kelek_map", self.copy(records), len(records)))

    def end(self) -> bytes:
        return self._output(self.call("kelek_end")) if self.has("kelek_end") else b""

    def _output(self, size: int) -> bytes:
        if size < 0:
            raise MapperError(f"the mapper gave up with {size}")
        if size > OUTPUT_BYTES_MAX:
            raise MapperError(
                f"the mapper's output for one batch has {size} bytes, at most {OUTPUT_BYTES_MAX}"
            )
        return self.read_output(size)


class WasmEngine:
    """wasmtime, loaded and warmed up."""

    def __init__(self) -> None:
        import wasmtime

        config = wasmtime.Config()
        config.consume_fuel = True
        config.parallel_compilation = False  # A locked process cannot start threads.
        config.wasm_threads = False
        self.library = wasmtime
        self.engine = wasmtime.Engine(config)
        wasmtime.Module(self.engine, "(module)")

    def load(self, module: bytes) -> "WasmMapper":
        return WasmMapper(self, module)


class WasmMapper(Mapper):
    """A module in its own store. Each call starts with full fuel."""

    def __init__(self, engine: WasmEngine, module: bytes) -> None:
        library = engine.library
        self._errors = (library.WasmtimeError, library.Trap, TypeError, ValueError, IndexError)
        try:
            compiled = library.Module(engine.engine, module)
        except self._errors as error:
            raise MapperError(f"this is no WebAssembly module: {_line(error)}") from None
        if compiled.imports:
            wanted = compiled.imports[0]
            raise MapperError(
                f"the module imports {wanted.module}.{wanted.name}; a mapper has no imports"
            )
        self._store = library.Store(engine.engine)
        self._store.set_limits(
            memory_size=MEMORY_BYTES_MAX,
            table_elements=TABLE_ELEMENTS_MAX,
            instances=1,
            tables=4,
            memories=1,
        )
        self._store.set_fuel(FUEL)
        try:
            self._exports = library.Instance(self._store, compiled, []).exports(self._store)
        except self._errors as error:
            raise MapperError(f"the module can't be begun: {_line(error)}") from None
        self._memory: Any = self._exported("memory", library.Memory)
        for name in ("kelek_alloc", "kelek_map", "kelek_output"):
            self._exported(name, library.Func)

    def _exported(self, name: str, kind: type) -> Any:
        found = self._exports.get(name)
        if not isinstance(found, kind):
            raise MapperError(f"the module does not export the {kind.__name__.lower()} '{name}'")
        return found

    def has(self, name: str) -> bool:
        return self._exports.get(name) is not None

    def call(self, name: str, *arguments: int) -> int:
        self._store.set_fuel(FUEL)
        try:
            result = self._exports[name](self._store, *arguments)
        except self._errors as error:
            raise MapperError(f"{name}: {_line(error)}") from None
        if not isinstance(result, int):
            raise MapperError(f"{name} does not return a 32-bit integer")
        return result

    def copy(self, data: bytes) -> int:
        address = self.call("kelek_alloc", len(data)) & 0xFFFFFFFF
        if address == 0 or address + len(data) > self._memory.data_len(self._store):
            raise MapperError(f"kelek_alloc gave no room for {len(data)} bytes")
        self._memory.write(self._store, data, address)
        return address

    def read_output(self, size: int) -> bytes:
        start = self.call("kelek_output") & 0xFFFFFFFF
        if start + size > self._memory.data_len(self._store):
            raise MapperError("kelek_output points behind the module's memory")
        return bytes(self._memory.read(self._store, start, start + size))


class NativeEngine:
    """llvmlite, loaded."""

    def __init__(self) -> None:
        import llvmlite.binding

        self.library: Any = llvmlite.binding
        self.library.initialize_native_target()
        self.library.initialize_native_asmprinter()
        target = self.library.Target.from_default_triple()
        self._machine = target.create_target_machine(opt=2)

    def compile(self, parsed: Any) -> Any:
        """Compiles a parsed module to machine code. Works once: it consumes the target machine."""
        compiled = self.library.create_mcjit_compiler(parsed, self._machine)
        compiled.finalize_object()
        return compiled

    def load(self, module: bytes) -> "NativeMapper":
        return NativeMapper(self, module)


class NativeMapper(Mapper):
    """Bitcode compiled for this processor. Only the locked process confines it."""

    _SIGNATURES: dict[str, tuple[Any, ...]] = {
        "kelek_alloc": (ctypes.c_void_p, ctypes.c_uint32),
        "kelek_start": (ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32),
        "kelek_map": (ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint32),
        "kelek_output": (ctypes.c_void_p,),
        "kelek_end": (ctypes.c_int32,),
    }

    def __init__(self, engine: NativeEngine, module: bytes) -> None:
        library = engine.library
        try:
            parsed = library.parse_bitcode(module)
            parsed.verify()
        except RuntimeError as error:
            raise MapperError(f"this is no LLVM bitcode: {_line(error)}") from None
        defined = {one.name for one in parsed.functions if not one.is_declaration}
        for name in ("kelek_alloc", "kelek_map", "kelek_output"):
            if name not in defined:
                raise MapperError(f"the bitcode does not define '{name}'")
        self._compiled = engine.compile(parsed)
        self._functions: dict[str, Callable[..., Any]] = {
            name: ctypes.CFUNCTYPE(*types)(self._compiled.get_function_address(name))
            for name, types in self._SIGNATURES.items()
            if name in defined
        }

    def has(self, name: str) -> bool:
        return name in self._functions

    def call(self, name: str, *arguments: int) -> int:
        return int(self._functions[name](*arguments) or 0)  # None: a null pointer.

    def copy(self, data: bytes) -> int:
        address = self.call("kelek_alloc", len(data))
        if not address:
            raise MapperError(f"kelek_alloc gave no room for {len(data)} bytes")
        ctypes.memmove(address, data, len(data))
        return address

    def read_output(self, size: int) -> bytes:
        return ctypes.string_at(self.call("kelek_output"), size) if size else b""


def _line(error: BaseException) -> str:
    """Returns a library's error as one line: its first line, and the last cause if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason"]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return text.replace("\0", " ")[:TEXT_BYTES_MAX]


class MapperPipes:
    """This process's ends of the pipes to job_server."""

    def __init__(self) -> None:
        # Output that the mapper prints is discarded, so it cannot mix with frames.
        self._out = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def send(self, kind: int, data: bytes = b"") -> None:
        view = memoryview(FRAME.pack(kind, len(data)) + data)
        while view:
            view = view[os.write(self._out, view) :]

    def receive(self) -> tuple[int, bytes] | None:
        """Returns the next call, or None if job_server has closed the pipe."""
        head = self._read(FRAME.size)
        if len(head) < FRAME.size:
            return None
        kind, size = FRAME.unpack(head)
        return kind, self._read(size)

    @staticmethod
    def _read(size: int) -> bytes:
        parts = []
        while size > 0 and (data := os.read(0, size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


def serve(link: MapperPipes, load: Callable[[bytes], Mapper]) -> None:
    """Answers calls until END, or until the mapper fails."""
    mapper: Mapper | None = None
    parameters = b""
    while (frame := link.receive()) is not None:
        kind, data = frame
        try:
            if kind == PARAMETERS:
                parameters = data
            elif kind == MODULE:
                mapper = load(data)
                mapper.start(parameters)
                link.send(STARTED)
            elif mapper is not None:
                link.send(OUTPUT, mapper.map(data) if kind == BATCH else mapper.end())
        except (MapperError, MemoryError) as error:
            link.send(FAILED, (str(error) or "it took too much memory").encode())
            return


def main() -> None:
    """Entry of `python -m kelek.mapping.mapper wasm|native`.

    It locks the process before it reads a byte of the mapper.
    """
    sandbox.die_with_parent()
    engine = NativeEngine() if sys.argv[1:] == ["native"] else WasmEngine()
    link = MapperPipes()
    sandbox.lock(PROCESS_BYTES_MAX)
    link.send(READY)
    serve(link, engine.load)
    os._exit(0)  # Python's normal exit opens files.


if __name__ == "__main__":
    main()
