"""The options of the command line, each one defined once, with its NDTOOL_* variable."""

import re
from typing import Any

import click

from ndtool.dtypes import REDUCTIONS
from ndtool.report import put


class File(click.ParamType):  # type: ignore[type-arg]
    """An argument that names an array; the shell completes it as a file."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Leave the completion to the shell."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


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
_INT64 = Integer(-(2**63), 2**63 - 1)

HELP = _exit_option("-h", "--help", callback=_show_help, help="Show this and exit.")
VERSION = _exit_option("--version", callback=_show_version, help="Show the version and exit.")
BATCH_DIMS = _option(
    "attribute",
    "--batch-dims",
    type=_INT64,
    default=0,
    metavar="N",
    show_default=True,
    help="Leading axes that DATA and INDICES share.",
)
AXIS = _option(
    "attribute",
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
    type=click.Choice(REDUCTIONS),
    default="none",
    show_default=True,
    help="How an update meets the old element; with none the last update wins.",
)
SPEC = _option(
    "spec",
    "--spec",
    default="ndtool",
    metavar="SPEC",
    show_default=True,
    help="What must be satisfied: ndtool, onnx:N or openvino:N. Changes no value.",
)
DTYPE = _option(
    "dtype", "--dtype", metavar="NAME", help="What elements stored as void are, such as bfloat16."
)
OUTPUT = _option(
    "output",
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    help="A .npy file, x.npz for a new archive, x.npz:member to add or replace that member, or -"
    " for standard output. Default: standard output, or a preview on a terminal.",
)
THREADS = _option(
    "threads",
    "--threads",
    type=Integer(1, 1024),
    metavar="N",
    help="How many threads, 1..1024. Default: OMP_NUM_THREADS, else all processors.",
)
DRY_RUN = _option(
    "dry_run", "--dry-run", is_flag=True, help="Check everything, index values too; write nothing."
)
NO_CLOBBER = _option(
    "no_clobber", "--no-clobber", is_flag=True, help="Refuse to replace an existing output."
)
ONLY = _option(
    "only", "--only", is_flag=True, help="With -o x.npz:member, keep no other members of x.npz."
)
SYNC = _option("sync", "--sync", is_flag=True, help="Wait until the disk has the output.")
TRACE = _talk_option(
    "trace",
    "--trace/--no-trace",
    default=None,
    help="Show every rule of the shape inference. Default: on a terminal.",
)
QUIET = _talk_option("quiet", "--quiet", "-q", is_flag=True, help="Say nothing but errors.")
JSON = _talk_option("json", "--json", is_flag=True, help="Report, and fail, as one JSON object.")
