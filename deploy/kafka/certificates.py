"""Certificates for a broker on loopback: an authority, and the certificates that it signs. For tests only."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)
_CLOCKS_APART = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> Authority:
        """A new authority, which no one else trusts."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("hushstream tests"), _name("hushstream tests"), key, datetime.now(UTC) + VALID)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def read(cls, folder: Path) -> Authority:
        """The authority that `write` saved in a folder."""
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))

    def write(self, folder: Path) -> None:
        """Write ``ca.pem``, and ``ca.key``, which only its owner can read."""
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        _write_secret(folder / "ca.key", _pem(self.key))

    def issue(self, folder: Path, common_name: str, ends: datetime | None = None) -> Path:
        """Write ``NAME.pem``: a private key and its certificate, valid for server and client on loopback.

        Args:
            folder: folder of the file.
            common_name: the name in the certificate; Kafka derives the principal ``User:CN=NAME`` from it.
            ends: when the certificate expires (default: in `VALID`); may lie in the past.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            _name(common_name), self.certificate.subject, key, datetime.now(UTC) + VALID if ends is None else ends
        )
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        path = folder / f"{common_name}.pem"
        _write_secret(path, _pem(key) + certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: datetime
) -> x509.CertificateBuilder:
    begins = min(datetime.now(UTC), ends - VALID) - _CLOCKS_APART
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # PKCS 8 without a password is the only form that a broker reads from a PEM store without further settings.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
