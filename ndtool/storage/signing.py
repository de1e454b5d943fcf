"""Signed URLs of S3 objects (signature version 4), without the AWS packages.

Only settings that ndtool supports completely result in a URL: static credentials or none, from the
variables, files and options that s3fs reads. For all others, `find_settings` returns None.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

VALIDITY_SECONDS = 3600  # of a signed URL
_URL = re.compile(r"s3a?://([^/]+)/([^?]+)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SPECIAL_BUCKET = re.compile(r"(-s3alias|--[a-z0-9]+-s3)$")  # access point, directory bucket
_REGION = re.compile(r"[a-z]{2}-[a-z]+-\d")  # of AWS's main partition
_ENDPOINT = re.compile(r"(https?)://([A-Za-z0-9.-]+(?::\d+)?)/?")
_S3FS_OPTIONS = {"anon", "key", "secret", "token", "endpoint_url"}  # of s3fs
_VARIABLES = {
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE",
}  # fmt: skip
# Variables without effect on reads by a signed URL; botocore does not read AWS_REGION.
_IGNORED_VARIABLES = {
    "AWS_REGION", "AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", "AWS_EC2_METADATA_DISABLED", "AWS_PAGER",
    "AWS_EXECUTION_ENV",
}  # fmt: skip
_PROFILE_FIELDS = {
    "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region", "endpoint_url",
    "output", "cli_pager",
}  # fmt: skip
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


class Settings(NamedTuple):
    """The location of an S3 object, and the credentials that sign requests.

    bucket_url: the URL of its bucket. credentials: access key, secret and perhaps a token; None for
    anonymous requests.
    """

    bucket_url: str
    key: str
    region: str
    credentials: tuple[str, str, str | None] | None


def bypasses_s3fs() -> bool:
    """Whether requests may bypass s3fs: no proxy or HTTP option is set."""
    from fsspec.config import conf

    proxied = any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXY_VARIABLES)
    return not (proxied or conf.get("http") or conf.get("https"))


def find_settings(url: str) -> Settings | None:
    """Return the settings of an object, None if only s3fs supports them."""
    from fsspec.config import conf

    match = _URL.fullmatch(url)
    options: dict[str, Any] = {**conf.get("s3", {}), **conf.get("s3a", {})}
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    if match is None or not is_plain_name(*match.groups()) or not options.keys() <= _S3FS_OPTIONS:
        return None
    if not variables.keys() <= _VARIABLES | _IGNORED_VARIABLES or not all(variables.values()):
        return None
    profile = _read_profile(
        variables.get("AWS_PROFILE", "default"),
        _variable_path(variables, "AWS_CONFIG_FILE", "~/.aws/config"),
        _variable_path(variables, "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    if profile is None or ("AWS_PROFILE" in variables and not profile):
        return None
    region = variables.get("AWS_DEFAULT_REGION") or profile.get("region", "us-east-1")
    endpoint_variables = (variables.get("AWS_ENDPOINT_URL_S3"), variables.get("AWS_ENDPOINT_URL"))
    endpoints = (options.get("endpoint_url"), *endpoint_variables, profile.get("endpoint_url"))
    base = bucket_url(match[1], region, next(filter(None, endpoints), None))
    credentials = None if options.get("anon") else _credentials(options, variables, profile)
    if base is None or not (credentials or options.get("anon")):
        return None
    if "AWS_CA_BUNDLE" in variables and base.startswith("https"):
        return None
    return Settings(base, match[2], region, credentials)


def is_plain_name(bucket: str, key: str) -> bool:
    """Whether a URL can have these names: no access point, no segment that URLs normalize."""
    if not _BUCKET.fullmatch(bucket) or _SPECIAL_BUCKET.search(bucket):
        return False
    return key.isprintable() and not {"", ".", ".."} & set(key.split("/"))


def _variable_path(variables: dict[str, str], name: str, default: str) -> str:
    return os.path.expanduser(variables.get(name, default))


@lru_cache(8)
def _read_profile(name: str, config: str, credentials: str) -> dict[str, str] | None:
    """Read a profile of AWS's files, None if it has settings that ndtool does not support."""
    if not (os.path.exists(config) or os.path.exists(credentials)):
        return {}
    from configparser import Error, RawConfigParser

    merged: dict[str, str] = {}
    section = name if name == "default" else f"profile {name}"
    for path, title in ((config, section), (credentials, name)):
        parser = RawConfigParser(default_section="")
        try:
            parser.read(path, "utf-8")
            merged.update(parser.items(title) if parser.has_section(title) else ())
        except (Error, OSError, UnicodeError):
            return None
    return merged if merged.keys() <= _PROFILE_FIELDS and all(merged.values()) else None


def bucket_url(bucket: str, region: str, endpoint: object) -> str | None:
    """Return the URL of a bucket, None if only s3fs can determine it."""
    if endpoint is None:
        if not _REGION.fullmatch(region) or region.startswith("cn-"):
            return None
        host = "s3.amazonaws.com" if region == "us-east-1" else f"s3.{region}.amazonaws.com"
        return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"
    match = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
    if match is None or match[2].endswith(".amazonaws.com"):
        return None
    return f"{match[1]}://{match[2]}/{bucket}"


def _credentials(
    options: dict[str, Any], variables: dict[str, str], profile: dict[str, str]
) -> tuple[str, str, str | None] | None:
    """Return the static credentials, None if they are missing or incomplete."""
    for settings, names in (
        (options, ("key", "secret", "token")),
        (variables, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")),
        (profile, ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")),
    ):
        key, secret, token = map(settings.get, names)
        if key or secret or token:
            if isinstance(key, str) and isinstance(secret, str) and isinstance(token, str | None):
                return key, secret, token
            return None
    return None


def signed_url(settings: Settings, now: float | None = None) -> str:
    """Return a signed URL for reading an object; now: the time of signing, by default the present.

    >>> url = signed_url(Settings("https://host/bucket", "x.npy", "eu-west-1", ("A", "B", None)))
    >>> url.partition("&")[0]
    'https://host/bucket/x.npy?X-Amz-Algorithm=AWS4-HMAC-SHA256'
    """
    url = f"{settings.bucket_url}/{quote(settings.key, safe='/-_.~')}"
    if settings.credentials is None:
        return url
    key, secret, token = settings.credentials
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    scope = f"{timestamp[:8]}/{settings.region}/s3/aws4_request"
    fields = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{key}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(VALIDITY_SECONDS),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": token} if token else {}),
    }
    query = "&".join(f"{name}={quote(fields[name], safe='-_.~')}" for name in sorted(fields))
    host, slash, path = url.partition("://")[2].partition("/")
    request = f"GET\n{slash}{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    signature = f"AWS4{secret}".encode()
    for step in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{timestamp}\n{scope}\n{digest}"):
        signature = hmac.digest(signature, step.encode(), "sha256")
    return f"{url}?{query}&X-Amz-Signature={signature.hex()}"
