"""Signed URLs of S3: signatures against botocore's, and when ndtool signs itself."""

import calendar
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import CREDENTIALS, Bucket, client_environment
from command import python, save
from inputs import load, open_input
from npyfile import npy, write_sparse
from webserver import serving

from ndtool.errors import InputError
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request
from ndtool.storage import s3, signing
from ndtool.storage.signing import Settings

pytest.importorskip("fsspec", reason="fsspec is not installed")

ROWS = np.arange(400_000 * 4, dtype="<f4").reshape(-1, 4)
AWS = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B"}
BASE = "https://bucket.s3.amazonaws.com"


@pytest.fixture(autouse=True)
def without_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[pytest.MonkeyPatch]:
    """No settings of the user's."""
    for name, value in client_environment("").items():
        monkeypatch.delenv(name, raising=False)
        assert value is None or name in {*CREDENTIALS, "AWS_ENDPOINT_URL"}
    for name in signing._PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("fsspec.config.conf", {})
    monkeypatch.setattr(s3, "_client_only_buckets", set())
    signing._read_profile.cache_clear()
    yield monkeypatch
    signing._read_profile.cache_clear()


@pytest.mark.parametrize("token", [None, "to/ken+=="])
@pytest.mark.parametrize("bucket", ["bucket", "my.bucket"])
@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("us-east-1", None),
        ("eu-central-1", None),
        ("us-east-1", "http://127.0.0.1:9000"),
        ("eu-west-3", "https://minio.local:9443"),
    ],
)
def test_signatures_are_those_of_botocore(
    without_settings: pytest.MonkeyPatch,
    region: str,
    endpoint: str | None,
    bucket: str,
    token: str | None,
) -> None:
    session = pytest.importorskip("botocore.session", reason="botocore is not installed")
    config = pytest.importorskip("botocore.config")
    virtual = endpoint is None and "." not in bucket
    client = session.Session().create_client(
        "s3",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id="AKIA",
        aws_secret_access_key="se/cr+et",
        aws_session_token=token,
        config=config.Config(
            signature_version="s3v4", s3={"addressing_style": "virtual"} if virtual else {}
        ),
    )
    for key in ("x.npy", "a b/ü~(1)'*!$&+,;=:@.npy", "data/100%/#x"):
        base = signing.bucket_url(bucket, region, endpoint)
        assert base is not None
        request_settings = Settings(base, key, region, ("AKIA", "se/cr+et", token))
        expected = client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=3600
        )
        stamp = expected.partition("X-Amz-Date=")[2].partition("&")[0]
        now = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
        signed_url = signing.signed_url(request_settings, now)
        parted = [
            (url.split("?")[0], sorted(url.split("?")[1].split("&")))
            for url in (signed_url, expected)
        ]
        assert parted[0] == parted[1]


def test_anonymous_urls_have_no_signature() -> None:
    assert signing.signed_url(Settings(BASE, "a b.npy", "us-east-1", None)) == f"{BASE}/a%20b.npy"


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        (AWS, {}, Settings(BASE, "x.npy", "us-east-1", ("A", "B", None))),
        ({**AWS, "AWS_SESSION_TOKEN": "T"}, {}, Settings(BASE, "x.npy", "us-east-1", ("A", "B", "T"))),
        (AWS, {"key": "C", "secret": "D"}, Settings(BASE, "x.npy", "us-east-1", ("C", "D", None))),
        (AWS, {"anon": True}, Settings(BASE, "x.npy", "us-east-1", None)),
        (
            {**AWS, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_REGION": "us-west-2"}, {},
            Settings("https://bucket.s3.eu-west-1.amazonaws.com", "x.npy", "eu-west-1", ("A", "B", None)),
        ),
        (
            {**AWS, "AWS_ENDPOINT_URL": "http://one:1", "AWS_ENDPOINT_URL_S3": "http://two:2/"}, {},
            Settings("http://two:2/bucket", "x.npy", "us-east-1", ("A", "B", None)),
        ),
        (
            {**AWS, "AWS_ENDPOINT_URL": "http://one:1"}, {"endpoint_url": "https://three"},
            Settings("https://three/bucket", "x.npy", "us-east-1", ("A", "B", None)),
        ),
        ({}, {}, None),  # credentials of the machine
        ({"AWS_ACCESS_KEY_ID": "A"}, {}, None),
        ({**AWS, "AWS_SECRET_ACCESS_KEY": ""}, {}, None),
        (AWS, {"key": 12, "secret": "D"}, None),
        (AWS, {"requester_pays": True}, None),
        (AWS, {"client_kwargs": {"region_name": "eu-west-1"}}, None),
        ({**AWS, "AWS_PROFILE": "other"}, {}, None),  # which is missing
        ({**AWS, "AWS_USE_FIPS_ENDPOINT": "true"}, {}, None),
        ({**AWS, "AWS_CA_BUNDLE": "ca.pem"}, {}, None),
        ({**AWS, "AWS_DEFAULT_REGION": "cn-north-1"}, {}, None),
        ({**AWS, "AWS_DEFAULT_REGION": "us-gov-west-1"}, {}, None),
        ({**AWS, "AWS_ENDPOINT_URL": "https://me:word@host"}, {}, None),
        ({**AWS, "AWS_ENDPOINT_URL": "https://host/path"}, {}, None),
        ({**AWS, "AWS_ENDPOINT_URL": "https://s3.dualstack.eu-west-1.amazonaws.com"}, {}, None),
    ],
)  # fmt: skip
def test_settings_that_are_understood(
    without_settings: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: Any,
    expected: Settings | None,
) -> None:
    for name, value in variables.items():
        without_settings.setenv(name, value)
    without_settings.setattr("fsspec.config.conf", {"s3": options})
    assert signing.find_settings("s3://bucket/x.npy") == expected
    assert signing.find_settings("s3a://bucket/x.npy") == expected


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket", "s3://bucket/", "s3://bucket/a//b", "s3://bucket/a/../b", "s3://bucket/a/",
        "s3://bucket/x?versionId=1", "s3://K:S@bucket/x", "s3://Bucket/x", "s3://bucket/a\nb",
        "s3://name-s3alias/x", "s3://name--use1-az4--x-s3/x", "s3://arn:aws:s3:x:1:accesspoint/p/x",
        "zip://x::s3://bucket/x.zip", "s3://bucket/\udcff",
    ],
)  # fmt: skip
def test_names_that_are_left_to_s3fs(without_settings: pytest.MonkeyPatch, url: str) -> None:
    for name, value in AWS.items():
        without_settings.setenv(name, value)
    assert signing.find_settings(url) is None


@pytest.mark.parametrize(
    ("config", "credentials", "profile", "expected"),
    [
        ("[default]\nregion = eu-west-1", "[default]\n{keys}", None, "eu-west-1"),
        ("[profile me]\nregion = eu-west-1\n{keys}", "", "me", "eu-west-1"),
        ("[me]\nregion = eu-west-1", "[me]\n{keys}\nregion = eu-north-1", "me", "eu-north-1"),
        ("[profile other]\nrole_arn = x", "[default]\n{keys}", None, "us-east-1"),
        ("[default]\nrole_arn = x", "[default]\n{keys}", None, None),
        ("[default]\ns3 =\n  addressing_style = virtual", "[default]\n{keys}", None, None),
        ("", "[default]\naws_access_key_id = A", None, None),
        ("", "[default]\n{keys}", "me", None),
        ("no section", "[default]\n{keys}", None, None),
        ("[default]\nregion = \xff", "[default]\n{keys}", None, None),
    ],
)
def test_profiles(
    without_settings: pytest.MonkeyPatch, tmp_path: Path, config: str, credentials: str,
    profile: str | None, expected: str | None,
) -> None:  # fmt: skip
    keys = "aws_access_key_id = A\naws_secret_access_key = B"
    (tmp_path / ".aws").mkdir()
    for name, text in (("config", config), ("credentials", credentials)):
        (tmp_path / ".aws" / name).write_text(text.replace("{keys}", keys), "latin-1")
    if profile is not None:
        without_settings.setenv("AWS_PROFILE", profile)
    settings = signing.find_settings("s3://bucket/x.npy")
    assert (settings and settings.region) == expected
    assert settings is None or settings.credentials == ("A", "B", None)
    without_settings.setenv("AWS_ACCESS_KEY_ID", "C")
    without_settings.setenv("AWS_SECRET_ACCESS_KEY", "D")
    settings = signing.find_settings("s3://bucket/x.npy")
    assert settings is None or settings.credentials == ("C", "D", None)


@pytest.mark.parametrize("name", ["https_proxy", "ALL_PROXY"])
def test_proxies_are_left_to_s3fs(without_settings: pytest.MonkeyPatch, name: str) -> None:
    assert signing.bypasses_s3fs()
    without_settings.setenv(name, "http://127.0.0.1:1")
    assert not signing.bypasses_s3fs()


@pytest.fixture
def signed_server(s3: Bucket, without_settings: pytest.MonkeyPatch) -> Bucket:
    """The variables of the server, which `without_settings` removed."""
    for name, value in client_environment(s3.endpoint).items():
        without_settings.setenv(name, value) if value is not None else without_settings.delenv(
            name, raising=False
        )
    return s3


def test_static_credentials_need_no_client(signed_server: Bucket, workdir: Path) -> None:
    """s3fs's client is not even imported."""
    url = signed_server.put("x.npy", npy(ROWS))
    save(i=np.array([3, -1]))
    code = f"""
import sys
from ndtool import files
files.gather("{url}", "i.npy", out="o.npy")
print({{"s3fs", "botocore", "aiobotocore"}} & sys.modules.keys())
"""
    result = python(code, env=client_environment(signed_server.endpoint, HOME=str(workdir)))
    assert result.out.strip() == b"set()", result.err
    assert np.array_equal(np.load("o.npy"), ROWS[[3, -1]])


def record_client_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of operations that the client will perform."""
    client_calls, call = [], s3.S3Object.call

    async def record_call(self: Any, operation: str, *names: str, **arguments: Any) -> Any:
        client_calls.append(operation)
        return await call(self, operation, *names, **arguments)

    monkeypatch.setattr(s3.S3Object, "call", record_call)
    return client_calls


@pytest.mark.parametrize("variable", ["AWS_PAGER", "AWS_STS_REGIONAL_ENDPOINTS"])
@pytest.mark.parametrize("options", [{}, {"anon": True}, {"key": "one", "secret": "two"}])
def test_reads_by_signed_urls(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch, variable: str, options: Any
) -> None:
    """Signed with the client's credentials where ndtool does not know the settings."""
    without_settings.setenv(variable, "regional")
    without_settings.setattr("fsspec.config.conf", {"s3": options})
    calls = record_client_calls(without_settings)
    signed_server.s3.put_object(Bucket="bucket", Key="x.npy", Body=npy(ROWS), ACL="public-read")
    assert np.array_equal(load("s3://bucket/x.npy"), ROWS)
    assert calls == []


@pytest.mark.parametrize(
    "options",
    [{"requester_pays": True}, {"config_kwargs": {"read_timeout": 9}}, {"version_aware": True}],
)
def test_special_settings_are_left_to_the_client(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch, options: Any
) -> None:
    without_settings.setattr("fsspec.config.conf", {"s3": options})
    calls = record_client_calls(without_settings)
    url = signed_server.put("x.npy", npy(ROWS))
    assert np.array_equal(load(url), ROWS)
    assert bool(calls) == ("version_aware" not in options)


def test_what_a_server_refuses_is_requested_by_the_client(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch
) -> None:
    url, signs = signed_server.put("x.npy", npy(ROWS)), []

    def missing_bucket_url(request_settings: Settings) -> str:
        signs.append(request_settings)
        return f"{signed_server.endpoint}/no-bucket?policy=x"  # moto answers with an error

    without_settings.setattr(s3.HttpObject, "open", refusing)
    calls = record_client_calls(without_settings)
    assert np.array_equal(load(url), ROWS)
    assert "get_object" in calls
    assert len(s3._client_only_buckets) == 1
    without_settings.setattr(signing, "signed_url", missing_bucket_url)
    assert np.array_equal(load(url), ROWS)  # without another attempt
    assert signs == []


async def refusing(self: Any, count: int) -> Any:
    raise s3.failures.HttpStatusError(403, "Forbidden")


def test_a_server_without_ranges_is_read_by_the_client(
    without_settings: pytest.MonkeyPatch, workdir: Path
) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    s3fs.S3FileSystem.clear_instance_cache()  # existing sessions use another endpoint
    with serving() as server:
        url = server.add("/bucket/x.npy", npy(ROWS[:9]), ranges=False)
        for name, value in {**AWS, "AWS_ENDPOINT_URL": url.removesuffix("/bucket/x.npy")}.items():
            without_settings.setenv(name, value)
        calls = record_client_calls(without_settings)
        try:
            with open_input("s3://bucket/x.npy") as source:
                assert source.metadata.shape == (9, 4)
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
    assert calls == ["get_object"]


@pytest.mark.parametrize("key", ["a//b", "a/./b"])
def test_special_names_are_requested_by_the_client(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch, key: str
) -> None:
    calls = record_client_calls(without_settings)
    assert np.array_equal(load(signed_server.put(key, npy(ROWS[:9]))), ROWS[:9])
    assert "get_object" in calls


def test_errors_are_those_of_the_client(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch
) -> None:
    without_settings.setattr(s3.HttpObject, "open", refusing)
    without_settings.setattr("ndtool.storage.failures.BACKOFF", 0.001)
    with pytest.raises(InputError, match=r"s3://none-here/x.npy: there is no such object"):
        load("s3://none-here/x.npy")
    assert s3._client_only_buckets == set()


def test_urls_are_signed_again_before_they_expire(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch
) -> None:
    url, signs, sign = signed_server.put("x.npy", npy(ROWS)), [], signing.signed_url
    without_settings.setattr(
        signing,
        "signed_url",
        lambda request_settings: signs.append(request_settings) or sign(request_settings),
    )
    assert np.array_equal(load(url), ROWS)
    once = len(signs)
    without_settings.setattr(s3, "_RENEWAL_SECONDS", -1)
    assert np.array_equal(load(url), ROWS)
    assert (once, len(signs)) == (1, 4)


def test_small_ranges_are_read_64_at_a_time(
    without_settings: pytest.MonkeyPatch, workdir: Path
) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    write_sparse("big.npy", "<f4", (1 << 22, 16))
    with serving() as server:
        slow = {"before": lambda number: time.sleep(0.5)}
        url = server.add("/bucket/big.npy", workdir / "big.npy", **slow)
        for name, value in {**AWS, "AWS_ENDPOINT_URL": url.removesuffix("/bucket/big.npy")}.items():
            without_settings.setenv(name, value)
        request = Request("gather", "s3://bucket/big.npy", "i.npy", output="o.npy")
        save(i=np.arange(100) << 15)
        with OpenCall(request) as call:
            steps.run(call)
        assert 32 <= server.most_at_once <= 64
        assert len(server.requests) == 102  # with the first bytes and a final check


def test_content_encodings_are_bytes(
    signed_server: Bucket, without_settings: pytest.MonkeyPatch
) -> None:
    """The client reads an object as stored, whatever its Content-Encoding."""
    signed_server.s3.put_object(
        Bucket="bucket", Key="x.npy", Body=npy(ROWS[:9]), ContentEncoding="zip"
    )
    assert np.array_equal(load("s3://bucket/x.npy"), ROWS[:9])
