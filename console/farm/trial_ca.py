"""A private CA and server certificates for trials, with keys on P-256 (cert.py)."""

import datetime
import os
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from ...net.private_files import replace_file
from ..cli_errors import CliError

CA_DAYS = 3650
CLOCK_SKEW = datetime.timedelta(hours=1)


class Signer(NamedTuple):
    """A CA: its name and key."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def signer_of(ca_file: Path, key_file: Path) -> Signer:
    """The existing CA, or a new one. Raises CliError, OSError."""
    if not ca_file.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        signer = Signer(_name(f"kelek farm trial {os.urandom(4).hex()}"), key)
        _write(_builder(signer, signer, CA_DAYS, signs=True), signer, key, ca_file)
        return signer
    try:
        certificate = x509.load_pem_x509_certificate(ca_file.read_bytes())
        found = load_pem_private_key(key_file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise CliError(f"{ca_file.parent}: ca.pem and ca.key are not usable: {error}") from error
    except FileNotFoundError:
        raise CliError(f"{key_file}: missing, so {ca_file} cannot sign; use another DIR") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or (
        found.public_key() != certificate.public_key()
    ):
        raise CliError(f"{key_file}: it is not the key of {ca_file}; use another DIR")
    return Signer(certificate.subject, found)


def make_certificate(
    signer: Signer, subject: str | tuple[str, ...], target: Path, days: int
) -> None:
    """Writes a certificate for a user, or for a server's hosts, and its key. A server shows its
    own to other servers. Raises OSError.
    """
    name = _name(subject if isinstance(subject, str) else "a server of a farm")
    owner = Signer(name, ec.generate_private_key(ec.SECP256R1()))
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    purposes += [] if isinstance(subject, str) else [ExtendedKeyUsageOID.SERVER_AUTH]
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = (
        _builder(owner, signer, days, signs=False)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(authority, critical=False)
    )
    if not isinstance(subject, str):
        names = x509.SubjectAlternativeName([host_name(host) for host in subject])
        builder = builder.add_extension(names, critical=False)
    _write(builder, signer, owner.key, target)


def host_name(host: str) -> x509.GeneralName:
    """A host as a certificate's name. Raises CliError."""
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        if not host or any(character in host for character in ":/ ,@"):
            raise ValueError("it contains invalid characters")
        return x509.DNSName(host)
    except ValueError as error:
        raise CliError(f"HOST: '{host}' is neither a name nor an address: {error}") from error


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def _builder(subject: Signer, issuer: Signer, days: int, *, signs: bool) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    key = subject.key.public_key()
    usage = x509.KeyUsage(
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
    return (
        x509.CertificateBuilder()
        .subject_name(subject.name)
        .issuer_name(issuer.name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(signs, 0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _write(
    builder: x509.CertificateBuilder, signer: Signer, key: ec.EllipticCurvePrivateKey, target: Path
) -> None:
    """Writes the key with mode 0600, and the signed certificate with mode 0644."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    replace_file(str(target.with_suffix(".key")), pem.decode())
    certificate = builder.sign(signer.key, hashes.SHA256())
    replace_file(str(target), certificate.public_bytes(Encoding.PEM).decode())
    target.chmod(0o644)
