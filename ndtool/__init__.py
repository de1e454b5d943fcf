"""ONNX's indexed tensor operators on arrays and on .npy/.npz files: exact, parallel, checked.

>>> import numpy as np, ndtool
>>> ndtool.gather_nd(np.array([[0, 1], [2, 3]]), np.array([[1], [0]]))
array([[2, 3],
       [0, 1]])
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ndtool.errors import (
        BoundsError as BoundsError,
        DtypeError as DtypeError,
        InputError as InputError,
        NdtoolError as NdtoolError,
        OutputError as OutputError,
        ResourceError as ResourceError,
        RuleError as RuleError,
        Status as Status,
        UsageError as UsageError,
    )
    from ndtool.ops import (
        gather_elements as gather_elements,
        gather_nd as gather_nd,
        scatter_elements as scatter_elements,
        scatter_nd as scatter_nd,
    )

__version__ = "0.1.0"

_OPERATORS = ("gather_nd", "scatter_nd", "gather_elements", "scatter_elements")
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
__all__ = [*_OPERATORS, *_ERRORS, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Load a public name at its first use: the command line needs no NumPy to start."""
    if name in _OPERATORS:
        module = "ndtool.ops"
    elif name in _ERRORS:
        module = "ndtool.errors"
    else:
        raise AttributeError(f"module 'ndtool' has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value
