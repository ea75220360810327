"""The command `kelek` in this process: its output, or its one line of error."""

from click.testing import CliRunner, Result

from kelek.console.kelek_cli import main


def run(*words: object, stdin: bytes | str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), input=stdin, prog_name="kelek")


def ok(*words: object, stdin: bytes | str | None = None) -> str:
    done = run(*words, stdin=stdin)
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def fails(*words: object, stdin: bytes | str | None = None) -> tuple[int, str]:
    """Exit code and the only line on stderr."""
    done = run(*words, stdin=stdin)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.output or done.exception
    assert lines[0].startswith("kelek: ")
    return done.exit_code, lines[0]
