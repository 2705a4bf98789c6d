"""Signed certificates: a DSSE envelope around the statement, by securesystemslib, the library in-toto and TUF use.

Only this module needs it, and only where a key is given: ``pip install 'argmax-parity[sign]'``. Keys are PEM files of
any kind that the library signs with (Ed25519, ECDSA, RSA); private ones without a password.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from refimpl.verdict.certificate import PAYLOAD_TYPE, CertificateError

_INSTALL = "signatures need securesystemslib and cryptography: pip install 'argmax-parity[sign]'"
_MAX_KEY_BYTES = 1 << 16


class KeyUnusable(ValueError):
    """A key cannot be used: one sentence that names the file and what to do."""


def load_signer(file: Path) -> Any:
    """The signer of a private key in a PEM file. Raises KeyUnusable."""
    try:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from securesystemslib.signer import CryptoSigner
    except ImportError as error:
        raise KeyUnusable(_INSTALL) from error
    content = _read(file)
    try:
        return CryptoSigner(load_pem_private_key(content, password=None))
    except Exception as error:  # cryptography has many of its own
        raise KeyUnusable(
            f"{file} holds no private key that can sign ({_words(error)}); give an unencrypted PEM file, as "
            "'openssl genpkey -algorithm ed25519' writes it"
        ) from error


def load_verifier(file: Path) -> Any:
    """The public key in a PEM file. Raises KeyUnusable."""
    try:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey
    except ImportError as error:
        raise KeyUnusable(_INSTALL) from error
    content = _read(file)
    try:
        return SSlibKey.from_crypto(load_pem_public_key(content))
    except Exception as error:
        raise KeyUnusable(
            f"{file} holds no public key ({_words(error)}); give a PEM file, as 'openssl pkey -pubout' writes it"
        ) from error


def sign(statement: dict[str, Any], signer: Any) -> dict[str, Any]:
    """The envelope around a statement, as plain values."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(json.dumps(statement, indent=1).encode(), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    plain: dict[str, Any] = envelope.to_dict()
    return plain


def is_envelope(document: Any) -> bool:
    return isinstance(document, dict) and "payload" in document and "signatures" in document


def open_signed(document: dict[str, Any], key: Any) -> Any:
    """The statement in an envelope whose signature is the key's. Raises CertificateError."""
    from securesystemslib.dsse import Envelope

    try:
        envelope = Envelope.from_dict(json.loads(json.dumps(document)))
        if envelope.payload_type != PAYLOAD_TYPE:
            raise CertificateError(f"its payload is {envelope.payload_type!r}, not {PAYLOAD_TYPE!r}")
        envelope.verify([key], 1)
    except CertificateError:
        raise
    except Exception as error:
        raise CertificateError(f"it does not carry the signature of this key ({_words(error)})") from error
    try:
        return json.loads(envelope.payload)
    except ValueError as error:
        raise CertificateError(f"what is signed is no JSON ({error})") from error


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > _MAX_KEY_BYTES:
            raise KeyUnusable(f"{file} has {file.stat().st_size} bytes, which no key has; give a PEM file")
        return file.read_bytes()
    except OSError as error:
        raise KeyUnusable(f"{file} cannot be read ({error.strerror}); give a PEM file") from error


def _words(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
