"""The operators on PyTorch tensors, differentiable in data and updates.

The backward of a gather is a scatter add, and that of a scatter a gather: exact, with the same bits
at any number of threads. Derivatives of any order work, in reverse and forward mode, and so do the
transforms of torch.func.

>>> import torch
>>> table = torch.zeros(4, 2, requires_grad=True)
>>> gather(table, [1, 3, 1]).sum().backward()
>>> table.grad
tensor([[0., 0.],
        [2., 2.],
        [0., 0.],
        [1., 1.]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from ndtool.errors import BoundsError, DtypeError
from ndtool.inmemory import tensors
from ndtool.inmemory.arguments import element_type, index_array, reduction_name, restore_exact_index
from ndtool.inmemory.gradients import Gather, LinearCall, Scatter, require_gradient
from ndtool.literals import Duplicates, GatherMode, Reduction, ScatterMode
from ndtool.rules import specs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

__all__ = ["gather", "gather_elements", "gather_nd", "scatter", "scatter_elements", "scatter_nd"]


def gather_nd(
    data: Tensor,
    indices: ArrayLike | Tensor,
    batch_dims: SupportsIndex = 0,
    *,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: GatherMode = "error",
    fill: object = None,
    pad: SupportsIndex | None = None,
    negatives: bool = True,
) -> Tensor:
    """Gather the slices of data that index tuples select, differentiably (ONNX GatherND).

    data: a tensor of shape (d0, .., dr-1), on the CPU. indices: shape (.., k), any integer dtype.
    The arguments, the result's shape indices.shape[:-1] + data.shape[batch_dims + k:] and the
    errors (BoundsError, DtypeError, RuleError) are those of ndtool.gather_nd. The gradient of data
    is the sum, in row-major order of indices, of the gradients of all slices gathered from it;
    filled slices contribute nothing.

    >>> gather_nd(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), [[1], [0]])
    tensor([[2., 3.],
            [0., 1.]])
    """
    call = LinearCall("_nd", {"batch_dims": batch_dims}, threads, out_of_bounds, pad, negatives)
    return _gather(call, data, indices, spec, fill)


def gather_elements(
    data: Tensor,
    indices: ArrayLike | Tensor,
    axis: SupportsIndex = 0,
    *,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: GatherMode = "error",
    fill: object = None,
    pad: SupportsIndex | None = None,
    negatives: bool = True,
) -> Tensor:
    """Gather one element per index along an axis, differentiably (ONNX GatherElements).

    data: a tensor of rank r >= 1, on the CPU. indices: rank r, any integer dtype. The arguments,
    the result's shape, that of indices, and the errors (BoundsError, DtypeError, RuleError) are
    those of ndtool.gather_elements. The gradient of data is the sum, in row-major order of indices,
    of the gradients of the elements gathered from it.

    >>> gather_elements(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [[0, 0], [1, 0]], axis=1)
    tensor([[1., 1.],
            [4., 3.]])
    """
    call = LinearCall("_elements", {"axis": axis}, threads, out_of_bounds, pad, negatives)
    return _gather(call, data, indices, spec, fill)


def gather(
    data: Tensor,
    indices: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    *,
    batch_dims: SupportsIndex = 0,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: GatherMode = "error",
    fill: object = None,
    pad: SupportsIndex | None = None,
    negatives: bool = True,
) -> Tensor:
    """Gather the slices that indices select along an axis, differentiably (ONNX Gather).

    data: a tensor of rank r >= 1, on the CPU. indices: any shape, any integer dtype. The arguments,
    the result's shape data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis+1:] and the
    errors (BoundsError, DtypeError, RuleError) are those of ndtool.gather. The gradient of data is
    the sum, in row-major order of indices, of the gradients of the slices gathered from it.

    >>> gather(torch.tensor([1.0, 2.0, 3.0]), [2, 0])
    tensor([3., 1.])
    """
    attributes = {"axis": axis, "batch_dims": batch_dims}
    call = LinearCall("", attributes, threads, out_of_bounds, pad, negatives)
    return _gather(call, data, indices, spec, fill)


def scatter_nd(
    data: Tensor,
    indices: ArrayLike | Tensor,
    updates: Tensor,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: ScatterMode = "error",
    pad: SupportsIndex | None = None,
    negatives: bool = True,
    include_self: bool = True,
    duplicates: Duplicates = "last",
) -> Tensor:
    """Copy data, then set or reduce slices by index tuples, differentiably (ONNX ScatterND).

    data, updates: tensors of one dtype, on the CPU; updates of shape indices.shape[:-1] +
    data.shape[batch_dims + k:]. indices: shape (.., k), any integer dtype. The arguments, the
    result, of data's shape, and the errors (BoundsError, DtypeError, DuplicatesError, RuleError)
    are those of ndtool.scatter_nd. Gradients exist for the reductions none, add, sub, mul, max, min
    and mean; with others, RuleError if a gradient is required. none: the gradient goes to the
    update that is assigned, not to its duplicates. max, min: elements that are equal to the result,
    the current value included, share its gradient in equal parts, as in torch's scatter_reduce.

    >>> indices, updates = [[1], [1]], torch.tensor([10.0, 20.0], requires_grad=True)
    >>> scatter_nd(torch.zeros(3), indices, updates).sum().backward()
    >>> updates.grad
    tensor([0., 1.])
    """
    call = LinearCall("_nd", {"batch_dims": batch_dims}, threads, out_of_bounds, pad, negatives)
    return _scatter(call, data, indices, updates, reduction, spec, include_self, duplicates)


def scatter_elements(
    data: Tensor,
    indices: ArrayLike | Tensor,
    updates: Tensor,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    *,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: ScatterMode = "error",
    pad: SupportsIndex | None = None,
    negatives: bool = True,
    include_self: bool = True,
    duplicates: Duplicates = "last",
) -> Tensor:
    """Copy data, then set or reduce an element per index, differentiably (ONNX ScatterElements).

    data, updates: tensors of one dtype, on the CPU; updates of indices' shape. indices: rank r, any
    integer dtype. The arguments, the result, of data's shape, and the errors (BoundsError,
    DtypeError, DuplicatesError, RuleError) are those of ndtool.scatter_elements. Gradients exist
    for the reductions none, add, sub, mul, max, min and mean; with others, RuleError if a gradient
    is required. none: the gradient goes to the update that is assigned. max, min: elements equal to
    the result share its gradient in equal parts.

    >>> scatter_elements(torch.zeros(3), [0, 2], torch.tensor([9.0, 8.0]))
    tensor([9., 0., 8.])
    """
    call = LinearCall("_elements", {"axis": axis}, threads, out_of_bounds, pad, negatives)
    return _scatter(call, data, indices, updates, reduction, spec, include_self, duplicates)


def scatter(
    data: Tensor,
    indices: ArrayLike | Tensor,
    updates: Tensor,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: ScatterMode = "error",
    pad: SupportsIndex | None = None,
    negatives: bool = True,
    include_self: bool = True,
    duplicates: Duplicates = "last",
) -> Tensor:
    """Copy data, then set or reduce slices along an axis, differentiably (OpenVINO ScatterUpdate).

    data, updates: tensors of one dtype, on the CPU; updates of the shape that gather returns:
    data.shape[:axis] + indices.shape[batch_dims:] + data.shape[axis+1:]. indices: any shape, any
    integer dtype. The arguments, the result, of data's shape, and the errors (BoundsError,
    DtypeError, DuplicatesError, RuleError) are those of ndtool.scatter. Gradients exist for the
    reductions none, add, sub, mul, max, min and mean; with others, RuleError if a gradient is
    required. none: the gradient goes to the update that is assigned. max, min: elements equal to
    the result share its gradient in equal parts.

    >>> scatter(torch.zeros(3), [1, 1], torch.tensor([2.0, 5.0]), reduction="add")
    tensor([0., 7., 0.])
    """
    attributes = {"axis": axis, "batch_dims": batch_dims}
    call = LinearCall("", attributes, threads, out_of_bounds, pad, negatives)
    return _scatter(call, data, indices, updates, reduction, spec, include_self, duplicates)


def _gather(
    call: LinearCall, data: Tensor, indices: ArrayLike | Tensor, spec: str, fill: object
) -> Tensor:
    _require_tensors(data=data)
    return _apply(Gather, indices, call, (data,), {"spec": spec, "fill": fill})


def _scatter(
    call: LinearCall,
    data: Tensor,
    indices: ArrayLike | Tensor,
    updates: Tensor,
    reduction: str,
    spec: str,
    include_self: bool,
    duplicates: str,
) -> Tensor:
    _require_tensors(data=data, updates=updates)
    reduction = reduction_name("reduction", reduction)
    if any(map(tensors.is_tracked, (data, updates))):
        require_gradient(reduction)
    keywords = {"reduction": reduction, "include_self": include_self, "duplicates": duplicates}
    return _apply(Scatter, indices, call, (data, updates), keywords | {"spec": spec})


def _apply(
    function: Any,
    indices: Any,
    call: LinearCall,
    arrays: tuple[Tensor, ...],
    options: dict[str, Any],
) -> Tensor:
    """Apply an autograd function to data, indices and perhaps updates."""
    data, *updates = arrays
    try:
        result: Tensor = function.apply(data, _indices(indices, call), *updates, call, options)
    except BoundsError as error:
        restore_exact_index(error, indices)
        raise
    return result


def _require_tensors(**arguments: object) -> None:
    for name, value in arguments.items():
        if not tensors.is_tensor(value):
            raise DtypeError(
                f"{name} is a {type(value).__name__}: it must be a torch tensor",
                hint="the functions of ndtool take other arrays",
            )


def _indices(values: Any, call: LinearCall) -> Tensor:
    """Return indices as a tensor, copied from an array so that backward sees the same values."""
    if tensors.is_tensor(values):
        detached: Tensor = values.detach()
        return detached
    array = index_array(values, call.mode)
    specs.require_integers("indices", element_type("indices", array.dtype))
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
