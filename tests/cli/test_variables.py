"""NDTOOL_* variables: each is the same as its option, and errors name it.

The options come from the commands, so that none is omitted.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from command import ndtool, save
from commandlines import all_commands, run_commands

from ndtool.cli import options

# A valid value of each positional argument.
ARGUMENT_VALUES = {
    "data": "data.npy", "indices": "idx.npy", "updates": "upd.npy", "output": "out.npy",
    "source": "data.npy", "names": "data.npy", "model": "model.onnx", "folder": ".",
    "command": "gather-nd",
}  # fmt: skip
# A well-formed value of each variable.
WELL_FORMED = {
    "BATCH_DIMS": "0", "AXIS": "0", "REDUCTION": "none", "OUT_OF_BOUNDS": "error", "FILL": "-1",
    "SPEC": "ndtool", "DTYPE": "bfloat16", "OUTPUT": "env.npy", "THREADS": "1",
    "MEMORY": "1GiB", "SPILL": ".", "SCHEDULER": "tcp://127.0.0.1:1", "WORKERS": "1",
    "RESUME": "1", "DRY_RUN": "0", "NO_CLOBBER": "0", "FORCE": "1", "SYNC": "1", "ONLY": "1",
    "AS_VOID": "1", "CHUNKS": "1,4", "SHARDS": "2,4", "CODEC": "zstd:3", "AT": "0,0",
    "FROM": "0,0", "ALL": "1", "WITHIN": "2", "HTML": "page.html",
    "INPUTS": "inputs.npz", "AGAINST": "numpy", "RUNS": "2", "TIMEOUT": "60", "TRACE": "0",
    "QUIET": "1", "JSON": "1", "PAD": "99", "NO_NEGATIVES": "0", "NO_INCLUDE_SELF": "0", "INDEX_BASE": "0",
    "DUPLICATES": "last", "MODE": "linear", "TEXT": "0", "SAVE": "tensors", "VERBOSE": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(data=np.arange(12.0).reshape(3, 4), idx=np.array([[0], [2]]), upd=np.ones((2, 4)))
    save(out=np.load("data.npy")[[0, 2]])


def options_with_variables() -> Iterator[tuple[list[str], click.Option]]:
    """Yield each option with a variable, and a call of its command without it."""
    for command, path in all_commands():
        for option in command.params:
            if not isinstance(option, click.Option) or not option.envvar:
                continue
            arguments = [
                *path,
                *(ARGUMENT_VALUES[param.name] for param in command.params if is_needed(param)),
            ]
            arguments = [
                "copy.npy" if path == ("convert",) and w == "out.npy" else w for w in arguments
            ]
            flags = {flag for param in command.params for flag in param.opts} - {*option.opts}
            arguments += ["--at", "0,0"] if {"--at", "--from"} <= flags else []
            arguments += ["-o", "new.npy"] if "-o" in flags else []
            yield arguments, option


def takes_files(option: click.Option) -> bool:
    """Whether every text may be a value, as the name of a file."""
    return option.type is options.FILE or isinstance(option.type, options.Directories)


def is_needed(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def test_a_malformed_value_is_refused_by_the_name_of_its_variable() -> None:
    calls, names = [], []
    for arguments, option in options_with_variables():
        if not takes_files(option):
            calls.append((arguments, {str(option.envvar): "?"}))
            names.append(option.envvar)
    assert len(set(names)) == len(WELL_FORMED) - 4
    for (arguments, env), name, (status, text) in zip(
        calls, names, run_commands(calls), strict=True
    ):
        assert status == 2, (arguments, env, text)
        assert f"invalid value for '{name}': " in text, (arguments, env, text)
    assert not os.path.exists("new.npy")


def test_a_malformed_value_of_an_option_is_refused_by_its_name() -> None:
    calls, names = [], []
    each = {option.opts[-1]: (arguments, option) for arguments, option in options_with_variables()}
    for arguments, option in each.values():
        if not takes_files(option) and not isinstance(option.type, click.types.BoolParamType):
            calls.append(([*arguments, option.opts[-1], "?"], {}))
            names.append(option.opts)
    for (arguments, _), flags, (status, text) in zip(
        calls, names, run_commands(calls), strict=True
    ):
        assert status == 2, (arguments, text)
        assert any(f"'{flag}'" in text for flag in flags), (arguments, text)


def test_every_variable_has_a_value_here() -> None:
    names = {f"NDTOOL_{name}" for name in WELL_FORMED}
    assert names == {str(option.envvar) for _, option in options_with_variables()}


def test_a_variable_that_does_not_apply_is_refused_as_its_option() -> None:
    plain = ["gather-nd", "data.npy", "idx.npy", "-o", "new.npy"]
    for name, value, status in (
        ("CHUNKS", "1,4", 2),
        ("WORKERS", "1", 2),
        ("RESUME", "1", 2),
        ("OUT_OF_BOUNDS", "drop", 2),
        ("SPILL", "s3://bucket/spill", 2),
        ("DTYPE", "bfloat16", 4),
    ):
        if name == "WORKERS":
            plain[-1] = "/dev/null"
        flag = f"--{name.lower().replace('_', '-')}"
        explicit = ndtool(*plain, *([flag] if name == "RESUME" else [flag, value]))
        result = ndtool(*plain, env={f"NDTOOL_{name}": value})
        assert (result.status, explicit.status) == (status, status), name
        if status == 2 and "hint:" not in explicit.err:
            assert f"hint: these variables are set: NDTOOL_{name}" in result.err, name
        assert not os.path.exists("new.npy")


def test_a_missing_directory_in_a_variable_is_refused() -> None:
    run = ("gather-nd", "data.npy", "idx.npy", "-o", "new.npy")
    for name, what in (("nowhere", "does not exist"), ("idx.npy", "is not a directory")):
        result = ndtool(*run, env={"NDTOOL_SPILL": name})
        assert (result.status, f"--spill {name} {what}" in result.err) == (2, True)
        assert "hint: these variables are set: NDTOOL_SPILL" in result.err
        assert f"--spill {name} {what}" in ndtool(*run, "--spill", name).err
    assert ndtool(*run, "--spill", ".", env={"NDTOOL_SPILL": "nowhere"}).status == 0


def test_an_option_overrides_a_conflicting_variable() -> None:
    run = ("gather-nd", "data.npy", "idx.npy", "-o", "new.npy")
    many = {"NDTOOL_THREADS": "many"}
    assert ndtool(*run, "--threads", "1", env=many).status == 0
    message = "error: invalid value for '--threads': 'few' is not an integer in 1..1024"
    assert ndtool(*run, "--threads", "few", env=many).err.startswith(message)
    both = {"NDTOOL_WORKERS": "2", "NDTOOL_SCHEDULER": "tcp://127.0.0.1:1"}
    result = ndtool(*run, env=both)
    assert (result.status, "expected one of them" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("abc", "'abc' is not the address of a scheduler: expected tcp://host:port"),
        ("me:word@host", "'host' is not the address of a scheduler"),
        ("tcp://", "'tcp://' is not the address of a scheduler"),
        ("tcp://host", "--scheduler tcp://host is not an address: missing port number"),
        ("foo://host:1", "--scheduler foo://host:1 is not an address: unknown address scheme"),
    ],
)
def test_an_address_that_is_none_says_why(address: str, message: str) -> None:
    pytest.importorskip("distributed")
    result = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "new.npy", "--scheduler", address)
    assert result.status == 2
    assert message in result.err


@pytest.mark.parametrize("output", ["MEMORY://x.npz:a", "memory://x.zarr"])
def test_an_output_that_would_end_with_the_process_is_refused(output: str) -> None:
    pytest.importorskip("fsspec")
    for arguments in (
        ("gather-nd", "data.npy", "idx.npy", "-o", output),
        ("convert", "data.npy", output),
    ):
        result = ndtool(*arguments)
        assert (result.status, result.out) == (2, b"")
        assert f"{output} would be in the memory of this process only: expected" in result.err
