"""The public names: signatures, options, keys of --json and statuses, as a table.

Run as a program, it writes the table to public_api.json, as `make baseline` does.
docs/stability.md says what users may rely on.
"""

import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, get_args

import click
import numpy as np
from command import FIXTURES, ndtool

from ndtool.cli.program import program
from ndtool.errors import Status

COOKBOOK = FIXTURES / "cookbook"
BASELINE = Path(__file__).parents[1] / "packaging" / "public_api.json"
# Modules for users; some exist only with their library.
MODULES = ("ndtool", "ndtool.files", "ndtool.onnx", "ndtool.torch", "ndtool.dask", "ndtool.xarray")
# A command for each kind of JSON object, run in fixtures/cookbook; {} is an empty folder.
RUNS = {
    "operator": "gather-nd table.npy rows.npy -o {}/a.npy",
    "operator.out_of_bounds": "gather-nd table.npy ids.npy --out-of-bounds clip -o {}/b.npy",
    "operator.kept": "gather-nd table.npy rows.npy -o {}/two.npz:new --dry-run",
    "infer": "infer gather-nd float32[N,2] int64[8,1]",
    "convert": "convert table.npy {}/c.npy",
    "explain.at": "explain scatter-nd table.npy rows.npy updates.npy --reduction add --at 124,0",
    "explain.from": "explain gather-nd table.npy rows.npy --from 124,0",
    "stats": "stats gather-nd table.npy ids.npy",
    "verify": "verify gather-nd table.npy rows.npy {}/a.npy",
    "verify.different": "verify scatter-nd table.npy rows.npy updates.npy table.npy",
    "verify.engines": "verify gather-nd table.npy rows.npy --against numpy --runs 1",
    "inspect": "inspect table.npy lookup.onnx",
    "model": "model lookup.onnx",
    "spec": "spec gather-nd",
    "clean": "clean {}",
    "error.usage": "gather-nd",
    "error.rule": "gather-nd table.npy table.npy",
    "error.bounds": "gather-nd table.npy ids.npy -o {}/d.npy",
    "error.duplicates": "scatter-nd table.npy [[1],[1]] zeros:float32[2,2] --duplicates error"
    " -o {}/d.npy",
}


def importable_modules() -> Iterator[ModuleType]:
    for name in MODULES:
        with suppress(ImportError):  # its library is missing
            yield import_module(name)


def public_names() -> dict[str, str]:
    """Return all public names, each with the part of its definition that must not change."""
    entries = {f"status {status.name}": str(status.value) for status in Status}
    for module in importable_modules():
        entries.update(module_entries(module))
    entries.update(command_entries(program(), "ndtool"))
    entries.update(json_entries())
    return dict(sorted(entries.items()))


def module_entries(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield functions with their signatures, and classes with their bases and fields."""
    own = [name for name, value in vars(module).items() if is_own(module, name, value)]
    for name in getattr(module, "__all__", own):
        value, path = getattr(module, name), f"python {module.__name__}.{name}"
        if isinstance(value, tuple):
            yield path, ", ".join(sorted(item.__name__ for item in value))
        elif inspect.isclass(value):
            bases = [base for base in value.__mro__[1:-1] if base.__module__ != "enum"]
            yield path, ", ".join(base.__name__ for base in bases)
            names = {*dir(value), *getattr(value, "__annotations__", ())} - {*dir(bases[-1])}
            names |= {*getattr(value, "_fields", ())}
            if value is not Status:  # whose values have entries of their own
                yield from ((f"{path}.{field}", "") for field in names if field[0] != "_")
        elif callable(value):
            yield path, signature(value)


def is_own(module: ModuleType, name: str, value: Any) -> bool:
    """Whether a module without a list of its public names defines a function or tuple for users."""
    origin = getattr(value, "__module__", module.__name__ if isinstance(value, tuple) else None)
    return name[0] != "_" and origin == module.__name__


def signature(function: Any) -> str:
    """Return the parameters without types; for ** of a TypedDict its keys."""
    inspected = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in inspected.parameters.values()]
    text = str(inspected.replace(parameters=parameters, return_annotation=inspected.empty))
    for name, parameter in inspected.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for options in get_args(eval(parameter.annotation, function.__globals__)):
                keys = ", ".join(f"{key}=" for key in sorted(options.__annotations__))
                text = text.replace(f"**{name}", keys)
    return text


def command_entries(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Yield a command, its arguments and its options, then those of its subcommands."""
    arguments = []
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            choices = "|".join(map(str, getattr(parameter.type, "choices", ())))
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            yield f"option {path} {names}", choices or ("" if parameter.is_flag else "VALUE")
        else:
            name = (parameter.metavar or str(parameter.name).upper()).strip("[].")
            name += "..." if parameter.nargs == -1 else ""
            arguments.append(name if parameter.required else f"[{name}]")
    yield f"command {path}", " ".join(arguments)
    for name, make in getattr(command, "factories", {}).items():
        yield from command_entries(make(), f"{path} {name}")


def json_entries() -> Iterator[tuple[str, str]]:
    """Yield the keys of each kind of object that --json prints."""
    with TemporaryDirectory() as folder:
        np.savez(f"{folder}/two.npz", a=1, b=2)
        for kind, line in RUNS.items():
            words = line.replace("{}", folder).split()
            files = {word: path for word in words if (path := COOKBOOK / word).exists()}
            words = [str(files.get(word, word)) for word in words]
            yield from ((f"json {kind}: {key}", "") for key in keys(ndtool(*words, "--json").json))


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all keys of an object; [] stands for the items of a list."""
    if isinstance(value, dict):
        for key, nested in value.items():
            yield f"{path}.{key}".removeprefix(".")
            yield from keys(nested, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from keys(item, f"{path}[]")


def write_baseline() -> None:
    assert len([*importable_modules()]) == len(MODULES)
    text = json.dumps(public_names(), indent=1, ensure_ascii=False)
    BASELINE.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    write_baseline()
