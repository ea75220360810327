"""Commands whose errors are one line on stderr and an exit code, and groups that load them."""

import atexit
import contextlib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..actors.errors import OperatorError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The settings of the commands `kelek` and `supervisor`.
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
SENTENCE_MAX = 1000  # Characters of a summary.
GC_ALLOCATIONS = 50_000  # Between two collections; 10 ms of a command at Python's 700.
# What click calls a number that has bounds.
NUMBERS = {"integer range": "a whole number", "float range": "a number"}
FAILED = 1
IMPOSSIBLE = 2
INTERRUPTED = 130  # As a shell reports a process that SIGINT has ended.


class CliError(Exception):
    """Ends the command with a message that names the place, the problem and the way out."""

    def __init__(self, line: str, code: int = IMPOSSIBLE) -> None:
        super().__init__(line)
        self.code = code


class Command(click.Command):
    """A click command whose errors are one line on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _in_one_line(self, kwargs.get("parent")):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_one_line(self):
            return super().invoke(ctx)


class _Outline(click.Group):
    """A group whose help shows the first sentence of each command uncut, in lines."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [self.commands[name] for name in self.list_commands(ctx)]
        rows = [(each.name or "", each.get_short_help_str(SENTENCE_MAX)) for each in found]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(Command, click.Group):
    """A group that imports the module of a command when the command runs or shows its help.

    modules   module of this package -> names of the commands in it
    groups    further groups in it
    old       deprecated name of a command -> its name
    default   the command that gets the arguments when they do not begin with a command's name
    """

    def __init__(
        self,
        name: str,
        text: str,
        modules: Mapping[str, str],
        groups: Iterable[click.Group] = (),
        old: Mapping[str, str] | None = None,
        default: str = "",
        **settings: Any,
    ) -> None:
        super().__init__(name, help=text, **settings)
        self.groups = {group.name: group for group in groups if group.name}
        self._modules = {
            name: module for module, names in modules.items() for name in names.split()
        }
        self._old = old or {}
        self._default = default
        self.ignore_unknown_options = bool(default)  # They are the default command's.
        self._settings = settings

    def main(self, *args: Any, **settings: Any) -> Any:
        """Runs the command line, with few collections: imports free little.

        Python would also search all modules for cycles when it ends: 20 ms.
        """
        gc.set_threshold(GC_ALLOCATIONS)
        atexit.register(gc.freeze)
        return super().main(*args, **settings)

    @cached_property
    def outline(self) -> click.Group:
        """The group with the names and docstrings of its commands alone."""
        texts: dict[str, str] = {}
        for module in dict.fromkeys(self._modules.values()):
            texts |= docstrings(f"{__package__}.{module}")
        commands = [click.Command(name, help=texts[name]) for name in self._modules]
        made = _Outline(self.name, commands=[*commands, *self.groups.values()], **self._settings)
        made.params = self.params
        return made

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self.outline.list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.outline.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        ctx = click.Context(self.outline, ctx.parent, ctx.info_name)
        return self.outline.shell_complete(ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self._default and args[0] not in self._modules:
            args = [self._default, *args]
        if not (ctx.resilient_parsing or args[0].startswith("-") or self._is_known(args[0])):
            import difflib  # Only for an error.

            known = [*self._modules, *self.groups]
            close = difflib.get_close_matches(args[0], known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"no such command '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)

    def _is_known(self, name: str) -> bool:
        return name in self._modules or name in self.groups or name in self._old

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name in self._old:
            return self._old_command(cmd_name)
        if cmd_name not in self._modules:
            return self.groups.get(cmd_name)
        module = importlib.import_module(f".{self._modules[cmd_name]}", __package__)
        found = (each for each in vars(module).values() if isinstance(each, Command))
        return next(command for command in found if command.name == cmd_name)

    def _old_command(self, old: str) -> click.Command:
        """A command under an old name. It prints a line to stderr and runs the new one."""
        new = self.get_command(None, self._old[old])
        assert new is not None

        @click.pass_context
        def run(ctx: click.Context, /, **arguments: Any) -> Any:
            name = f"{ctx.parent.command_path if ctx.parent else ''} {new.name}"
            click.echo(f"{ctx.command_path} is deprecated: use {name}", err=True)
            assert new.callback is not None
            return new.callback(**arguments)

        return type(new)(old, callback=run, params=new.params, help=new.help, hidden=True)


def docstrings(module: str) -> dict[str, str]:
    """The docstrings of the functions of a module by the names of their commands.

    It reads the compiled module and does not run it, which would import ZeroMQ.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert isinstance(spec.loader, SourceFileLoader)
    code = spec.loader.get_code(module)
    assert code is not None
    functions = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {command_name(each.co_name): str(each.co_consts[0]) for each in functions}


def command_name(function: str) -> str:
    return function.rstrip("_").replace("_", "-")


@contextlib.contextmanager
def _in_one_line(program: click.Command, parent: click.Context | None = None) -> Iterator[None]:
    try:
        try:
            yield
        except CliError as error:
            _end(str(error), error.code)
        except OperatorError as error:
            _end(str(error), IMPOSSIBLE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        # The parser's own errors have no context.
        above = f"{parent.command_path} " if parent else ""
        path = error.ctx.command_path if error.ctx else f"{above}{program.name}"
        word = path.partition(" ")[0]
        message = error.format_message().rstrip(".").replace("\n", " ")
        for kind, plain in NUMBERS.items():
            message = message.replace(f"not a valid {kind}", f"not {plain}")
        sys.stderr.write(f"{word}: {message}; see `{path} --help`\n")
        sys.exit(IMPOSSIBLE)
    except BrokenPipeError:
        # The reader of a pipe has closed it (`kelek log entries | head`): end without an error.
        _write_nowhere()
        sys.exit(0)
    except OSError as error:
        _write_nowhere()
        context = click.get_current_context(silent=True)
        name = context.find_root().info_name if context else program.name
        place = error.filename or "standard output"
        sys.stderr.write(f"{name}: {place}: {error.strerror}; the command ended there\n")
        sys.exit(FAILED)


def _write_nowhere() -> None:
    """Redirects standard output, so that flushing it cannot fail again when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end(line: str, code: int) -> NoReturn:
    name = click.get_current_context().find_root().command.name
    sys.stderr.write(f"{name}: {line}\n")
    sys.exit(code)
