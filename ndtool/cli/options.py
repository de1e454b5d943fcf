"""The options of the command line, each one defined once, with its NDTOOL_* variable."""

from typing import Any

import click

from ndtool.cli.console import put
from ndtool.cli.kinds import (
    Codec,
    Document,
    Engines,
    File,
    Flag,
    Integer,
    Place,
    Reduction,
    Size,
    Sizes,
    Ulps,
)
from ndtool.rules.operators import REDUCTIONS, RULES


def _offered(name: str) -> Any:
    """Return what completes an option's value: a function of completion.py."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        from ndtool.cli import completion

        return getattr(completion, name)(incomplete)

    return complete


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


def _usual(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a type; a variable names that of elements stored as void, and is nothing to others."""
    from ndtool.rules.dtypes import Usual

    source = context.get_parameter_source(parameter.name or "")
    by_variable = source is click.core.ParameterSource.ENVIRONMENT
    return Usual(value) if value is not None and by_variable else value


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
OUT_OF_BOUNDS = _option(
    "out_of_bounds",
    "--out-of-bounds",
    type=click.Choice(RULES),
    default="error",
    show_default=True,
    help="What becomes of an index out of bounds: the nearer end of its axis (clip), the rest of"
    " a division by its size (wrap), a slice of --fill (gathers), no update (drop; scatters).",
)
FILL = _option(
    "fill", "--fill", metavar="VALUE", help="What to fill with, such as -1 or nan. Default: 0."
)
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
    callback=_usual,
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
    help="Where temporary files go; with a cluster a URL, too. Default: TMPDIR, or with a cluster"
    " beside the output.",
)
SCHEDULER = _option(
    "scheduler", "--scheduler", metavar="ADDRESS",
    help="The dask scheduler of a cluster that is to do the work: tcp://host:port, or its file.",
)  # fmt: skip
WORKERS = _option(
    "workers",
    "--workers",
    type=Integer(1, 1024),
    metavar="N",
    help="Start a cluster of N processes on this machine to do the work.",
)
RESUME = _option(
    "resume",
    "--resume",
    is_flag=True,
    type=FLAG,
    help="With a cluster: take up what a run that was killed left in --spill, where it fits.",
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
FORCE = _option(
    "force",
    "--force",
    is_flag=True,
    type=FLAG,
    help="Behind a URL, what runs on other machines left, too, which may be at work.",
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
HTML = _option(
    "html",
    "--html",
    type=Document(".html"),
    metavar="FILE.html",
    help="Write a page about the call, to send to somebody: what was found, small arrays drawn.",
)
PLOT = _option(
    "plot",
    "--plot",
    type=Document(".svg", ".png", ".html"),
    metavar="FILE",
    help="Draw where in DATA the indices fall, as a .svg, .png or .html.",
)
INPUTS = _option(
    "inputs",
    "--inputs",
    type=FILE,
    metavar="IN.npz|DIR",
    help="Compute it on these: an archive of the inputs by their names, or a folder with"
    " input_0.pb and so on, such as an ONNX backend test.",
)
ENGINES = (  # of `verify` and `model`
    _option(
        "engines",
        "--against",
        type=Engines(),
        metavar="ENGINE,...",
        help="Compare what these give, each in a process of its own: onnxruntime, openvino, torch,"
        " tensorflow, jax, numpy, onnx; all; auto: those installed.",
    ),
    _option(
        "runs",
        "--runs",
        type=Integer(1, 1000),
        default=5,
        metavar="N",
        show_default=True,
        help="How many answers an engine gives with several threads.",
    ),
    _option(
        "timeout",
        "--timeout",
        type=Integer(1, 10**6),
        default=600,
        metavar="SECONDS",
        show_default=True,
        help="How long an engine may take for an answer.",
    ),
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
