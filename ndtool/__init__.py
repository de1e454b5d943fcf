"""ONNX's indexed tensor operators on arrays and on files of them: exact, parallel, checked.

>>> import numpy as np, ndtool
>>> ndtool.gather_nd(np.array([[0, 1], [2, 3]]), np.array([[1], [0]]))
array([[2, 3],
       [0, 1]])
"""

import os as _os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ndtool import files as files
    from ndtool.errors import BoundsError as BoundsError
    from ndtool.errors import DtypeError as DtypeError
    from ndtool.errors import InputError as InputError
    from ndtool.errors import NdtoolError as NdtoolError
    from ndtool.errors import OutputError as OutputError
    from ndtool.errors import ResourceError as ResourceError
    from ndtool.errors import RuleError as RuleError
    from ndtool.errors import Status as Status
    from ndtool.errors import UsageError as UsageError
    from ndtool.ops import gather as gather
    from ndtool.ops import gather_elements as gather_elements
    from ndtool.ops import gather_nd as gather_nd
    from ndtool.ops import scatter_elements as scatter_elements
    from ndtool.ops import scatter_nd as scatter_nd

__version__ = "0.1.0"

del TYPE_CHECKING

# libgomp reads it when the kernels are loaded: a millisecond. By default a thread that waits burns,
# for ten, the processor on which the one it waits for is to run.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ.setdefault("GOMP_SPINCOUNT", "30000")

_OPERATORS = ("gather_nd", "scatter_nd", "gather_elements", "scatter_elements", "gather")
_ERRORS = (
    "NdtoolError",
    "BoundsError",
    "DtypeError",
    "InputError",
    "OutputError",
    "ResourceError",
    "RuleError",
    "Status",
    "UsageError",
)
__all__ = [*_OPERATORS, *_ERRORS, "__version__", "files"]


def __getattr__(name: str) -> object:
    """Load a public name at its first use: the command line needs no NumPy to start."""
    if name in _OPERATORS:
        module = "ndtool.ops"
    elif name in _ERRORS:
        module = "ndtool.errors"
    elif name != "files":
        raise AttributeError(f"module 'ndtool' has no attribute {name!r}")
    from importlib import import_module

    if name == "files":
        return import_module("ndtool.files")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not, and nothing else."""
    return __all__
