"""Masks credentials in addresses, so that they are neither displayed nor written down.

User, password, token and query of an address are masked completely, whether or not they look like a
secret: a password may contain any character, and a driver may accept it in any parameter.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

MASK = "***"

# The text is untrusted, so nothing here looks at a character twice.
_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]*)://(\S*)")
# The form user:password, before an @.
_BARE = re.compile(r"(?<![^\s:/@'\"=(])[^\s:/@'\"=(]+:(?!//)")
# Schemes of files, in whose paths an @ is a character like any other.
_FILE_SCHEMES = ("sqlite", "file", "clear-offline")
_SHORTEST = 4  # characters of a secret that is searched for: fewer occur in any word


def mask_credentials(text: str, *addresses: str) -> str:
    """Replace the credentials of all addresses in a text by ``***``.

    Masks user and password before an @, with or without a scheme, and each value of a query.
    addresses: addresses whose passwords and query values are masked anywhere in the text, if they
    have at least four characters: a driver may quote a password decoded, or a part of it.

    >>> mask_credentials("no answer from postgresql://me:secret@host/db?sslpassword=secret")
    'no answer from postgresql://***@host/db?sslpassword=***'
    """
    for secret in sorted({s for a in addresses for s in _find_secrets(a)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _ADDRESS.sub(lambda match: f"{match[1]}://{_mask_address(match[1], match[2])}", text)
    parts = text.split("@")
    for i, part in enumerate(parts[:-1]):
        word = "" if part[-1:].isspace() or not part else part.rsplit(maxsplit=1)[-1]
        if (match := _BARE.search(word)) and parts[i + 1][:1].strip():
            parts[i] = f"{part[: len(part) - len(word)]}{word[: match.start()]}{MASK}"
    return "@".join(parts)


def has_credentials(address: str) -> bool:
    """Return True if an address contains a password, user or query."""
    return mask_credentials(address) != address


def _is_file_address(scheme: str, rest: str) -> bool:
    """Return True for a ``sqlite`` or ``file`` address without a host: ``sqlite:///a.db``."""
    return scheme.lower().split("+")[0] in _FILE_SCHEMES and rest.startswith("/")


def _mask_address(scheme: str, rest: str) -> str:
    """Mask user, password and query in *rest*, which follows ``scheme://``.

    Masked are user and password, and the values of the query; in the address of a file only the
    latter, since an @ belongs to its path.
    """
    if _is_file_address(scheme, rest):
        before, mark, query = rest.partition("?")
    else:
        # The last @ of all: an unescaped password may contain any of / ? # @.
        _, at, location = rest.rpartition("@")
        before, mark, query = location.partition("?")
        before = f"{MASK}@{before}" if at else before
        if not at and "#" in before:  # an unescaped password, cut off before its @
            before = before.partition("#")[0] + f"#{MASK}"
    if not mark:
        return before
    values = re.split(r"[&;]", query)
    names = [name if equals else "" for name, equals, _ in (v.partition("=") for v in values)]
    return f"{before}?" + "&".join(f"{name}={MASK}" if name else MASK for name in names)


def _find_secrets(address: str) -> set[str]:
    """Return the secrets of an address, as written and URL-decoded.

    These are the password, its parts between any of ``@/?#:``, ``user:password``, a user without a
    password, and the query's values; in the address of a file, only the query's values. Texts of
    less than four characters are left out.
    """
    scheme, _, rest = address.partition("://")
    secrets: set[str] = set()
    if not _is_file_address(scheme, rest):
        user, at, _ = rest.rpartition("@")
        name, colon, password = user.partition(":")
        if at:
            secrets |= {user, password} if colon else {name}
            # What a parser may take for another part.
            secrets |= set(re.split(r"[@/?#:]", password))
    _, _, query = rest.partition("?")
    secrets |= {value.rpartition("=")[2] for value in re.split(r"[&;]", query)}
    decoded = {decode(text) for text in secrets for decode in (unquote, unquote_plus)}
    return {text for text in secrets | decoded if len(text) >= _SHORTEST}
