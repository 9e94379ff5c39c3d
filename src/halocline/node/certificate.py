"""A certificate of a server's own, for those who have no authority to ask for one.

    <database>/tls/certificate.pem   what clients get as `tls_roots`
    <database>/tls/key.pem           0600

It is made once and used from then on, so that clients which know it can go on believing it. They
compare it byte by byte (tls.py): what stands in it, its names and dates, does not matter to them.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from halocline.clock import SystemClock
from halocline.errors import UnavailableError, UsageError

FOLDER: Final = "tls"
NAME: Final = "halocline"
DAYS: Final = 3650


def own_certificate(root: str | os.PathLike[str]) -> tuple[str, str]:
    """The paths of the certificate and its key that belong to a database; made if they are not
    there."""
    folder = Path(root, FOLDER)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    try:
        if not (certificate.exists() and key.exists()):
            folder.mkdir(mode=0o700, exist_ok=True)
            made, secret = make_certificate()
            _write(key, secret)
            _write(certificate, made)
    except OSError as error:
        raise UnavailableError(f"no certificate can be written: {error}") from error
    return str(certificate), str(key)


def make_certificate() -> tuple[bytes, bytes]:
    """A new certificate and its key, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        text = "a self-signed certificate needs the package cryptography"
        raise UsageError(f"{text}: pip install 'halocline[tls]'") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.fromtimestamp(SystemClock().wall_us() / 1e6, UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return built.public_bytes(serialization.Encoding.PEM), secret


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    temporary.replace(path)
