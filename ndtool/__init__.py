"""ONNX's gather and scatter operators on arrays and on files of arrays: exact, parallel, checked.

>>> import numpy as np, ndtool
>>> ndtool.gather_nd(np.array([[0, 1], [2, 3]]), np.array([[1], [0]]))
array([[2, 3],
       [0, 1]])
"""

import os as _os

TYPE_CHECKING = False  # recognised by type checkers; importing `typing` delays every start
if TYPE_CHECKING:
    from ndtool import dask as dask
    from ndtool import files as files
    from ndtool import torch as torch
    from ndtool import xarray as xarray
    from ndtool.errors import BoundsError as BoundsError
    from ndtool.errors import DifferenceError as DifferenceError
    from ndtool.errors import DtypeError as DtypeError
    from ndtool.errors import DuplicatesError as DuplicatesError
    from ndtool.errors import InputError as InputError
    from ndtool.errors import NdtoolError as NdtoolError
    from ndtool.errors import OutputError as OutputError
    from ndtool.errors import ResourceError as ResourceError
    from ndtool.errors import RuleError as RuleError
    from ndtool.errors import Status as Status
    from ndtool.errors import UsageError as UsageError
    from ndtool.inmemory.ops import *  # noqa: F403 - the operators
    from ndtool.inmemory.tensorscatter import tensor_scatter as tensor_scatter
    from ndtool.questions.calls import *  # noqa: F403
    from ndtool.questions.files import *  # noqa: F403

__version__ = "0.1.0"

del TYPE_CHECKING

# libgomp reads it when the kernels are loaded: about a millisecond of spinning. By default, waiting
# threads spin for ten, on processors that the threads they wait for may need.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ.setdefault("GOMP_SPINCOUNT", "30000")

_ERRORS = (
    "NdtoolError",
    "BoundsError",
    "DifferenceError",
    "DtypeError",
    "DuplicatesError",
    "InputError",
    "OutputError",
    "ResourceError",
    "RuleError",
    "Status",
    "UsageError",
)
_QUESTIONS = {  # functions by their modules
    **dict.fromkeys(("explain", "infer", "stats", "verify"), "ndtool.questions.calls"),
    **dict.fromkeys(("convert", "inspect", "model"), "ndtool.questions.files"),
}
_INTEGRATIONS = ("dask", "torch", "xarray")  # modules that import other libraries


def __getattr__(name: str) -> object:
    """Load a public name at its first use: the command line starts without NumPy."""
    if name in _ERRORS:
        module = "ndtool.errors"
    elif name == "__all__":
        return [public for public in __dir__() if public not in _INTEGRATIONS]
    elif name in _QUESTIONS:
        module = _QUESTIONS[name]
    elif name == "tensor_scatter":
        module = "ndtool.inmemory.tensorscatter"
    elif name in __dir__():
        module = "ndtool.inmemory.ops"
    else:
        raise AttributeError(f"module 'ndtool' has no attribute {name!r}")
    from importlib import import_module

    if name == "files":
        return import_module("ndtool.files")
    if name in _INTEGRATIONS:
        try:
            return import_module(f"ndtool.{name}")
        except ImportError as error:  # `hasattr` and `dir` expect this one
            raise AttributeError(f"ndtool.{name} needs the package {name}: {error}") from error
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List exactly the public names, loaded or not."""
    from ndtool.rules.operators import LOWERED, OPERATORS

    return [*OPERATORS, *LOWERED, *_QUESTIONS, *_ERRORS, "__version__", "files", *_INTEGRATIONS]
