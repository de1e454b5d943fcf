"""Secrets of URLs and addresses: never in messages or reports, whoever formats them."""

import base64
import html
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from bucket import client_environment
from command import python, save
from commandlines import all_commands, run_commands
from npyfile import npy
from webserver import Object, Server, serving

from ndtool import redaction

USER, PASSWORD, QUERY = "USERNAME7", "PASSWORD7", "SIGNATURE7"
SECRETS = (USER, PASSWORD, QUERY)


@pytest.fixture(autouse=True)
def clear_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_registered", {})
    monkeypatch.setattr(redaction, "_literal_replacements", ())
    monkeypatch.setattr(redaction, "_patterns", {})


def secret_encodings(secret: str) -> Iterator[str]:
    """Yield the encodings in which packages may print a secret."""
    quoted = urllib.parse.quote(secret, safe="")
    yield from (secret, quoted, quoted.lower(), urllib.parse.quote(secret))
    yield from (urllib.parse.quote_plus(secret), urllib.parse.quote(quoted, safe=""))
    yield from ("".join(f"%{byte:02X}" for byte in secret.encode()), html.escape(secret))
    yield from (repr(secret)[1:-1], ascii(secret)[1:-1], repr(secret.encode())[2:-1])
    yield from (json.dumps(secret)[1:-1], repr(repr(secret))[2:-2])


UNUSUAL_SECRETS = ("PASSWORD7", "pw", "p w/x", "a@b:c", "p%&'\"<>", "pässwörd\t", "[::1]")


@pytest.mark.parametrize("secret", UNUSUAL_SECRETS)
def test_a_secret_is_found_in_any_encoding(secret: str) -> None:
    encoded = urllib.parse.quote(secret, safe="")
    for url in (f"s3://KEY7:{encoded}@bucket/x.npy", f"https://h/x.npy?token={encoded}&v=1"):
        redaction.register(url)
        redaction.register("https://h/other?k=v")
        for form in secret_encodings(secret):
            if "@" in url or len(secret) > 2:
                for text in (f"bad name '{form}'", f"({form})", f"%3A{form}, {form}@bucket"):
                    assert form not in redaction.redact_secrets(text)


def test_a_header_with_a_user_and_a_password() -> None:
    redaction.register("https://me:word@host/")
    header = base64.b64encode(b"me:word").decode()
    assert redaction.redact_secrets(f"Basic {header} is refused") == "Basic ... is refused"


def test_words_that_only_contain_a_short_secret_stay() -> None:
    redaction.register("https://me:1@host/x?v=12&token=name")
    text = "some message 12 of 21 names"
    assert redaction.redact_secrets(text) == text
    assert redaction.redact_secrets("me, 1, name") == "..., ..., ..."


@pytest.mark.parametrize(
    ("url", "expected_text"),
    [
        ("https://me:word@host/x?k=v:m", "https://host/x?...:m"),
        ("https://me:a@b@host/x", "https://host/x"),
        ("s3://KEY:ab/cd+ef@bucket/x", "s3://bucket/x"),
        ("s3://KEY:s p a@bucket/x", "s3://bucket/x"),
        ("https://me:word@[::1]:80/x@y", "https://[::1]:80/x@y"),
        ("https://[::1]:80/x@y", "https://[::1]:80/x@y"),
        ("http://host:80/x@y.npy", "http://host:80/x@y.npy"),
        ("s3://bucket/x@y.npy", "s3://bucket/x@y.npy"),
        ("https://:word@host/x", "https://host/x"),
        ("HTTPS://me:word@HOST/x", "HTTPS://HOST/x"),
        ("zip://x.npy::s3://K:S@b/y.zip", "zip://x.npy::s3://b/y.zip"),
        ("simplecache::s3://K:S@b/y", "simplecache::s3://b/y"),
        ("https://h/x.npz?se=2020-01-01T00:00:00Z&sig=a:m", "https://h/x.npz?...:m"),
        ("https://h/x.npz?k=a b c:m", "https://h/x.npz?...:m"),
    ],
)
def test_how_urls_are_shown(url: str, expected_text: str) -> None:
    redaction.register(url)
    assert redaction.redact_urls(f"{url} is there") == f"{expected_text} is there"


@pytest.mark.parametrize("repeated", ["a://", "a://[b:", "://a:b@", "?&=:", "@", "\\"])
def test_long_texts_take_linear_time(repeated: str) -> None:
    """With quadratic time, this test would take a quarter of an hour."""
    redaction.register("https://me:wörd~~~@host/?k=wörd~~~~")
    for text in (repeated * 50_000, repeated * 50_000 + "://b:c@h?d=e"):
        redaction.register(text)
        assert "wörd" not in redaction.redact_secrets(f"{text} wörd~~~")


def test_only_the_latest_are_remembered() -> None:
    for number in range(1000):
        redaction.register(f"https://host/x?token=secret{number}")
    assert redaction.redact_secrets("secret999, secret0") == "..., secret0"
    for number in range(2000):
        redaction.register(f"https://host/x.zarr/c/{number}?token=secret999")
    assert redaction.redact_secrets("secret998, secret999") == "..., ..."


def is_url_parameter(parameter: click.Parameter) -> bool:
    """Whether an argument is a file, a folder or an address, which may be a URL."""
    return parameter.type.name in ("file", "address", "path")


USUAL = {
    "data": "data.npy", "indices": "idx.npy", "output": "out.npy", "source": "data.npy",
    "names": "data.npy", "model": "model.onnx", "folder": ".", "command": "gather-nd",
}  # fmt: skip


def call(command: click.Command, path: tuple[str, ...], name: str, value: str) -> list[str]:
    """Return a command line with a value for one parameter, and default ones for required ones."""
    arguments = list(path)
    for param in command.params:
        if isinstance(param, click.Argument):
            if param.name == name or param.required or param.name in ("output", "command"):
                arguments.append(value if param.name == name else USUAL[param.name or ""])
        elif param.name == name:
            arguments += [param.opts[-1], value]
        elif param.name == "at":
            arguments += ["--at", "0,0"]
        elif param.name == "output":
            arguments += ["-o", "out.npy"]
    return arguments


def run(cases: list[list[str]], **env: str | None) -> list[tuple[int, str]]:
    """Return the status of each call, and all its output, reports included."""
    return run_commands([(case, {}) for case in cases], env=env)


def with_secrets(url: str, suffix: str = "") -> str:
    return url.replace("://", f"://{USER}:{PASSWORD}@") + suffix + f"?token={QUERY}"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def call_files(workdir: Path) -> None:
    save(data=np.arange(12.0).reshape(3, 4), idx=np.array([[0], [2]]), out=np.zeros((2, 4)))
    (workdir / "model.onnx").write_bytes(b"\x08\x0a")


@pytest.mark.slow("every option that takes a URL redacts it")
def test_no_option_reveals_secrets_of_its_url(server: Server, call_files: None) -> None:
    """All parameters that take a file or an address, and all failures of a URL."""
    for path, changes in (
        ("/forbidden", {"refusals": [403] * 10**4}),
        ("/failing", {"refusals": [500] * 10**4}),
        ("/garbled", {"shift": 1}),
        ("/unreadable", {}),
    ):
        server.add(f"{path}.npy", b"<html></html>", **changes)
    fine = server.add("/x.npy", npy(np.arange(12.0).reshape(3, 4)))
    loop = server.add("/loop.npy", b"")
    server.objects["/loop.npy"].moved = loop
    server.objects["/away.npy"] = Object(b"", moved=with_secrets("s3://bucket/x.npy"))
    base = fine.removesuffix("/x.npy")
    pages = "forbidden", "failing", "garbled", "unreadable", "nothing", "loop", "away", "x"
    urls = [with_secrets(f"{base}/{page}.npy") for page in pages]
    urls += map(
        with_secrets,
        (
            "http://127.0.0.1:9/x.npy", "HTTP://127.0.0.1:9/x.zarr", "http://host:99999/x.npy",
            "http://[::1/x.npy", "http://", "s3://bucket/x.npy", "s3://bucket/x.zarr",
            "github://main/x.npy", "nonsense://host/x.npy", "memory://x.npy", "tcp://127.0.0.1:1",
            "foo://127.0.0.1:1",
        ),
    )  # fmt: skip
    urls += [
        f"{USER}:{PASSWORD}@127.0.0.1:1",
        f"zip://x.npy::{with_secrets('http://127.0.0.1:9/x.zip')}",
        f"simplecache::{with_secrets('s3://bucket/x.npy')}",
        with_secrets("s3://bucket/x.npz") + ":member",
    ]
    for suffix in (".html", ".svg", ".onnx"):
        urls.append(with_secrets(f"http://127.0.0.1:9/x{suffix}") + f"&a={suffix}")
    cases = []
    functions = set()
    for command, path in all_commands():
        function = getattr(command.callback, "func", command.callback)
        if function in functions:
            continue  # the first command of each function
        functions.add(function)
        option_names = {param.name for param in command.params}
        for parameter in filter(is_url_parameter, command.params):
            for url in urls:
                if url[0] == USER[0] and parameter.type.name != "address":
                    continue  # it is a file name, not a URL
                case = call(command, path, parameter.name or "", url)
                page = ["--html", "page.html"] if "html" in option_names - {parameter.name} else []
                cases += [[*case, *page], [*case, "--json"] if "json" in option_names else case]
    assert len(cases) > 500
    env = client_environment("http://127.0.0.1:9", AWS_EC2_METADATA_DISABLED="true")
    for case, (status, text) in zip(cases, run(cases, **env), strict=True):
        assert status != 1, (case, text)
        assert not any(secret in text for secret in SECRETS), (case, text)


def test_messages_of_an_s3_server(call_files: None) -> None:
    """S3's package repeats invalid bucket names in messages."""
    pytest.importorskip("s3fs")
    url = f"s3://{USER}:{PASSWORD}@bucket/x.npy"
    cases = [
        ["inspect", url],
        ["gather-nd", url, "idx.npy", "-o", "out.npy", "--html", "page.html"],
        ["gather-nd", "data.npy", "idx.npy", "-o", url],
        ["verify", "gather-nd", "data.npy", "idx.npy", url],
        ["clean", url],
    ]
    for case, (status, text) in zip(
        cases, run(cases, **client_environment("http://127.0.0.1:9")), strict=True
    ):
        assert status in (3, 7), (case, text)
        assert "Invalid bucket name" in text
        assert not any(secret in text for secret in SECRETS), (case, text)


FAILING_READER_SCRIPT = """
import sys
from ndtool.storage import objects
def open_object(url):
    raise RuntimeError(f"odd {url}, {url.partition('://')[2]!r}")
objects.open_object = open_object
from ndtool.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_traceback_has_no_secrets(workdir: Path, options: list[str]) -> None:
    result = python(FAILING_READER_SCRIPT, "inspect", with_secrets("https://host/x.npy"), *options)
    text = result.out.decode() + result.err
    assert result.status == 1
    assert "RuntimeError" in text
    assert not any(secret in text for secret in SECRETS)
