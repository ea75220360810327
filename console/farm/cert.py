"""`kelek farm cert`: certificates for trials. Use your own CA for anything else."""

from pathlib import Path
from typing import NamedTuple

import click

from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, argument, command, option
from ..render import show


class CertRequest(NamedTuple):
    output: str = OUTPUT
    name: str = option("--name", default="server", show_default=True, metavar="NAME",
                       help="Names the files NAME.pem and NAME.key.")  # fmt: skip
    days: int = option("--days", type=click.IntRange(1, 3650), default=365, show_default=True,
                       metavar="N", help="Validity of the certificate.")  # fmt: skip
    user: str = option("--user", default="", metavar="USER",
                       help="A certificate for this user of a farm, not for a server.")  # fmt: skip
    folder: str = argument(metavar="DIR", type=click.Path())
    hosts: tuple[str, ...] = argument(metavar="[HOST]...", nargs=-1)


@command
def cert(request: CertRequest) -> None:
    """Makes a certificate for servers at each HOST, or for a user, for trials.

    DIR gets its own CA, ca.pem, with the first certificate; keep ca.key where you sign.
    HOST is the name or address that clients and other servers connect to (default: 127.0.0.1).
    """
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        way_out = "pip install 'kelek[farm]', or make certificates with openssl"
        raise CliError(f"cert: needs the package cryptography; {way_out}", FAILED) from None
    from . import trial_ca

    if request.user and request.hosts:
        raise CliError("--user: a user's certificate has no HOST; remove one of both")
    hosts = request.hosts or (() if request.user else ("127.0.0.1",))
    folder, name = Path(request.folder), request.name
    name = request.user if request.user and name == "server" else name
    if not name or name == "ca" or Path(name).name != name:
        raise CliError(f"--name: '{name}' is not usable as a file name; choose another one")
    ca_file, target = folder / "ca.pem", folder / f"{name}.pem"
    if target.exists():
        raise CliError(f"{target}: already exists; remove it or choose another --name")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        signer = trial_ca.signer_of(ca_file, ca_file.with_suffix(".key"))
        trial_ca.make_certificate(signer, request.user or hosts, target, request.days)
    except OSError as error:
        raise CliError(f"{error.filename or folder}: {error.strerror}", FAILED) from error
    key = target.with_suffix(".key")
    found = {"ca": str(ca_file), "certificate": str(target), "key": str(key)}
    show(
        request.output,
        {**found, "hosts": hosts, "days": request.days},
        f"{ca_file}: the CA, for `ca:` of the topology, and --ca",
        f"{target}: for {request.user or ', '.join(hosts)}, {request.days} days",
        f"{key}: its key",
    )
