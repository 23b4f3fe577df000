"""SASL for the committers' own connections: PLAIN, and SCRAM (RFC 5802) with SHA-256 or SHA-512.

Used by `connection` while it opens one. Knows no socket: it is given a function that sends a token and returns the
broker's. No error holds the password.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

from sinkruntime.errors import TargetError

#: A broker that asks for more work than this is not one of ours.
ITERATIONS_MAX = 1_000_000

Send = Callable[[bytes], bytes]


def authenticate(mechanism: str, username: str, password: str, send: Send) -> None:
    """Say who we are. Raises `TargetError` where the broker does not prove that it knows the password too."""
    if mechanism == "PLAIN":
        send(f"\0{username}\0{password}".encode())
        return
    algorithm = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    _scram(algorithm, username, password, send)


def _scram(algorithm: str, username: str, password: str, send: Send) -> None:
    nonce = secrets.token_urlsafe(24)
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = send(f"n,,{first}".encode()).decode()
    fields = _fields(challenge)
    try:
        whole, salt, iterations = fields["r"], base64.b64decode(fields["s"]), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise _refused("the broker's challenge is not one of SCRAM") from error
    if not whole.startswith(nonce) or not 1 <= iterations <= ITERATIONS_MAX:
        raise _refused("the broker's challenge is not an answer to ours")
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    last = f"c=biws,r={whole}"
    signed = ",".join((first, challenge, last)).encode()
    key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    answer = _fields(send(f"{last},p={proof}".encode()).decode())
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    if not hmac.compare_digest(answer.get("v", ""), base64.b64encode(expected).decode()):
        raise _refused("the broker does not prove that it knows the password")


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}


def _refused(message: str) -> TargetError:
    return TargetError("AuthenticationFailed", message, path="options.producer")
