"""What all clients of HTTP endpoints share: URLs, secrets, certificates, waits.

Secrets stand in environment variables, which are read when a request is made, so that none is in a
client, its repr, a pickle or an error.
"""

from __future__ import annotations

import ipaddress
import math
import os
import ssl
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from livestream_env.words import safe


def checked_url(url: str, *, name: str, example: str) -> httpx.URL:
    """Return an HTTP URL, given as the option `name`, that holds no secret.

    Raises:
        ValueError: it is none, or holds a user name or password.
    """
    try:
        read = httpx.URL(url)
    except httpx.InvalidURL:
        read = httpx.URL("")
    if read.scheme not in ("http", "https") or not read.host:
        raise ValueError(f"`{name}` is no URL such as `{example}`")
    if read.userinfo:
        raise ValueError(
            f"`{name}` holds a user name or password; use `token_env` or `headers_env`"
        )
    return read


def certificates(verify: str | os.PathLike[str]) -> Path:
    """Return the path of a file of certificates.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it holds none.
    """
    path = Path(verify)
    if not path.is_file():
        raise FileNotFoundError(f"`verify` is `{path}`; it is `True` or a file of certificates")
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ValueError(
            f"`verify` is `{path}`, which holds no certificates in PEM form"
        ) from error
    return path


def above_zero(name: str, value: float) -> float:
    """Return a number above 0, given as the option `name`."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` is {value}; it is a number above 0")
    return value


def secret_of(variable: str) -> str:
    """Return the secret that an environment variable holds.

    Raises:
        LookupError: it is not set, or holds what no header can.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise LookupError(f"the environment variable `{variable}` is not set")
    if not value.isascii() or not value.isprintable():
        raise LookupError(f"the environment variable `{variable}` holds what no header can")
    return value


def secret_headers(token_env: str | None, headers_env: Mapping[str, str]) -> dict[str, str]:
    """Return the headers whose values stand in environment variables.

    Raises:
        LookupError: one is not set.
    """
    headers = {name: secret_of(variable) for name, variable in headers_env.items()}
    if token_env is not None:
        headers["Authorization"] = f"Bearer {secret_of(token_env)}"
    return headers


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """Return the text as one line in which none of these header values stands."""
    for secret in {value.removeprefix("Bearer ") for value in secrets}:
        text = text.replace(secret, "***")
    return safe(text)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the seconds that `Retry-After`, a number or a date, asks to wait; `None` for none."""
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and (found := _seconds(milliseconds)) is not None:
        return found / 1000
    text = headers.get("retry-after", "").strip()
    if (found := _seconds(text)) is not None:
        return found
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
