"""`python -m kelek`: the command `kelek`."""

from .console.kelek_cli import main

main(prog_name="python -m kelek")
