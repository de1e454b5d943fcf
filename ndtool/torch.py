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

from typing import Any, Never

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ndtool.errors import BoundsError, DtypeError
from ndtool.inmemory import tensors
from ndtool.inmemory.arguments import element_type, index_array, reduction_name, restore_exact_index
from ndtool.inmemory.gradients import Gather, LinearCall, Scatter, require_gradient
from ndtool.rules import specs
from ndtool.rules.operators import GATHER_ATTRIBUTES, SCATTER_ATTRIBUTES, Attributes, operator_of
from ndtool.signatures import Operators, bind

__all__ = ["gather", "gather_elements", "gather_nd", "scatter", "scatter_elements", "scatter_nd"]


def _call(
    data: Tensor, indices: Any, updates: Any, _: None, name: str, threads: Any, spec: Any,
    *values: Any,
) -> Tensor:  # fmt: skip
    """Compute an operator differentiably."""
    attributes, scatters = Attributes(*values), operator_of(name).scatters
    attributes = attributes._replace(reduction=reduction_name("reduction", attributes.reduction))
    arrays = {"data": data} | ({"updates": updates} if scatters else {})
    _require_tensors(arrays)
    own = SCATTER_ATTRIBUTES if scatters else GATHER_ATTRIBUTES
    if any(map(tensors.is_tracked, arrays.values())):
        require_gradient(attributes.reduction)
    linear = LinearCall(
        name.removeprefix("scatter").removeprefix("gather"),
        attributes._replace(
            **{attribute: Attributes._field_defaults[attribute] for attribute in own}
        ),
        threads,
    )
    options = {"spec": spec} | {attribute: getattr(attributes, attribute) for attribute in own}
    try:
        function: Any = Scatter if scatters else Gather
        result: Tensor = function.apply(
            data, _indices(indices, attributes), *list(arrays.values())[1:], linear, options
        )
    except BoundsError as error:
        restore_exact_index(error, indices)
        raise
    return result


def _require_tensors(arguments: dict[str, object]) -> None:
    for name, value in arguments.items():
        if not tensors.is_tensor(value):
            raise DtypeError(
                f"{name} is a {type(value).__name__}: it must be a torch tensor",
                hint="the functions of ndtool take other arrays",
            )


def _indices(values: Any, attributes: Attributes) -> Tensor:
    """Return indices as a tensor, copied from an array so that backward sees the same values."""
    if tensors.is_tensor(values):
        detached: Tensor = values.detach()
        return detached
    array = index_array(values, attributes.out_of_bounds)
    specs.require_integers("indices", element_type("indices", array.dtype))
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


_operators: Operators[Tensor, ArrayLike | Tensor, Tensor, None, Never] = bind(
    _call,
    __name__,
    {"Data": "Tensor", "Indices": "ArrayLike | Tensor", "Result": "Tensor"},
    "data and updates are tensors on the CPU, and so is the result. The gradient of a gather's data"
    " is the sum, in row-major order of indices, of the gradients of all slices gathered from it;"
    " filled slices contribute nothing. Gradients of a scatter exist for the reductions none, add,"
    " sub, mul, max, min and mean; with others, RuleError if a gradient is required. none: the"
    " gradient goes to the update that is assigned, not to its duplicates. max, min: elements that"
    " are equal to the result, the current value included, share its gradient in equal parts, as in"
    " torch's scatter_reduce.",
    omitted=("out",),
)
gather_nd, scatter_nd = _operators.gather_nd, _operators.scatter_nd
gather_elements, scatter_elements = _operators.gather_elements, _operators.scatter_elements
gather, scatter = _operators.gather, _operators.scatter
