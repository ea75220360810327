"""kelek: a replicated log, tables, a broker, discovery and JRaft over ZeroMQ.

`__init__.pyi` lists the public names and their modules. `import kelek` loads none of them: the
first use of a name loads its module, and with it ZeroMQ or the C core where the name needs them.
"""


def _public_names() -> tuple[dict[str, str], dict[str, str]]:
    """The names and their modules, and the old names and what replaces them."""
    # The loader also reads from an archive: the C core's error then says why that does not work.
    # `__file__`, as pytest imports this file without a package where the folder's name is none.
    stub: bytes = __loader__.get_data(__file__.rpartition(".")[0] + ".pyi")
    modules, aliases = {}, {}
    for line in stub.decode().splitlines():
        match line.split():
            case ["from", module, "import", name, "as", _]:
                modules[name] = module
            case [old, "=", new]:
                aliases[old] = new
    return modules, aliases


def __getattr__(name: str) -> object:
    modules, aliases = _public_names()
    if name == "__all__":
        value: object = sorted(modules.keys() - {"__version__"})
    elif name in aliases:
        from warnings import warn

        new = aliases[name]
        warn(f"kelek.{name} is now kelek.{new}", DeprecationWarning, stacklevel=2)
        return __getattr__(new)
    elif name in modules:
        from importlib import import_module

        value = getattr(import_module(modules[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()[0]})
