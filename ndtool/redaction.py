"""Redaction of secrets in URLs and addresses: user, password and query.

Other packages repeat parts of a URL in their messages, in any encoding. So the parser registers
each URL, and `foreign` removes the registered secrets from those messages.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import Any

_MOST = 32  # URLs remembered, the latest ones
_LEAST = 3  # minimum characters of a secret in a query: shorter ones occur in ordinary text
LONG = 8  # characters from which a secret is removed inside words, too
_SPELLED = 16  # characters of a secret that are compared, as messages may truncate it

# A user and a password end at the last @ before the host. A password may contain a slash, as keys
# of S3 do: text after the first colon is one unless it is a port.
_USER = r"://(?:[^/{space}?#]*@|(?!\[)[^/{space}?#@:]*:(?!:|\d*(?:[/?#]|$))[^{space}]*@)"
# A query ends at the colon before a member name, which contains no & and no =.
_QUERY = r"(://[^?{space}]*\?)((?:[^{space}]*[&=])?[^:{space}]*)"
_SEPARATORS = r"\s\"'<>/?#@:&;=+,"
_WORD = (
    r"(?:(?<![0-9A-Za-z])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=\\[nrt]))"
)

_lock = Lock()
_known: dict[tuple[str, ...], None] = {}  # the secrets of each URL, the latest last
# Secrets that the URL patterns miss (with spaces, or of addresses), and their replacements.
_exact: tuple[tuple[str, str], ...] = ()
_patterns: dict[int, re.Pattern[str] | None] = {}  # by minimum length of the secrets matched


def register(text: str) -> None:
    """Register the secrets of a URL, or of an address such as `user:password@host:port`."""
    global _exact
    if "://" in text:
        spans = tuple(_secret_spans(text))
    else:
        spans = tuple(span.removeprefix("://") for span in _secret_spans(f"://{text}"))
    with _lock:
        if not spans or next(reversed(_known), None) == spans:
            return
        _known.pop(spans, None)
        _known[spans] = None
        while len(_known) > _MOST:
            del _known[next(iter(_known))]
        _patterns.clear()
        unmatched = (
            span
            for spans_of_url in _known
            for span in spans_of_url
            if re.search(r"\s|^(?!://|\?)", span)
        )
        _exact = tuple((span, {"?": "?...", ":": "://"}.get(span[0], "")) for span in unmatched)


def redacted(text: str) -> str:
    """Return `text` without the user, password and query of any URL in it.

    >>> redacted("https://me:word@host/a.npz?signature=1:x does not exist")
    'https://host/a.npz?...:x does not exist'
    """
    for span, replacement in _exact:
        text = text.replace(span, replacement)
    if "://" not in text:
        return text
    user, query = _of_url(r"\s")
    return query.sub(r"\1...", user.sub("://", text))


def foreign(text: str, shortest: int = 1) -> str:
    """Return a message of another package without any registered secret.

    shortest: the minimum length of the secrets to remove outside of URLs.
    """
    pattern = _pattern(shortest)
    return redacted(pattern.sub("...", redacted(text)) if pattern else text)


def in_fields(value: Any, strip: Callable[[str], str] = redacted) -> Any:
    """Apply `strip` to all strings in a JSON value, keys included."""
    if isinstance(value, str):
        return strip(value)
    if isinstance(value, (list, tuple)):
        return [in_fields(item, strip) for item in value]
    if isinstance(value, dict):
        return {in_fields(key, strip): in_fields(item, strip) for key, item in value.items()}
    return value


@cache
def _of_url(space: str = r"\0") -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for the user and the query of a URL; space: what ends a URL, as a regex."""
    return re.compile(_USER.format(space=space)), re.compile(_QUERY.format(space=space))


def _pattern(shortest: int) -> re.Pattern[str] | None:
    with _lock:
        if shortest not in _patterns:
            pieces = {secret for spans in _known for secret in _secrets(spans)}
            long_enough = [secret for secret in pieces if len(secret) >= shortest]
            spellings = map(_spelling, sorted(long_enough, key=len, reverse=True))
            _patterns[shortest] = re.compile("|".join(spellings), re.I) if long_enough else None
        return _patterns[shortest]


def _secret_spans(url: str) -> Iterator[str]:
    """Yield the secrets of a URL, still encoded, each with the delimiter before it."""
    user, query = _of_url()
    for match in user.finditer(url):
        yield match[0]
    for match in query.finditer(user.sub("://", url)):
        yield f"?{match[2]}"


def _secrets(spans: tuple[str, ...]) -> Iterator[str]:
    """Yield the secrets of URLs, decoded, and the words in them, which messages may contain."""
    import base64

    for span in spans:
        if span.startswith("?"):
            values = (
                parameter.partition("=")[2] or parameter for parameter in re.split("[&;]", span[1:])
            )
            secrets, least = list(values), _LEAST
        else:
            login = span.removeprefix("://")[:-1]
            secrets, least = [login, *login.split(":", 1)], 1
            encoded = base64.b64encode(_decoded(login).encode("utf-8", "replace"))
            secrets.append(encoded.decode())  # as in an Authorization header
        for secret in map(_decoded, secrets):
            words = [word for word in re.split(f"[{_SEPARATORS}]+", secret) if len(word) >= least]
            yield from words
            if len(secret) <= _SPELLED and (words or len(secret) >= _LEAST):
                yield secret


def _decoded(text: str) -> str:
    """Percent-decode a text twice, as it may be encoded twice."""
    from urllib.parse import unquote

    return unquote(unquote(text, errors="surrogateescape"), errors="surrogateescape")


def _spelling(secret: str) -> str:
    """Return a pattern for a secret: each character literal, encoded or escaped."""
    pattern = "".join(map(_character, secret[:_SPELLED]))
    if len(secret) > _SPELLED:
        pattern += f"[^{_SEPARATORS}]*"
    return pattern if len(secret) >= LONG else f"{_WORD}{pattern}(?![0-9A-Za-z])"


def _character(character: str) -> str:
    """Return a pattern for a character: literal, percent-encoded, or escaped (Python, HTML)."""
    raw = character.encode(
        "utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace"
    )
    forms = ["".join(rf"%(?:25)*{byte:02x}" for byte in raw)]
    if character.isascii() and character.isalnum():
        return f"(?:{character}|{forms[0]})"
    forms += [re.escape(character), "".join(rf"\\+x{byte:02x}" for byte in raw)]
    forms += [rf"\\+(?:x{ord(character):02x}|u{ord(character):04x}|U{ord(character):08x})"]
    forms += {"\n": [r"\\+n"], "\r": [r"\\+r"], "\t": [r"\\+t"], " ": [r"\+", r"\s"]}.get(
        character, []
    )
    forms += {"&": ["&amp;"], "<": ["&lt;"], ">": ["&gt;"], '"': ["&quot;"]}.get(character, [])
    forms += {"'": ["&#x27;", "&#39;"]}.get(character, [])
    return rf"\\*(?:{'|'.join(forms)})"
