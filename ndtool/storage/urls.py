"""URLs of objects and folders, as text."""


def is_http(url: str) -> bool:
    """Whether a URL is an HTTP server's, which percent-encodes names and cannot list folders."""
    return url.partition("://")[0] in ("http", "https")


def join(url: str, key: str, sibling: bool = False) -> str:
    """Return the URL of a key in a folder, the folder's for ""; a query or chained URL stays last.

    sibling: whether `url` is the URL of a file in the folder, not of the folder itself.

    >>> join("https://host/x.zarr?k=v", "a/zarr.json"), join("s3://b/x/", "c")
    ('https://host/x.zarr/a/zarr.json?k=v', 's3://b/x/c')
    >>> join("cache://x?k=v::s3://b", "c")
    'cache://x/c?k=v::s3://b'
    """
    if not key and not sibling:
        return url
    path, suffix = split_query(url)
    folder = path.rpartition("/")[0] if sibling else path.rstrip("/")
    if is_http(url):
        from urllib.parse import quote

        key = quote(key)
    return f"{folder}/{key}{suffix}"


def split_query(url: str) -> tuple[str, str]:
    """Split a URL before its query or chained URL."""
    positions = [position for separator in ("?", "::") if (position := url.find(separator)) > 0]
    position = min(positions, default=len(url))
    return url[:position], url[position:]
