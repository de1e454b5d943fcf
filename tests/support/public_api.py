"""The public names: signatures, options, keys of --json and statuses, as a table.

Run as a program, it writes the table to public_api.json; `make baseline` does that for a release.
docs/stability.md says what users may rely on.
"""

import inspect
import json
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import click
from command import FIXTURES, ndtool

BASELINE = Path(__file__).parents[1] / "packaging" / "public_api.json"
# Modules for users; some exist only with their library.
MODULES = ("ndtool", "ndtool.files", "ndtool.onnx", "ndtool.torch", "ndtool.dask", "ndtool.xarray")
NARGS_SUFFIX = {1: "", -1: "..."}
BASE_PACKAGES = ("ndtool", "builtins")  # packages of base classes that users catch or test for
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


def public_names() -> dict[str, str]:
    """Return all public names, each with the part of its definition that must not change."""
    from ndtool.errors import Status

    entries = {f"status {status.name}": str(status.value) for status in Status}
    for name in MODULES:
        if (module := import_public(name)) is not None:
            entries.update(module_entries(module))
    from ndtool.cli.program import program

    entries.update(command_entries(program(), "ndtool"))
    for kind, keys in json_keys().items():
        entries.update({f"json {kind}: {key}": "" for key in keys})
    return dict(sorted(entries.items()))


def import_public(name: str) -> ModuleType | None:
    """Return a public module, or None if it or its library is missing."""
    if find_spec(name) is None:
        return None
    try:
        return import_module(name)
    except ImportError:
        return None


def module_entries(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield functions with their signatures, and classes with their fields."""
    name = module.__name__
    has_all = name == "ndtool" or hasattr(module, "__all__")
    names = dir(module) if name == "ndtool" else getattr(module, "__all__", vars(module))
    for attribute in sorted(set(names)):
        value = getattr(module, attribute, None)  # None in a module whose library is missing
        if attribute.startswith("_") or not (has_all or getattr(value, "__module__", name) == name):
            continue
        if isinstance(value, ModuleType):
            continue
        if inspect.isclass(value):
            bases = [
                base
                for base in value.__mro__[1:-1]
                if base.__module__.split(".")[0] in BASE_PACKAGES
            ]
            yield f"python {name}.{attribute}", ", ".join(base.__name__ for base in bases)
            yield from ((f"python {name}.{attribute}.{field}", "") for field in fields(value))
        elif callable(value):
            yield f"python {name}.{attribute}", signature(value)
        elif isinstance(value, list):
            yield f"python {name}.{attribute}", ", ".join(sorted(item.__name__ for item in value))


def fields(kind: type) -> list[str]:
    """Return the fields of a result, the keys of a dictionary, the public names of an error."""
    if issubclass(kind, Enum):
        return []  # listed as statuses
    declared = getattr(kind, "_fields", None) or getattr(kind, "__annotations__", ())
    names = {*declared, *dir(kind)} - set(dir(kind.__mro__[-2])) | set(getattr(kind, "_fields", ()))
    return sorted(name for name in names if not name.startswith("_"))


def signature(function: Any) -> str:
    """Return the parameters without types; for ** of a TypedDict its keys."""
    inspected = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in inspected.parameters.values()]
    text = str(inspected.replace(parameters=parameters, return_annotation=inspected.empty))
    for name, parameter in inspected.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            kind = eval(parameter.annotation, function.__globals__)
            options = getattr(kind, "__args__", None)
            if options:
                keywords = ", ".join(f"{key}=" for key in sorted(keys_of(options[0])))
                text = text.replace(f"**{name}", keywords)
    return text


def keys_of(options: type) -> set[str]:
    return {*options.__required_keys__, *options.__optional_keys__}


def command_entries(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Yield a command, its arguments and its options, then those of its subcommands."""
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    argument_names = [
        f"{(p.metavar or str(p.name).upper()).strip('[].')}{NARGS_SUFFIX[p.nargs]}"
        for p in arguments
    ]
    yield (
        f"command {path}",
        " ".join(
            name if p.required else f"[{name}]"
            for p, name in zip(arguments, argument_names, strict=True)
        ),
    )
    for option in (p for p in command.params if isinstance(p, click.Option)):
        choices = getattr(option.type, "choices", None)
        accepted = "|".join(map(str, choices)) if choices else "" if option.is_flag else "VALUE"
        names = ", ".join([*option.opts, *option.secondary_opts])
        yield f"option {path} {names}", accepted
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from command_entries(subcommand, f"{path} {name}")


def json_keys() -> dict[str, list[str]]:
    """Return the keys of each kind of object that --json prints."""
    import numpy as np

    keys_by_kind = {}
    with TemporaryDirectory() as folder:
        np.savez(f"{folder}/two.npz", a=1, b=2)
        for kind, line in RUNS.items():
            words = [
                str(FIXTURES / "cookbook" / word)
                if (FIXTURES / "cookbook" / word).exists()
                else word.replace("{}", folder)
                for word in line.split()
            ]
            keys_by_kind[kind] = sorted(set(keys(ndtool(*words, "--json").json)))
    return keys_by_kind


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all keys of an object; [] stands for the items of a list."""
    if isinstance(value, dict):
        for key, nested in value.items():
            yield f"{path}.{key}".removeprefix(".")
            yield from keys(nested, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from keys(item, f"{path}[]")


def entries_for_changelog(baseline: dict[str, str], current: dict[str, str]) -> str:
    """Return the entries of CHANGELOG.md about the differences, "" if there are none."""
    groups = {
        "Removed": [f"- `{name}`" for name in baseline.keys() - current.keys()],
        "Changed": [
            f"- `{name}`: {baseline[name] or '(empty)'} -> {current[name] or '(empty)'}"
            for name in baseline.keys() & current.keys()
            if baseline[name] != current[name]
        ],
        "Added": [
            f"- `{name}` {current[name]}".rstrip() for name in current.keys() - baseline.keys()
        ],
    }
    return "\n".join(
        "\n".join([f"### {title}", *sorted(lines)]) for title, lines in groups.items() if lines
    )


def main() -> None:
    baseline = json.loads(BASELINE.read_text("utf-8")) if BASELINE.exists() else {}
    current = public_names()
    missing = [name for name in MODULES if import_public(name) is None and find_spec(name)]
    if missing:
        raise SystemExit(f"cannot be imported here: {', '.join(missing)}")
    BASELINE.write_text(json.dumps(current, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(entries_for_changelog(baseline, current) or "nothing public changed")


if __name__ == "__main__":
    main()
