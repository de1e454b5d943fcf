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
    from ndtool.errors import *  # noqa: F403
    from ndtool.inmemory.ops import *  # noqa: F403 - the operators
    from ndtool.questions import *  # noqa: F403

__version__ = "0.1.0"

del TYPE_CHECKING

# libgomp reads GOMP_SPINCOUNT when the kernels are loaded: waiting threads spin for a few us. Its
# default is 10 ms after each call, which other threads and processes may need.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ.setdefault("GOMP_SPINCOUNT", "100")

_QUESTIONS = ("explain", "infer", "stats", "verify", "convert", "inspect", "model")
_INTEGRATIONS = ("dask", "torch", "xarray")  # modules that import other libraries


def __getattr__(name: str) -> object:
    """Load a public name at its first use: the command line starts without NumPy."""
    from importlib import import_module

    if name == "__all__":
        return [exported for exported in __dir__() if exported not in _INTEGRATIONS]
    if name not in __dir__():
        raise AttributeError(f"module 'ndtool' has no attribute {name!r}")
    if name == "files" or name in _INTEGRATIONS:
        try:
            return import_module(f"ndtool.{name}")
        except ImportError as error:  # `hasattr` catches only AttributeError
            raise AttributeError(f"ndtool.{name} needs the package {name}: {error}") from error
    errors = import_module("ndtool.errors").__all__
    own = "questions" if name in _QUESTIONS else "inmemory.ops"
    module = import_module(f"ndtool.{'errors' if name in errors else own}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List exactly the public names, loaded or not."""
    from ndtool.errors import __all__ as errors
    from ndtool.rules.operators import ALL_OPERATORS

    return [*ALL_OPERATORS, *_QUESTIONS, *errors, "__version__", "files", *_INTEGRATIONS]
