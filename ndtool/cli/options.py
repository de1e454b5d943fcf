"""The options of the command line, each defined once; each has an NDTOOL_* variable."""

from typing import Any

import click

from ndtool.cli import parametertypes
from ndtool.cli.console import write_stdout
from ndtool.cli.parametertypes import ParameterType, integer
from ndtool.rules.modes import MODES
from ndtool.rules.operators import WRITE_MODES
from ndtool.rules.reductions import DUPLICATES as DUPLICATES_MODES
from ndtool.rules.reductions import REDUCTIONS


def _option(option: str, text: str, *names: str, **settings: Any) -> click.Option:
    """Return an option with its help text; names: a short option, and the parameter's name."""
    variable = "NDTOOL_" + option.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    show_default = settings.get("default") is not None
    return click.Option(
        [*names, option], help=text, envvar=variable, show_default=show_default, **settings
    )


def _flag(flag: str, text: str, *names: str, **settings: Any) -> click.Option:
    return _option(
        flag, text, *names, **{"is_flag": True, "type": parametertypes.Flag(), **settings}
    )


def _reporter_flag(flag: str, text: str, *names: str, **settings: Any) -> click.Option:
    """Return a flag that is stored in the reporter before other options are parsed."""
    eager = {"is_eager": True, "expose_value": False, "callback": _store_in_reporter}
    return _flag(flag, text, *names, **eager, **settings)


def _store_in_reporter(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if context.obj is not None:
        setattr(context.obj, parameter.name or "", value)


def _exit_option(*flags: str, callback: Any, help: str) -> click.Option:  # noqa: A002
    return click.Option(
        flags, callback=callback, help=help, is_flag=True, is_eager=True, expose_value=False
    )


def _show_help(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        write_stdout(context.get_help() + "\n")
        context.exit()


def _show_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from ndtool import __version__

        write_stdout(f"ndtool {__version__}\n")
        context.exit()


FILE = ParameterType("file", str, "array_arguments")
_INT64 = integer(-(2**63), 2**63 - 1)


class Argument(click.Argument):
    """An argument with a help text; by default it refers to an array in a file."""

    def __init__(self, name: str, text: str, **settings: Any) -> None:
        super().__init__([name], **{"type": FILE, **settings})
        self.text = text

    @property
    def help_record(self) -> tuple[str, str]:
        """The name and the text, as a row of the help page."""
        return self.human_readable_name.strip("[]"), self.text


HELP = _exit_option("-h", "--help", callback=_show_help, help="Show this help and exit.")
VERSION = _exit_option("--version", callback=_show_version, help="Show the version and exit.")
BATCH_DIMS = _option(
    "--batch-dims", "Number of leading batch axes.", type=_INT64, default=0, metavar="N"
)
AXIS = _option(
    "--axis", "Axis of DATA to index; default: after the batch axes.", type=_INT64, metavar="A"
)
REDUCTION = _option(
    "--reduction",
    "none (assignment), add, sub, mul, div (floats), max, min or mean of current value and"
    " updates.",
    type=parametertypes.Reduction(list(REDUCTIONS)),
    default="none",
    metavar="NAME",
)
ATTRIBUTES = {"batch_dims": BATCH_DIMS, "axis": AXIS, "reduction": REDUCTION}
WRITE_AXIS = _option(
    "--axis", "Axis of PAST to write along, not 0.", type=_INT64, default=-2, metavar="A"
)
WRITE_MODE = _option(
    "--mode",
    "linear: UPDATE must fit before the end of the axis; circular: it continues at the start.",
    type=click.Choice(list(WRITE_MODES)),
    default="linear",
    metavar="MODE",
)
OUT_OF_BOUNDS = _option(
    "--out-of-bounds",
    "Indices out of bounds: error; clip to the first or last index; wrap modulo the axis size; fill"
    " (gathers); drop the update (scatters).",
    type=click.Choice(list(MODES)),
    default="error",
    metavar="MODE",
)
FILL = _option(
    "--fill",
    "Value for --out-of-bounds fill, such as nan. Default: 0.",
    type=ParameterType("value", parametertypes.fill_value),
    metavar="VALUE",
)
PAD = _option(
    "--pad",
    "Index that selects nothing, such as -1: gathers fill its slice, scatters skip its update.",
    type=integer(-(2**63), 2**64 - 1),
    metavar="INT",
)
NO_NEGATIVES = _flag("--no-negatives", "Negative indices are out of bounds.")
NO_INCLUDE_SELF = _flag(
    "--no-include-self",
    "Leave the current values out: the first update of an element is copied, the next are reduced.",
)
DUPLICATES = _option(
    "--duplicates",
    "Which update of a duplicate index is assigned: last, or first (with reduction none only);"
    " error refuses duplicates.",
    type=click.Choice(DUPLICATES_MODES),
    default="last",
    metavar="WHICH",
)
SPEC = _option(
    "--spec",
    "Standard to validate against: ndtool, onnx:N, openvino:N or webnn. It decides which calls"
    " are refused, not what the output contains.",
    type=ParameterType("spec", parametertypes.spec, "spec_names"),
    default="ndtool",
    metavar="SPEC",
)
DTYPE = _option(
    "--dtype",
    "Actual dtype of void data (V2, V1), such as bfloat16.",
    type=ParameterType("dtype", parametertypes.element_type, "void_types"),
    metavar="NAME",
)
TEXT = _flag(
    "--text",
    "Read indices and updates as text if neither content nor suffix shows a format: numbers on"
    " standard input, for example.",
)
OUTPUT = _option(
    "--output",
    "Output file, in the format of its suffix; FILE:NAME adds or replaces an array in a file of"
    " several; - is standard output. Default: -, on a terminal a preview.",
    "-o",
    type=FILE,
    metavar="FILE",
)
THREADS = _option(
    "--threads",
    "Number of threads, 1..1024. Default: OMP_NUM_THREADS, else all processors.",
    type=integer(1, 1024),
    metavar="N",
)
MEMORY = _option(
    "--memory",
    "Memory limit, mapped files included, such as 512MiB. Default: the available memory.",
    type=ParameterType("size", parametertypes.memory),
    metavar="SIZE",
)
SPILL = _option(
    "--spill",
    "Directory for temporary files; may be repeated, for spilled data on several disks; on a"
    " cluster one, or a URL. Default: TMPDIR; on a cluster the directory of the output.",
    type=parametertypes.Directories(),
    multiple=True,
    metavar="DIR",
)
SCHEDULER = _option(
    "--scheduler",
    "Run on the Dask cluster of this scheduler: tcp://host:port, or the scheduler file.",
    type=ParameterType("address", parametertypes.address),
    metavar="ADDRESS",
)
WORKERS = _option(
    "--workers",
    "Run on a Dask cluster of N processes, started on this machine.",
    type=integer(1, 1024),
    metavar="N",
)
RESUME = _flag("--resume", "Resume a killed run on a cluster, from its files in --spill.")
DRY_RUN = _flag("--dry-run", "Check inputs and indices, show the plan, write nothing.")
NO_CLOBBER = _flag("--no-clobber", "Do not replace an existing output.")
FORCE = _flag(
    "--force", "At a URL, also remove files of runs on other machines, which may still be running."
)
SYNC = _flag("--sync", "Flush the output to the disk before exit (fsync).")
ONLY = _flag("--only", "Replace a file of several arrays completely: do not preserve the others.")
AS_VOID = _flag(
    "--as-void", "Store a dtype that the output format lacks, such as bfloat16, as void."
)
CHUNKS = _option(
    "--chunks",
    "Chunk shape of a Zarr or HDF5 output, such as 100,64. Default: that of the first input, else"
    " zarr's default, for HDF5 none.",
    type=ParameterType("sizes", parametertypes.sizes),
    metavar="N,N...",
)
SHARDS = _option(
    "--shards",
    "Shard shape of a Zarr output, a multiple of the chunk shape. Default: that of the first"
    " input, or none.",
    type=ParameterType("sizes", parametertypes.sizes),
    metavar="N,N...",
)
CODEC = _option(
    "--codec",
    "Compression of a Zarr output: zstd, blosc, gzip or none; of an HDF5 output: gzip or none."
    " Default: that of the first input, else zarr's default, for HDF5 none.",
    type=ParameterType("codec", parametertypes.codec),
    metavar="NAME[:LEVEL]",
)
AT = _option(
    "--at",
    "Explain the element of the output at these coordinates; may be repeated.",
    type=ParameterType("position", parametertypes.position),
    multiple=True,
    metavar="I,J...",
)
FROM = _option(
    "--from",
    "Show where the element of DATA at these coordinates went; may be repeated.",
    "origins",
    type=ParameterType("position", parametertypes.position),
    multiple=True,
    metavar="I,J...",
)
ALL = _flag("--all", "List up to 10,000 updates or destinations, not only ten.", "list_all")
WITHIN = _option(
    "--within",
    "Tolerance in ulp (units in last place).",
    type=ParameterType("integer", parametertypes.ulps),
    default=0,
    metavar="N",
)
HTML = _option(
    "--html",
    "Write an HTML report, with a drawing of the arrays.",
    type=parametertypes.file_with_suffix(".html"),
    metavar="FILE.html",
)
PLOT = _option(
    "--plot",
    "Plot how often the slices of DATA are selected, as a .svg, .png or .html.",
    type=parametertypes.file_with_suffix(".svg", ".png", ".html"),
    metavar="FILE",
)
INPUTS = _option(
    "--inputs",
    "Run the model on these inputs: an archive with the inputs' names, or a directory with"
    " input_0.pb and so on, as in ONNX's backend tests.",
    type=FILE,
    metavar="IN.npz|DIR",
)
SAVE = _option(
    "--save",
    "With --inputs, write the tensors of each node to files of this directory, for explain.",
    type=FILE,
    metavar="DIR",
)
ENGINES = (  # for `verify` and `model`
    _option(
        "--against",
        "Compare other engines with the exact result: onnxruntime, openvino, torch, tensorflow,"
        " jax, numpy, onnx; all; auto (those installed).",
        "engines",
        type=ParameterType("engines", parametertypes.engines, "engine_names"),
        metavar="ENGINE,...",
    ),
    _option(
        "--runs",
        "Number of multithreaded runs of each engine.",
        type=integer(1, 1000),
        default=5,
        metavar="N",
    ),
    _option(
        "--timeout",
        "Seconds before an engine that does not answer is killed.",
        type=integer(1, 10**6),
        default=600,
        metavar="SECONDS",
    ),
)
TRACE = _reporter_flag(
    "--trace/--no-trace",
    "Show all shape rules, or none. Default: on a terminal, a summary.",
    default=None,
)
VERBOSE = _reporter_flag(
    "--verbose", "Explain the run: access to inputs, plan with its reason, threads.", "-v"
)
QUIET = _reporter_flag("--quiet", "Print only errors.", "-q")
JSON = _reporter_flag("--json", "Print the result, or the error, as one JSON object.")
REPORTING = (QUIET, JSON)
OUTPUT_FILES = (NO_CLOBBER, ONLY, SYNC, CHUNKS, SHARDS, CODEC)
CHECKS = (SPEC, DTYPE, TEXT)
EXECUTION = (THREADS, MEMORY, SPILL)
CLUSTER = (SCHEDULER, WORKERS, RESUME)
GROUPS = {  # of the help page; options without a group come first
    "Indices and updates": (FILL, PAD, NO_NEGATIVES, NO_INCLUDE_SELF, DUPLICATES),
    "Output": (*OUTPUT_FILES, AS_VOID),
    "Types and checks": CHECKS,
    "Other engines": ENGINES,
    "Execution": EXECUTION,
    "Cluster": CLUSTER,
    "Reporting": (TRACE, VERBOSE, HTML, PLOT, QUIET, JSON),
}
