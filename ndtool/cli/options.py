"""The options of the command line, each one defined once, with its NDTOOL_* variable."""

import re
from typing import Any

import click

from ndtool.cli.voice import put
from ndtool.errors import UsageError
from ndtool.rules.operators import REDUCTIONS


class File(click.ParamType):  # type: ignore[type-arg]
    """An argument that names an array."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Offer files that can be arrays, and members."""
        from ndtool.cli import completion

        return completion.arrays(incomplete)


def _offered(name: str) -> Any:
    """Return what completes an option's value: a function of completion.py."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from ndtool.cli import completion

        return getattr(completion, name)(incomplete)

    return complete


class Integer(click.ParamType):  # type: ignore[type-arg]
    """A whole number within limits, written in decimal digits."""

    name = "integer"

    def __init__(self, lowest: int, highest: int) -> None:
        self.lowest, self.highest = lowest, highest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with what was allowed."""
        number = value if isinstance(value, int) else None
        if number is None and re.fullmatch("[+-]?[0-9]{1,30}", value):
            number = int(value)
        if number is None or not self.lowest <= number <= self.highest:
            self.fail(f"{value!r} is no whole number in {self.lowest}..{self.highest}", param, ctx)
        return number


class Ulps(Integer):
    """A distance in units in the last place, with or without the unit."""

    def __init__(self) -> None:
        super().__init__(0, 2**63 - 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with what was allowed."""
        bare = re.sub(" ?ulps?$", "", value) if isinstance(value, str) else value
        return super().convert(bare, param, ctx)


class Flag(click.types.BoolParamType):
    """A flag: on the command line it has no value, in its variable one of a few words."""

    SET = ("1", "true", "yes", "on", "t", "y")
    UNSET = ("0", "false", "no", "off", "f", "n")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether the flag is set, or fail with what was allowed."""
        word = value.strip().lower() if isinstance(value, str) else value
        if word in self.SET or word in self.UNSET:
            return word in self.SET
        if not isinstance(word, bool):
            words = f"expected {', '.join(self.SET)} or {', '.join(self.UNSET)}"
            self.fail(f"{value!r} does not say whether it is set: {words}", param, ctx)
        return word


class Reduction(click.Choice):  # type: ignore[type-arg]
    """A reduction by its name in the standards; of other engines' names it says what is meant."""

    MEANT = {  # noqa: RUF012 - never changed
        "sum": "add", "prod": "mul", "multiply": "mul", "amax": "max", "maximum": "max",
        "amin": "min", "minimum": "min", "update": "none", "assign": "none",
    }  # fmt: skip

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail with what was allowed."""
        if meant := self.MEANT.get(value):
            self.fail(f"{value!r} is not one of {', '.join(REDUCTIONS)}: did you mean {meant!r}?")
        return super().convert(value, param, ctx)


class Sizes(click.ParamType):  # type: ignore[type-arg]
    """One size for each axis, with commas between them."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the sizes, or fail with what was allowed."""
        if isinstance(value, tuple):
            return value
        if not re.fullmatch("[1-9][0-9]{0,17}(, ?[1-9][0-9]{0,17})*", value):
            self.fail(f"{value!r} is no list of sizes: expected one such as 100,64", param, ctx)
        return tuple(map(int, value.split(",")))


class Place(click.ParamType):  # type: ignore[type-arg]
    """The position of an element: a number for each axis, with commas between them."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the position, or fail with what was allowed."""
        if isinstance(value, tuple):
            return value
        if not re.fullmatch("([+-]?[0-9]{1,19}(, ?[+-]?[0-9]{1,19})*)?", value):
            self.fail(f"{value!r} is no position: expected one such as 3,0", param, ctx)
        return tuple(map(int, value.split(","))) if value else ()


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, perhaps with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes, or fail with what was allowed."""
        from ndtool.engine.tuning import LEAST_MEMORY

        if isinstance(value, int):
            return value
        found = re.fullmatch(
            r"([0-9]{1,15})([KMGT]?)(i?B)?", value.strip(), re.ASCII | re.IGNORECASE
        )
        nbytes = 0
        if found:
            number, unit, rest = found.groups()
            thousands = unit and rest and rest.upper() == "B"
            powers = "KMGT".find(unit.upper()) + 1 if unit else 0
            nbytes = int(number) * (1000 if thousands else 1024) ** powers
        if nbytes < LEAST_MEMORY:
            self.fail(
                f"{value!r} is no size: expected one such as 512MiB, at least 1MiB", param, ctx
            )
        return nbytes


class Codec(click.ParamType):  # type: ignore[type-arg]
    """What compresses, perhaps with a level."""

    name = "codec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return what was given, or fail with what was allowed."""
        from ndtool.arrays import targets

        try:
            return targets.codec(value)
        except UsageError as exc:
            self.fail(exc.message, param, ctx)


def _option(name: str, flag: str, *short: str, **settings: Any) -> click.Option:
    variable = "NDTOOL_" + flag.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.Option([name, *short, flag], envvar=variable, show_envvar=True, **settings)


def _talk_option(name: str, flag: str, *short: str, **settings: Any) -> click.Option:
    """Return an option that is kept where errors find it, whatever is wrong with the others."""
    return _option(
        name, flag, *short, is_eager=True, expose_value=False, callback=_keep, **settings
    )


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if context.obj is not None:
        setattr(context.obj, parameter.name or "", value)


def _exit_option(*flags: str, callback: Any, help: str) -> click.Option:  # noqa: A002
    return click.Option(
        flags, callback=callback, help=help, is_flag=True, is_eager=True, expose_value=False
    )


def _show_help(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        put(context.get_help() + "\n")
        context.exit()


def _show_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from ndtool import __version__

        put(f"ndtool {__version__}\n")
        context.exit()


FILE = File()
FLAG = Flag()
_INT64 = Integer(-(2**63), 2**63 - 1)

HELP = _exit_option("-h", "--help", callback=_show_help, help="Show this and exit.")
VERSION = _exit_option("--version", callback=_show_version, help="Show the version and exit.")
BATCH_DIMS = _option(
    "batch_dims",
    "--batch-dims",
    type=_INT64,
    default=0,
    metavar="N",
    show_default=True,
    help="Leading axes that DATA and INDICES share.",
)
AXIS = _option(
    "axis",
    "--axis",
    type=_INT64,
    default=0,
    metavar="A",
    show_default=True,
    help="The axis that indices are about; -1 is the last.",
)
REDUCTION = _option(
    "reduction",
    "--reduction",
    type=Reduction(REDUCTIONS),
    default="none",
    show_default=True,
    help="How an update meets the old element; with none the last update wins.",
)
ATTRIBUTES = {"batch_dims": BATCH_DIMS, "axis": AXIS, "reduction": REDUCTION}
SPEC = _option(
    "spec",
    "--spec",
    default="ndtool",
    metavar="SPEC",
    shell_complete=_offered("specs"),
    show_default=True,
    help="What must be satisfied: ndtool, onnx:N or openvino:N. Changes no value.",
)
DTYPE = _option(
    "dtype",
    "--dtype",
    metavar="NAME",
    shell_complete=_offered("types"),
    help="What elements stored as void are, such as bfloat16.",
)
OUTPUT = _option(
    "output",
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    help="A .npy, .npz, .safetensors, .pb or .zarr, here or at a URL; x.npz:NAME adds or replaces"
    " one array and keeps the others; or - for standard output. Default: standard output, or a"
    " preview on a terminal.",
)
THREADS = _option(
    "threads",
    "--threads",
    type=Integer(1, 1024),
    metavar="N",
    help="How many threads, 1..1024. Default: OMP_NUM_THREADS, else all processors.",
)
MEMORY = _option(
    "memory",
    "--memory",
    type=Size(),
    metavar="SIZE",
    help="How much memory, such as 512MiB, pages of files included. Default: what there is.",
)
SPILL = _option(
    "spill",
    "--spill",
    type=FILE,
    metavar="DIR",
    help="Where a temporary file goes that memory has no room for. Default: TMPDIR.",
)
DRY_RUN = _option(
    "dry_run",
    "--dry-run",
    is_flag=True,
    type=FLAG,
    help="Check everything, index values too, and show how it would be done; write nothing.",
)
NO_CLOBBER = _option(
    "no_clobber",
    "--no-clobber",
    is_flag=True,
    type=FLAG,
    help="Refuse to replace an existing output.",
)
SYNC = _option(
    "sync", "--sync", is_flag=True, type=FLAG, help="Wait until the disk has the output."
)
ONLY = _option(
    "only",
    "--only",
    is_flag=True,
    type=FLAG,
    help="With -o x.npz:member, keep no other members of x.npz.",
)
AS_VOID = _option(
    "as_void",
    "--as-void",
    is_flag=True,
    type=FLAG,
    help="Store a type that the output's format lacks, such as bfloat16, as void.",
)
CHUNKS = _option(
    "chunks",
    "--chunks",
    type=Sizes(),
    metavar="N,N...",
    help="Shape of a Zarr output's chunks, such as 100,64. Default: data's, else zarr's.",
)
SHARDS = _option(
    "shards",
    "--shards",
    type=Sizes(),
    metavar="N,N...",
    help="Shape of a Zarr output's shards, a multiple of its chunks. Default: data's, else none.",
)
CODEC = _option(
    "codec",
    "--codec",
    type=Codec(),
    metavar="NAME[:LEVEL]",
    help="What compresses a Zarr output: zstd, blosc, gzip or none. Default: data's, else zarr's.",
)
STORING = (CHUNKS, SHARDS, CODEC)  # of whatever writes an array
AT = _option(
    "at",
    "--at",
    type=Place(),
    multiple=True,
    metavar="I,J...",
    help="Explain this element of the output; may be given several times.",
)
FROM = _option(
    "origins",
    "--from",
    type=Place(),
    multiple=True,
    metavar="I,J...",
    help="Tell where this element of DATA went to; may be given several times.",
)
ALL = _option(
    "every",
    "--all",
    is_flag=True,
    type=FLAG,
    help="Tell every update, and every place; not the first and last few only.",
)
WITHIN = _option(
    "within",
    "--within",
    type=Ulps(),
    default=0,
    metavar="N",
    show_default=True,
    help="How many units in the last place (ulp) elements may be apart.",
)
TRACE = _talk_option(
    "trace",
    "--trace/--no-trace",
    type=FLAG,
    default=None,
    help="Show every rule of the shape inference. Default: on a terminal.",
)
QUIET = _talk_option(
    "quiet", "--quiet", "-q", is_flag=True, type=FLAG, help="Say nothing but errors."
)
JSON = _talk_option(
    "json", "--json", is_flag=True, type=FLAG, help="Report, and fail, as one JSON object."
)
