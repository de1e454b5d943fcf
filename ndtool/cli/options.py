"""The options of the command line: each defined once, with a type and an NDTOOL_* variable.

An option is a partial that makes it, because a run needs few of them; `commands.command` calls
those of its command. A variable is the same as its option.
"""

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

import click

from ndtool.cli.console import write_stdout
from ndtool.errors import NdtoolError, UsageError
from ndtool.redaction import redact_secrets, register
from ndtool.rules.operators import MODES, WRITE_MODES
from ndtool.rules.reductions import ALIASES, REDUCTIONS
from ndtool.rules.reductions import DUPLICATES as DUPLICATES_MODES


class ParameterType(click.ParamType):  # type: ignore[type-arg]
    """A parameter type. parse: converts a word, or raises NdtoolError.

    Shells complete the name "file".
    """

    def __init__(self, name: str, parse: Callable[[str], Any] = str) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._parse(value)
        except NdtoolError as exc:
            self.fail(exc.message.removeprefix("spec is "), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")] if self.name == "file" else []


class Directories(ParameterType):
    """A directory or URL; a variable has directories separated by `:` as in PATH, or one URL."""

    def __init__(self) -> None:
        super().__init__("file")

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the directories in a variable."""
        from ndtool.storage import locations

        return [rv] if locations.is_url(rv) else list(filter(None, rv.split(os.pathsep)))


class Reduction(click.Choice):  # type: ignore[type-arg]
    """A reduction, by ndtool's name or by that of another library."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail with the valid values."""
        return super().convert(ALIASES.get(value, value), param, ctx)


def integer(lowest: int, highest: int) -> ParameterType:
    """Return the parameter type of decimal integers from `lowest` to `highest`."""

    def parse(word: str) -> int:
        if re.fullmatch("[+-]?[0-9]{1,30}", word) and lowest <= int(word) <= highest:
            return int(word)
        valid = f"in {lowest}..{highest}" if highest < 2**63 - 1 else "of at most 64 bits"
        raise UsageError(f"{word!r} is not an integer {valid}")

    return ParameterType("integer", parse)


def _parser(module: str, name: str) -> Callable[[str], Any]:
    """Return a function of the package, which is imported when a word is parsed."""
    return lambda word: getattr(import_module(f"ndtool.{module}"), name)(word)


def _parse_html(word: str) -> str:
    """Return the name of an HTML report."""
    if not word.endswith(".html"):
        raise UsageError(f"{word!r}: expected a name that ends with .html")
    return word


def _parse_ulps(word: str) -> int:
    """Convert a distance in units in the last place, with or without the unit."""
    distance: int = integer(0, 2**63 - 1).convert(re.sub(" ?ulps?$", "", word), None, None)
    return distance


def _parse_element_type(word: str) -> str:
    """Return the name of an element type."""
    from ndtool.rules import dtypes

    dtypes.from_name(word)
    return word


def _parse_fill_value(word: str) -> str:
    """Return a fill value; a later step checks that the data's type can represent it."""
    from ndtool.rules import numbers

    if not numbers.is_number(word):
        raise UsageError(f"{word!r} is not a number: expected one such as -1, 0.5, nan or true")
    return word


def _parse_address(word: str) -> str:
    """Return the address of a scheduler, or the name of its scheduler file."""
    if "://" not in word and (word.endswith(".json") or os.path.exists(word)):
        return word
    register(word)
    if not re.fullmatch(r"([a-z][a-z0-9+.-]*://.+|.*:[0-9]+)", word):
        expected = "expected tcp://host:port, or the name of its scheduler file"
        raise UsageError(f"{redact_secrets(word)!r} is not the address of a scheduler: {expected}")
    return word


def _parse_sizes(word: str) -> tuple[int, ...]:
    """Convert a comma-separated list of sizes, one for each axis."""
    if not re.fullmatch("[1-9][0-9]{0,17}(, ?[1-9][0-9]{0,17})*", word):
        raise UsageError(f"{word!r} is not a list of sizes: expected one such as 100,64")
    return tuple(map(int, word.split(",")))


def _parse_position(word: str) -> tuple[int, ...]:
    """Convert the position of an element: a comma-separated integer for each axis."""
    if not re.fullmatch("([+-]?[0-9]{1,19}(, ?[+-]?[0-9]{1,19})*)?", word):
        raise UsageError(f"{word!r} is not a position: expected one such as 3,0")
    return tuple(map(int, word.split(","))) if word else ()


def _parse_memory(word: str) -> int:
    """Convert a size in bytes, with or without a unit."""
    from ndtool.engine.tuning import MIN_MEMORY
    from ndtool.machine import memory

    nbytes = memory.parse_size(word)
    if nbytes is None:
        raise UsageError(f"{word!r} is not a size: expected bytes, or a number such as 512MiB")
    if nbytes < MIN_MEMORY:
        raise UsageError(f"{word} is too little memory: expected at least 1MiB")
    return nbytes


class Option(click.Option):
    """An option. definition: the partial that makes it."""

    definition: object = None


def _option(flags: str, kind: Any, text: str, name: str = "", **settings: Any) -> Option:
    """Return an option. flags: such as "-o, --output FILE"; kind: a type, or what makes it.

    name: the parameter's name, if it is not that of the option.
    """
    words, metavar = flags.split(" "), None
    if not words[-1].startswith("-"):
        metavar = words.pop()
    words = " ".join(words).replace(",", "").split(" ")
    option = words[-1].partition("/")[0].removeprefix("--")
    return Option(
        [*words, name] if name else words,
        help=text,
        type=kind if isinstance(kind, click.ParamType) else kind(),
        metavar=metavar,
        envvar=f"NDTOOL_{option.replace('-', '_').upper()}",
        show_default=settings.get("default") is not None,
        **settings,
    )


def _flag(flags: str, text: str, **settings: Any) -> Option:
    """Return an option without a value."""
    return _option(flags, click.BOOL, text, is_flag=True, **settings)


def _reporter_flag(flags: str, text: str, **settings: Any) -> Option:
    """Return a flag that is stored in the reporter before other options are parsed."""
    eager = {"is_eager": True, "expose_value": False, "callback": _store_in_reporter}
    return _flag(flags, text, **eager, **settings)


# What makes an option, a flag or a type when it is called.
Define = Callable[..., partial[Option]]
define: Define = partial(partial, _option)
flag: Define = partial(partial, _flag)
reporter_flag: Define = partial(partial, _reporter_flag)
parsed: Callable[..., partial[ParameterType]] = partial(partial, ParameterType)


def _store_in_reporter(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if context.obj is not None:
        setattr(context.obj, parameter.name or "", value)


def _exit_option(*flags: str, answer: Callable[[click.Context], str], text: str) -> Option:
    """Return a flag that prints an answer and ends the program."""

    def show(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            write_stdout(answer(context) + "\n")
            context.exit()

    return Option(flags, callback=show, help=text, is_flag=True, is_eager=True, expose_value=False)


def _version(_: click.Context) -> str:
    from ndtool import __version__

    return f"ndtool {__version__}"


class Argument(click.Argument):
    """An argument with a help text; by default it refers to an array in a file."""

    def __init__(self, name: str, text: str, **settings: Any) -> None:
        super().__init__([name], **{"type": FILE, **settings})
        self.text = text

    @property
    def help_record(self) -> tuple[str, str]:
        """The name and the text, as a row of the help page."""
        return self.human_readable_name.strip("[]"), self.text

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name in the error about a value."""
        return f"'{self.human_readable_name.strip('[]')}'"


FILE = ParameterType("file")
_INT64 = partial(integer, -(2**63), 2**63 - 1)
Parameter = click.Argument | partial[Option]


def make(parameters: Iterable[Parameter]) -> list[click.Parameter]:
    """Return parameters, with the options made."""
    made = list[click.Parameter]()
    for parameter in parameters:
        if isinstance(parameter, partial):
            option = parameter()
            option.definition = parameter
            made.append(option)
        else:
            made.append(parameter)
    return made


HELP = partial(
    _exit_option, "-h", "--help", answer=click.Context.get_help, text="Show this help and exit."
)
VERSION = partial(_exit_option, "--version", answer=_version, text="Show the version and exit.")
BATCH_DIMS = define("--batch-dims N", _INT64, "Number of leading batch axes.", default=0)
AXIS = define("--axis A", _INT64, "Axis of DATA to index; default: after the batch axes.")
REDUCTION = define(
    "--reduction NAME",
    partial(Reduction, [*REDUCTIONS]),
    f"{', '.join(REDUCTIONS)}; none assigns the updates.",
    default="none",
)
WRITE_AXIS = define("--axis A", _INT64, "Axis of PAST to write along, not 0.", default=-2)
WRITE_MODE = define(
    "--mode MODE",
    partial(click.Choice, [*WRITE_MODES]),
    "linear: UPDATE must fit before the end of the axis; circular: it continues at the start.",
    default="linear",
)
OUT_OF_BOUNDS = define(
    "--out-of-bounds MODE",
    partial(click.Choice, [*MODES]),
    "Indices out of bounds: error; clip to the first or last index; wrap modulo the axis size;"
    " fill (gathers); drop the update (scatters).",
    default="error",
)
FILL = define(
    "--fill VALUE",
    parsed("value", _parse_fill_value),
    "Value for --out-of-bounds fill and --pad, such as nan. Default: 0.",
)
PAD = define(
    "--pad INT",
    partial(integer, -(2**63), 2**64 - 1),
    "Index that selects nothing, such as -1: gathers fill its slice, scatters skip its update.",
)
NO_NEGATIVES = flag("--no-negatives", "Negative indices are out of bounds.")
INDEX_BASE = define(
    "--index-base 0|1",
    partial(integer, 0, 1),
    "1 if indices count from 1; 0 and negative ones are out of bounds then.",
    default=0,
)
NO_INCLUDE_SELF = flag(
    "--no-include-self",
    "Leave the current values out: the first update of an element is copied, the next are reduced.",
)
DUPLICATES = define(
    "--duplicates WHICH",
    partial(click.Choice, [*DUPLICATES_MODES]),
    "Which update of a duplicate index is assigned: last, or first (with reduction none only);"
    " error refuses duplicates.",
    default="last",
)
ATTRIBUTES = {  # of all operators but TensorScatter
    "batch_dims": BATCH_DIMS, "axis": AXIS, "reduction": REDUCTION, "out_of_bounds": OUT_OF_BOUNDS,
    "fill": FILL, "pad": PAD, "negatives": NO_NEGATIVES, "index_base": INDEX_BASE,
    "include_self": NO_INCLUDE_SELF, "duplicates": DUPLICATES,
}  # fmt: skip
SPEC = define(
    "--spec SPEC",
    parsed("spec", _parser("rules.specs", "require_valid")),
    "Standard to validate against: ndtool, onnx:N, openvino:N or webnn. It decides which calls"
    " are refused, not what the output contains.",
    default="ndtool",
)
DTYPE = define(
    "--dtype NAME",
    parsed("dtype", _parse_element_type),
    "Actual dtype of void data (V2, V1), such as bfloat16.",
)
TEXT = flag(
    "--text",
    "Read indices and updates as text if neither content nor suffix shows a format: numbers on"
    " standard input, for example.",
)
OUTPUT = define(
    "-o, --output FILE",
    FILE,
    "Output file, in the format of its suffix; FILE:NAME adds or replaces an array in a file of"
    " several; - is standard output. Default: -, on a terminal a preview.",
)
THREADS = define(
    "--threads N",
    partial(integer, 1, 1024),
    "Number of threads, 1..1024. Default: OMP_NUM_THREADS, else all processors.",
)
MEMORY = define(
    "--memory SIZE",
    parsed("size", _parse_memory),
    "Memory limit, mapped files included, such as 512MiB. Default: the available memory.",
)
SPILL = define(
    "--spill DIR",
    Directories,
    "Directory for temporary files; may be repeated, for spilled data on several disks; on a"
    " cluster one, or a URL. Default: TMPDIR; on a cluster the directory of the output.",
    multiple=True,
)
SCHEDULER = define(
    "--scheduler ADDRESS",
    parsed("address", _parse_address),
    "Run on the Dask cluster of this scheduler: tcp://host:port, or the scheduler file.",
)
WORKERS = define(
    "--workers N",
    partial(integer, 1, 1024),
    "Run on a Dask cluster of N processes, started on this machine.",
)
RESUME = flag("--resume", "Resume a killed run on a cluster, from its files in --spill.")
DRY_RUN = flag("--dry-run", "Check inputs and indices, show the plan, write nothing.")
NO_CLOBBER = flag("--no-clobber", "Do not replace an existing output.")
FORCE = flag(
    "--force", "At a URL, also remove files of runs on other machines, which may still be running."
)
SYNC = flag("--sync", "Flush the output to the disk before exit (fsync).")
ONLY = flag("--only", "Replace a file of several arrays completely: do not preserve the others.")
AS_VOID = flag(
    "--as-void", "Store a dtype that the output format lacks, such as bfloat16, as void."
)
CHUNKS = define(
    "--chunks N,N...",
    parsed("sizes", _parse_sizes),
    "Chunk shape of a Zarr or HDF5 output, such as 100,64. Default: that of the first input,"
    " else rows of about 1 MiB, for HDF5 none.",
)
SHARDS = define(
    "--shards N,N...",
    parsed("sizes", _parse_sizes),
    "Shard shape of a Zarr output, a multiple of the chunk shape. Default: that of the first"
    " input, or none.",
)
CODEC = define(
    "--codec NAME[:LEVEL]",
    parsed("codec", _parser("arrays.sink", "codec")),
    "Compression of a Zarr output: zstd, blosc, gzip or none; of an HDF5 output: gzip or none."
    " Default: that of the first input, else zstd, for HDF5 none.",
)
AT = define(
    "--at I,J...",
    parsed("position", _parse_position),
    "Explain the element of the output at these coordinates; may be repeated.",
    multiple=True,
)
FROM = define(
    "--from I,J...",
    parsed("position", _parse_position),
    "Show where the element of DATA at these coordinates went; may be repeated.",
    name="origins",
    multiple=True,
)
ALL = flag("--all", "List up to 10,000 updates or destinations, not only ten.", name="list_all")
WITHIN = define(
    "--within N",
    parsed("integer", _parse_ulps),
    "Tolerance in ulp (units in last place).",
    default=0,
)
HTML = define(
    "--html FILE.html",
    parsed("file", _parse_html),
    "Write an HTML report, with a drawing of the arrays.",
)
INPUTS = define(
    "--inputs IN.npz|DIR",
    FILE,
    "Run the model on these inputs: an archive with the inputs' names, or a directory with"
    " input_0.pb and so on, as in ONNX's backend tests.",
)
SAVE = define(
    "--save DIR",
    FILE,
    "With --inputs, write the tensors of each node to files of this directory, for explain.",
)
ENGINES = (  # for `verify` and `model`
    define(
        "--against ENGINE,...",
        parsed("engines", _parser("analysis.engines", "parse_names")),
        "Compare other engines with the exact result: onnxruntime, openvino, torch, tensorflow,"
        " jax, numpy, onnx; all; auto (those installed).",
        name="engines",
    ),
    define(
        "--runs N",
        partial(integer, 1, 1000),
        "Number of multithreaded runs of each engine.",
        default=5,
    ),
    define(
        "--timeout SECONDS",
        partial(integer, 1, 10**6),
        "Seconds before an engine that does not answer is killed.",
        default=600,
    ),
)
TRACE = reporter_flag(
    "--trace/--no-trace",
    "Show all shape rules, or none. Default: on a terminal, a summary.",
    default=None,
)
VERBOSE = reporter_flag(
    "-v, --verbose", "Explain the run: the plan with its reason, threads or workers."
)
QUIET = reporter_flag("-q, --quiet", "Print only errors.")
JSON = reporter_flag("--json", "Print the result, or the error, as one JSON object.")
REPORTING = (QUIET, JSON)
OUTPUT_FILES = (NO_CLOBBER, ONLY, SYNC, CHUNKS, SHARDS, CODEC)
CHECKS = (SPEC, DTYPE, TEXT)
EXECUTION = (THREADS, MEMORY, SPILL)
CLUSTER = (SCHEDULER, WORKERS, RESUME)
GROUPS = {  # of the help page; options without a group come first
    "Indices and updates": (FILL, PAD, NO_NEGATIVES, INDEX_BASE, NO_INCLUDE_SELF, DUPLICATES),
    "Output": (*OUTPUT_FILES, AS_VOID),
    "Types and checks": CHECKS,
    "Other engines": ENGINES,
    "Execution": EXECUTION,
    "Cluster": CLUSTER,
    "Reporting": (TRACE, VERBOSE, HTML, QUIET, JSON),
}
