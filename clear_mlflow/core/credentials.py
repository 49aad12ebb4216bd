"""Nothing that lets anyone into a store is shown or written down: addresses without credentials.

What an address may carry (user, password, token, query) is masked whole, whether or not it looks
like a secret: a password may hold any character, and a driver may be given it in any parameter.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

MASK = "***"

# Whoever writes the text decides how long this takes: nothing here looks at a character twice.
_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]*)://(\S*)")
# What has the form of user:password, of which an @ follows.
_BARE = re.compile(r"(?<![^\s:/@'\"=(])[^\s:/@'\"=(]+:(?!//)")
# Schemes of files, in whose paths an @ is a character like any other.
_OF_FILES = ("sqlite", "file")
_SHORTEST = 4  # characters of a secret that is looked for in a text: fewer would be in any word


def mask_credentials(text: str, *addresses: str) -> str:
    """A text without the credentials of any address in it, and of ``addresses`` anywhere in it.

    A driver may quote a password decoded, or a part of it.

    >>> mask_credentials("no answer from postgresql://me:secret@host/db?sslpassword=secret")
    'no answer from postgresql://***@host/db?sslpassword=***'
    """
    for secret in sorted({s for a in addresses for s in _secrets(a)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _ADDRESS.sub(lambda found: f"{found[1]}://{_without_secrets(found[1], found[2])}", text)
    parts = text.split("@")
    for i, part in enumerate(parts[:-1]):
        word = "" if part[-1:].isspace() or not part else part.rsplit(maxsplit=1)[-1]
        if (found := _BARE.search(word)) and parts[i + 1][:1].strip():
            parts[i] = f"{part[: len(part) - len(word)]}{word[: found.start()]}{MASK}"
    return "@".join(parts)


def has_credentials(address: str) -> bool:
    """Whether :func:`mask_credentials` leaves anything out of an address."""
    return mask_credentials(address) != address


def _is_of_a_file(scheme: str, rest: str) -> bool:
    return scheme.lower().split("+")[0] in _OF_FILES and rest.startswith("/")


def _without_secrets(scheme: str, rest: str) -> str:
    """What follows ``scheme://``, masked."""
    if _is_of_a_file(scheme, rest):
        before, mark, query = rest.partition("?")
    else:
        # The last @ of all: an unescaped password may hold any of / ? # @.
        _, at, place = rest.rpartition("@")
        before, mark, query = place.partition("?")
        before = f"{MASK}@{before}" if at else before
        if not at and "#" in before:  # an unescaped password, cut off before its @
            before = before.partition("#")[0] + f"#{MASK}"
    if not mark:
        return before
    values = re.split(r"[&;]", query)
    names = [name if equals else "" for name, equals, _ in (v.partition("=") for v in values)]
    return f"{before}?" + "&".join(f"{name}={MASK}" if name else MASK for name in names)


def _secrets(address: str) -> set[str]:
    """Parts of an address that give access, as written and decoded."""
    scheme, _, rest = address.partition("://")
    found: set[str] = set()
    if not _is_of_a_file(scheme, rest):
        user, at, _ = rest.rpartition("@")
        name, colon, password = user.partition(":")
        if at:
            found |= {user, password} if colon else {name}
            found |= set(re.split(r"[@/?#:]", password))  # what a parser may take for another part
    _, _, query = rest.partition("?")
    found |= {value.rpartition("=")[2] for value in re.split(r"[&;]", query)}
    decoded = {decode(text) for text in found for decode in (unquote, unquote_plus)}
    return {text for text in found | decoded if len(text) >= _SHORTEST}
