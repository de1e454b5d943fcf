"""The functions infer and verify of ndtool.files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, SupportsIndex

from ndtool.errors import RuleError, UsageError
from ndtool.inmemory.arguments import integer
from ndtool.options import (
    arguments_by_role,
    file_names,
    operator_name,
    path,
    request_of,
    validate_attributes,
)
from ndtool.rules.inference import Inference
from ndtool.rules.operators import operator_of
from ndtool.signatures import OperatorName

if TYPE_CHECKING:
    from ndtool.analysis.verify import Comparison


def infer(
    operator: OperatorName,
    *arguments: str | os.PathLike[str],
    spec: str = "ndtool",
    dtype: str | None = None,
    **attributes: Any,
) -> Inference:
    """Infer the output of an operator, such as "gather_nd", without reading any element.

    operator: ndtool's name of an ONNX operator, such as "gather_nd". arguments: the inputs in
    order, each a file or a type such as "float32[N,64]", whose sizes may be symbolic. spec: the
    standard to validate against. dtype: the actual dtype of void data. attributes: batch_dims,
    axis, reduction and so on.

    Returns an Inference, which notebooks show as a table; its `.plan.output` is the shape. The
    function ndtool.infer takes arrays, too, and returns the fields of --json.
    Raises RuleError, with the trace up to the broken rule, DtypeError, InputError and UsageError.

    >>> from ndtool import files
    >>> files.infer("gather_nd", "float32[8,128,64]", "int64[8,5,1]", batch_dims=1).plan.output
    (8, 5, 64)
    """
    from ndtool import notebook
    from ndtool.analysis import infer as inferring

    names = _file_names(arguments_by_role(operator, arguments))
    checked = validate_attributes(operator, attributes)
    try:
        return notebook.NotebookInference(*inferring.infer(operator, names, checked, spec, dtype))
    except RuleError as error:
        notebook.use_notebook_trace(error)
        raise


def verify(
    operator: OperatorName,
    *arguments: str | os.PathLike[str],
    within: SupportsIndex = 0,
    dtype: str | None = None,
    **attributes: Any,
) -> Comparison:
    """Check that a file is an operator's output: recompute it, slowly, and compare all bits.

    operator: ndtool's name of an ONNX operator, such as "gather_nd". arguments: the files of the
    operator's inputs in order, then of its output. within: the largest accepted distance of two
    elements, in units in the last place. dtype: the actual dtype of void data. attributes:
    batch_dims, axis and so on.

    Returns a Comparison, which notebooks show as a table. The function ndtool.verify takes arrays
    and other engines, too, and returns the fields of --json.
    Raises DifferenceError, whose `comparison` is the Comparison, RuleError, DtypeError,
    BoundsError, InputError and UsageError.

    >>> import numpy as np, tempfile, os
    >>> from ndtool import files
    >>> folder = tempfile.mkdtemp()
    >>> names = [os.path.join(folder, f"{name}.npy") for name in ("data", "indices", "output")]
    >>> for name, values in zip(names, ([5, 6, 7], [2, 0], [7, 5])):
    ...     np.save(name, values)
    >>> files.verify("gather", *names).different
    0
    """
    from ndtool.analysis import verify as verifying

    roles = (*operator_of(operator_name(operator)).inputs, "output")
    names = _file_names(arguments_by_role(operator, arguments, roles))
    request, _ = request_of(operator, names, attributes, dtype=dtype)
    return verifying.verify(request, within=integer("within", within, UsageError))


def _file_names(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the names of files by role; raise UsageError for an array in memory."""
    names = arguments | file_names(arguments)
    return {role: path(role, name) for role, name in names.items()}
