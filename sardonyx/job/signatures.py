"""Signatures of a job's code: a client signs the zip, and peers run it only if one of the keys that they know has signed it.

The signature is Ed25519. It stands with the public key in the comment at the end of the zip, so it goes wherever the code goes,
and a release that knows no signatures reads the zip as any other. The same key gives the same bytes for the same modules. A
private key is a file in PEM (PKCS 8); a public one is a text, ``ed25519:`` and 44 characters.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.core.errors import SetupError
from sardonyx.core.names import is_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PURPOSE = b"sardonyx-code-1\n"
"""What we sign before the code, so that a signature of code is never one of anything else."""
_NO_COMMENT = b"\0\0"
"""How a zip without a comment ends: the length of the comment."""
_SIGNED = re.compile(rb"(..)sardonyx-signature (ed25519:[A-Za-z0-9+/]{43}=) ([A-Za-z0-9+/]{86}==)\Z", re.DOTALL)


def signed(data: bytes, key_file: Path) -> bytes:
    """The zip with a signature by this key, in place of one that it may have.

    Args:
        data: a zip of :func:`sardonyx.job.bundle.build`.
        key_file: with the private key.

    Raises:
        SetupError: ``SX-CODE-SIGNER``, the file cannot be read or holds no such key; ``SX-SIGNED-MISSING``.
    """
    key = _private_key(key_file)
    plain = _plain(data)
    signature = base64.b64encode(key.sign(_message(plain)))
    comment = b"sardonyx-signature " + _text(key.public_key()).encode() + b" " + signature
    return plain[: -len(_NO_COMMENT)] + len(comment).to_bytes(2, "little") + comment


def check_signed(data: bytes, signers: Iterable[str]) -> None:
    """Refuse code that none of these has signed.

    Args:
        data: the zip.
        signers: public keys, and files of them; see :func:`public_keys`.

    Raises:
        SetupError: ``SX-PEER-SIGNATURE``; ``SX-PEER-SIGNERS``, a file of them cannot be used; ``SX-SIGNED-MISSING``.
    """
    known = public_keys(signers)
    found = _SIGNED.search(data)
    if found is None or int.from_bytes(found[1], "little") != len(found[0]) - len(found[1]):
        raise _refused("it has no signature")
    signer = found[2].decode()
    if signer not in known:
        raise _refused(f"it is signed by {signer}, which is not one of peer.signers")
    from cryptography.exceptions import InvalidSignature

    signature = base64.b64decode(found[3])
    if base64.b64encode(signature) != found[3]:  # the last character holds bits that say nothing
        raise _refused("its signature is not written as base64 has to be")
    try:
        _public_key(signer).verify(signature, _message(_plain(data)))
    except InvalidSignature:
        raise _refused(f"it names {signer}, and the signature is not by this key, or of other code") from None


def public_keys(signers: Iterable[str]) -> set[str]:
    """The public keys that the setting ``peer.signers`` names: themselves, or in files with one a line.

    In a file, ``#`` begins a comment, and what follows a key after a space is not read. A file is read at each call.

    Raises:
        SetupError: ``SX-PEER-SIGNERS``; ``SX-SIGNED-MISSING``.
    """
    require_cryptography()
    found = set()
    for each in signers:
        for text in [each] if is_public_key(each) else _lines(Path(each)):
            try:
                _public_key(text)
            except ValueError as error:  # 32 bytes that are not a point of the curve
                raise _unusable(each, str(error)) from None
            found.add(text)
    return found


def new_key(path: Path) -> str:
    """Make a pair of keys: the private one in a new file that only its owner can read, the public one beside it in ``.pub``.

    Returns:
        The public key.

    Raises:
        SetupError: ``SX-CODE-SIGNER``, one of the files exists or cannot be written; ``SX-SIGNED-MISSING``.
    """
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    public = _text(key.public_key())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    beside = path.with_name(f"{path.name}.pub")
    try:
        if beside.exists():
            raise FileExistsError(f"{beside} exists")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        beside.write_text(f"{public}\n")
    except OSError as error:
        raise SetupError(
            "SX-CODE-SIGNER",
            f"no key can be written to {path}",
            cause=str(error),
            fix="name a file that does not exist, in a folder that you may write to",
            where={"path": path},
        ) from None
    return public


def require_cryptography() -> None:
    """Raise ``SX-SIGNED-MISSING`` if the package that signs and checks is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise SetupError(
            "SX-SIGNED-MISSING",
            "the package cryptography is not installed, and code is to be signed, or signatures are to be checked",
            cause=str(error),
            fix="run `pip install 'sardonyx[signed]'` here, or leave out client.signer and peer.signers",
        ) from None


def _message(plain: bytes) -> bytes:
    return _PURPOSE + hashlib.sha256(plain).digest()


def _plain(data: bytes) -> bytes:
    """The zip without a signature. All of its bytes but the comment count."""
    found = _SIGNED.search(data)
    return data if found is None else data[: found.start()] + _NO_COMMENT


def _text(key: Ed25519PublicKey) -> str:
    return f"ed25519:{base64.b64encode(key.public_bytes_raw()).decode()}"


def _public_key(text: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(base64.b64decode(text.removeprefix("ed25519:")))


def _private_key(path: Path) -> Ed25519PrivateKey:
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(path.read_bytes(), None)
        if isinstance(found, Ed25519PrivateKey):
            return found
        why = "it holds a key of another kind"
    except (OSError, ValueError, TypeError) as error:  # TypeError: it is encrypted
        why = str(error)
    raise SetupError(
        "SX-CODE-SIGNER",
        f"the job's code cannot be signed: {path} holds no Ed25519 private key that can be read",
        cause=why,
        fix="name a key in client.signer that `sardonyx bundle keygen` has made, or leave the setting out",
        where={"path": path},
    )


def _lines(path: Path) -> Iterator[str]:
    """The keys in a file."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(str(path), str(error)) from None
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].split()
        if text and not is_public_key(text[0]):
            raise _unusable(str(path), f"line {number} is not a public key, such as ed25519:AAAA...=")
        yield from text[:1]


def _unusable(signer: str, why: str) -> SetupError:
    return SetupError(
        "SX-PEER-SIGNERS",
        f"{signer}, which peer.signers names, cannot be used",
        cause=why,
        fix="write one public key a line into the file, as `sardonyx bundle keygen` prints it, or correct the setting",
        where={"setting": "peer.signers"},
    )


def _refused(why: str) -> SetupError:
    return SetupError(
        "SX-PEER-SIGNATURE",
        "this peer daemon does not run the job's code",
        cause=f"{why}; the daemon's setting peer.signers names who may sign code",
        fix="submit the job by a client whose client.signer is the key of one of them, or add its public key to peer.signers",
    )


__all__ = ["check_signed", "new_key", "public_keys", "require_cryptography", "signed"]
