"""`kelek farm cert`: a private CA and server certificates for trials, with keys on P-256.

Use your own CA for anything else.
"""

import datetime
import os
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ..cli_errors import FAILED, CliError
from ..options import OUTPUT, argument, command, option
from ..render import show
from .files import write

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

CA_DAYS = 3650
CLOCK_SKEW = datetime.timedelta(hours=1)


class Signer(NamedTuple):
    """A CA: certificate and key."""

    certificate: "Certificate"
    key: "EllipticCurvePrivateKey"


class CertRequest(NamedTuple):
    output: str = OUTPUT
    name: str = option("--name", default="server", show_default=True, metavar="NAME",
                       help="Names the files NAME.pem and NAME.key.")  # fmt: skip
    days: int = option("--days", type=click.IntRange(1, 3650), default=365, show_default=True,
                       metavar="N", help="Validity of the certificate.")  # fmt: skip
    folder: str = argument(metavar="DIR", type=click.Path())
    hosts: tuple[str, ...] = argument(metavar="[HOST]...", nargs=-1)


@command
def cert(request: CertRequest) -> None:
    """Makes a certificate for servers at each HOST, for trials (default: 127.0.0.1).

    DIR gets its own CA, ca.pem, with the first certificate; keep ca.key where you sign.
    HOST is the name or address that clients and other servers connect to.
    """
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        way_out = "pip install 'kelek[farm]', or make certificates with openssl"
        raise CliError(f"cert: needs the package cryptography; {way_out}", FAILED) from None
    folder, name, hosts = Path(request.folder), request.name, request.hosts or ("127.0.0.1",)
    if not name or name == "ca" or Path(name).name != name:
        raise CliError(f"--name: '{name}' is not usable as a file name; choose another one")
    target = folder / f"{name}.pem"
    if target.exists():
        raise CliError(f"{target}: already exists; remove it or choose another --name")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        signer = _signer(folder)
        names = [general_name(host) for host in hosts]
        _sign(signer, names, target, request.days)
    except OSError as error:
        raise CliError(f"{error.filename or folder}: {error.strerror}", FAILED) from error
    ca_file, key = folder / "ca.pem", target.with_suffix(".key")
    found = {"ca": str(ca_file), "certificate": str(target), "key": str(key)}
    show(
        request.output,
        {**found, "hosts": hosts, "days": request.days},
        f"{ca_file}: the CA, for `ca:` of the topology, and --ca",
        f"{target}: for {', '.join(hosts)}, {request.days} days",
        f"{key}: its key",
    )


def general_name(host: str) -> "GeneralName":
    """A host as a certificate's name. Raises CliError."""
    from cryptography.x509 import DNSName, IPAddress

    try:
        return IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        if not host or any(character in host for character in ":/ ,@"):
            raise ValueError("it contains invalid characters")
        return DNSName(host)
    except ValueError as error:
        raise CliError(f"HOST: '{host}' is neither a name nor an address: {error}") from error


def _signer(folder: Path) -> Signer:
    """The existing CA, or a new one. Raises CliError, OSError."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    ca_file, key_file = folder / "ca.pem", folder / "ca.key"
    if not ca_file.exists():
        return _make_signer(ca_file, key_file)
    try:
        certificate = x509.load_pem_x509_certificate(ca_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise CliError(f"{folder}: ca.pem and ca.key are not usable: {error}") from error
    except FileNotFoundError:
        raise CliError(f"{key_file}: missing, so {ca_file} cannot sign; use another DIR") from None
    if not isinstance(key, EllipticCurvePrivateKey) or (
        key.public_key() != certificate.public_key()
    ):
        raise CliError(f"{key_file}: it is not the key of {ca_file}; use another DIR")
    return Signer(certificate, key)


def _make_signer(ca_file: Path, key_file: Path) -> Signer:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"kelek farm trial {os.urandom(4).hex()}")]
    )
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    _write_key(key_file, key)
    _write_public(ca_file, certificate.public_bytes(serialization.Encoding.PEM))
    return Signer(certificate, key)


def _sign(signer: Signer, names: "list[GeneralName]", target: Path, days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    common = x509.NameAttribute(x509.NameOID.COMMON_NAME, "a server of a farm")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([common]))
        .issuer_name(signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .sign(signer.key, hashes.SHA256())
    )
    _write_key(target.with_suffix(".key"), key)
    _write_public(target, certificate.public_bytes(serialization.Encoding.PEM))


def _usage(signs: bool) -> "KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: "EllipticCurvePrivateKey") -> None:
    """With mode 0600."""
    from cryptography.hazmat.primitives import serialization

    data = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write(str(path), data.decode())


def _write_public(path: Path, data: bytes) -> None:
    """With mode 0644."""
    write(str(path), data.decode())
    path.chmod(0o644)
