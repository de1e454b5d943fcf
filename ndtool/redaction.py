"""Redaction of secrets in URLs and addresses: user, password and query.

Other packages quote components of a URL in their messages, in any encoding. So the parser of
arguments registers each URL, and `redact_secrets` removes the registered secrets from messages.
"""

import re
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any

_MAX_URLS = 32  # registered URLs, the most recent ones
_MAX_SECRETS = 512  # secrets to search for, the longest ones: a URL has a dozen
_MIN_QUERY_SECRET = 3  # characters of a secret in a query; shorter values are ordinary text
MIN_EMBEDDED_SECRET = 8  # characters of a secret that is also removed inside longer words
_MAX_COMPARED = 16  # initial characters of a secret to compare: messages may truncate it

# User and password end at the last @ before the host.
_LOGIN = re.compile(r"[^/?#]*@")
# A password may contain a slash, as keys of S3 do: it is all text between a colon and the last @,
# unless that is a port.
_USER = re.compile(r"(?!\[)[^/?#@:]*:(?!:|\d*(?:[/?#]|\Z))")
_SEPARATORS = r"\s\"'<>/?#@:&;=+,"
_WORD = (
    r"(?:(?<![0-9A-Za-z])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})"
    r"|(?<=\\[nrt]))"
)

_lock = RLock()  # a signal handler may register URLs, too
_registered: dict[tuple[str, ...], None] = {}  # the secrets of each URL; the most recent is last
# Secrets that the URL patterns do not match (with spaces, or of addresses), and replacements.
_literal_replacements: tuple[tuple[str, str], ...] = ()
_patterns: dict[int, re.Pattern[str] | None] = {}  # by the minimum length of matched secrets


def register(text: str) -> None:
    """Register the secrets of a URL, or of an address such as `user:password@host:port`."""
    global _literal_replacements
    if "://" in text:
        encoded_secrets = tuple(_split_secrets(text)[1][:_MAX_SECRETS])
    else:
        secrets = _split_secrets(f"://{text}")[1]
        encoded_secrets = tuple(secret.removeprefix("://") for secret in secrets)
    with _lock:
        if not encoded_secrets or next(reversed(_registered), None) == encoded_secrets:
            return
        _registered.pop(encoded_secrets, None)
        _registered[encoded_secrets] = None
        while len(_registered) > _MAX_URLS:
            del _registered[next(iter(_registered))]
        _patterns.clear()
        unmatched = (
            encoded_secret
            for secrets_of_url in _registered
            for encoded_secret in secrets_of_url
            if re.search(r"\s|^(?!://|\?)", encoded_secret)
        )
        _literal_replacements = tuple(
            (encoded_secret, {"?": "?...", ":": "://"}.get(encoded_secret[0], ""))
            for encoded_secret in unmatched
        )


def redact_urls(text: str) -> str:
    """Return `text` without the user, password and query of any URL in it.

    >>> redact_urls("https://me:word@host/a.npz?signature=1:x does not exist")
    'https://host/a.npz?...:x does not exist'
    """
    for encoded_secret, replacement in _literal_replacements:
        text = text.replace(encoded_secret, replacement)
    if "://" not in text:
        return text
    return re.sub(r"\S+", lambda word: _split_secrets(word[0])[0], text)


def redact_secrets(text: str, min_length: int = 1) -> str:
    """Return a message of another package without any registered secret.

    min_length: the minimum length of the secrets to remove outside of URLs.
    """
    pattern = _pattern(min_length)
    return redact_urls(pattern.sub("...", redact_urls(text)) if pattern else text)


def redact_json(value: Any, redact: Callable[[str], str] = redact_urls) -> Any:
    """Apply `redact` to all strings in a JSON value, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, (list, tuple)):
        return [redact_json(item, redact) for item in value]
    if isinstance(value, dict):
        return {redact_json(key, redact): redact_json(item, redact) for key, item in value.items()}
    return value


def _split_secrets(text: str) -> tuple[str, list[str]]:
    """Return a text without the secrets of the URLs in it, and these secrets.

    A secret is as it is encoded, with its leading delimiter. Takes time linear in the text.
    """
    if "://" not in text:
        return text, []
    secrets: list[str] = []
    parts, position, last_at = list[str](), 0, text.rfind("@")
    while 0 <= (start := text.find("://", position)) < last_at:
        host = start + 3
        if login := _LOGIN.match(text, host):
            host = login.end()
        elif (user := _USER.match(text, host)) and user.end() <= last_at:
            host = last_at + 1
        if host > start + 3:
            secrets.append(text[start:host])
        parts.append(f"{text[position:start]}://")
        position = host
    text = "".join(parts) + text[position:]
    # A query ends at the colon before a member name, which contains no & and no =.
    parts, position, last_parameter = [], 0, max(text.rfind("&"), text.rfind("="))
    while (start := text.find("://", position)) >= 0:
        if (mark := text.find("?", start + 3)) < 0:
            break
        end = text.find(":", max(mark, last_parameter) + 1)
        end = len(text) if end < 0 else end
        secrets.append(text[mark:end])
        parts.append(f"{text[position:mark]}?...")
        position = end
    return "".join(parts) + text[position:], secrets


def _pattern(min_length: int) -> re.Pattern[str] | None:
    """Return a pattern for the registered secrets of at least this length, None if none has it."""
    with _lock:
        if min_length not in _patterns:
            secrets = {
                secret for encoded_secrets in _registered for secret in _secrets(encoded_secrets)
            }
            searched = [secret for secret in secrets if len(secret) >= min_length]
            longest = sorted(searched, key=len, reverse=True)[:_MAX_SECRETS]
            alternatives = map(_secret_pattern, longest)
            _patterns[min_length] = re.compile("|".join(alternatives), re.I) if searched else None
        return _patterns[min_length]


def _secrets(encoded_secrets: tuple[str, ...]) -> Iterator[str]:
    """Yield the decoded secrets of a URL, and their words, which messages may contain alone."""
    import base64

    for encoded_secret in encoded_secrets:
        if encoded_secret.startswith("?"):
            values = (
                parameter.partition("=")[2] or parameter
                for parameter in re.split("[&;]", encoded_secret[1:])
            )
            secrets, min_length = list(values), _MIN_QUERY_SECRET
        else:
            login = encoded_secret.removeprefix("://")[:-1]
            secrets, min_length = [login, *login.split(":", 1)], 1
            encoded = base64.b64encode(_percent_decode(login).encode("utf-8", "replace"))
            secrets.append(encoded.decode())  # as in an Authorization header
        for secret in map(_percent_decode, secrets):
            words = [
                word for word in re.split(f"[{_SEPARATORS}]+", secret) if len(word) >= min_length
            ]
            yield from words
            if len(secret) <= _MAX_COMPARED and (words or len(secret) >= _MIN_QUERY_SECRET):
                yield secret


def _percent_decode(text: str) -> str:
    """Percent-decode a text twice, as it may be encoded twice."""
    from urllib.parse import unquote

    return unquote(unquote(text, errors="surrogateescape"), errors="surrogateescape")


def _secret_pattern(secret: str) -> str:
    """Return a pattern for a secret: each character literal, encoded or escaped."""
    pattern = "".join(map(_character_pattern, secret[:_MAX_COMPARED]))
    if len(secret) > _MAX_COMPARED:
        pattern += f"[^{_SEPARATORS}]*"
    return pattern if len(secret) >= MIN_EMBEDDED_SECRET else f"{_WORD}{pattern}(?![0-9A-Za-z])"


def _character_pattern(character: str) -> str:
    """Return a pattern for a character: literal, percent-encoded, or escaped (Python, HTML)."""
    raw = character.encode(
        "utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace"
    )
    spellings = ["".join(rf"%(?:25)*{byte:02x}" for byte in raw)]
    if character.isascii() and character.isalnum():
        return f"(?:{character}|{spellings[0]})"
    spellings += [re.escape(character), "".join(rf"\\+x{byte:02x}" for byte in raw)]
    spellings += [rf"\\+(?:x{ord(character):02x}|u{ord(character):04x}|U{ord(character):08x})"]
    spellings += {"\n": [r"\\+n"], "\r": [r"\\+r"], "\t": [r"\\+t"], " ": [r"\+", r"\s"]}.get(
        character, []
    )
    spellings += {"&": ["&amp;"], "<": ["&lt;"], ">": ["&gt;"], '"': ["&quot;"]}.get(character, [])
    spellings += {"'": ["&#x27;", "&#39;"]}.get(character, [])
    return rf"\\{{0,16}}(?:{'|'.join(spellings)})"  # unlimited, it takes quadratic time
