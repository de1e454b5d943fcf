"""Derivatives of gathers and scatters, as autograd functions of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from ndtool.errors import RuleError
from ndtool.inmemory.arguments import optional_integer
from ndtool.inmemory.calls import COMPILED
from ndtool.rules.operators import Attributes
from ndtool.rules.reductions import ADD, MUL, REDUCTIONS

if TYPE_CHECKING:
    from torch import Tensor

_Function: Any = torch.autograd.Function
_ADJOINT_MODES = {"fill": "drop", "drop": "fill"}  # of a gather for a scatter, and the reverse
_DIFFERENTIABLE = [row.name for row in REDUCTIONS.values() if row.kind != "quotient"]
_NONLINEAR = [row.name for row in REDUCTIONS.values() if row.kind in ("product", "extreme")]
_Map = Callable[["Tensor"], "Tensor"]


class LinearCall(NamedTuple):
    """A gather and the scatter with the same indices, each the adjoint of the other.

    suffix: the end of the operators' names, such as "_nd". attributes: those that both have; the
    out-of-bounds mode is that of the caller's operator.
    """

    suffix: str
    attributes: Attributes
    threads: int | None

    def compute(
        self,
        verb: str,
        data: Tensor,
        indices: Tensor,
        updates: Tensor | None = None,
        spec: str = "ndtool",
        **attributes: Any,
    ) -> Tensor:
        """Compute the gather or the scatter, without recording derivatives."""
        given = self.attributes._replace(**attributes)
        if given.out_of_bounds == ("drop" if verb == "gather" else "fill"):
            given = given._replace(out_of_bounds=_ADJOINT_MODES[given.out_of_bounds])
        call = (verb + self.suffix, self.threads, spec, *given)
        result: Any = COMPILED.call(data, indices, updates, None, *call)
        return cast("Tensor", result)

    def gather(self, data: Tensor, indices: Tensor, fill: object = None) -> Tensor:
        """Gather differentiably; tuples that select nothing gather `fill`, or 0."""
        if (
            self.suffix == "_nd" and not indices.shape[-1]
        ):  # of scatters only: a tuple selects all of data
            batch, tuple_shape = int(self.attributes.batch_dims), indices.shape[:-1]
            broadcast_axes = [1] * (len(tuple_shape) - batch)
            array = data.reshape(*data.shape[:batch], *broadcast_axes, *data.shape[batch:])
            return array.expand(*tuple_shape, *data.shape[batch:])
        skips = self.attributes.may_skip_tuples
        result: Tensor = Gather.apply(data, indices, self, {"fill": fill} if skips else {})
        return result

    def scatter(
        self, data: Tensor, indices: Tensor, updates: Tensor, reduction: str, **options: Any
    ) -> Tensor:
        """Scatter differentiably."""
        arguments = {"reduction": reduction, **options}
        result: Tensor = Scatter.apply(data, indices, updates, self, arguments)
        return result

    def with_resolved_axis(self, data: Tensor) -> LinearCall:
        """Return the call with axis >= 0, which is valid for arrays of other ranks, too."""
        if self.suffix:
            return self
        axis = optional_integer("axis", self.attributes.resolved_axis)
        return self._replace(attributes=self.attributes._replace(axis=axis % data.dim()))

    def row_shapes(self, data: Tensor, indices: Tensor) -> tuple[list[int], list[int]]:
        """Return the shapes of data and of updates without the axes of slices."""
        shape, index = list(data.shape), list(indices.shape)
        if self.suffix == "_nd":
            return shape[: int(self.attributes.batch_dims) + index[-1]], index[:-1]
        if self.suffix:
            return shape, index
        axis = self.attributes.resolved_axis
        return shape[: axis + 1], shape[:axis] + index[int(self.attributes.batch_dims) :]


class Gather(_Function):  # type: ignore[misc]
    """A gather; it is linear in data."""

    @staticmethod
    def forward(data: Tensor, indices: Tensor, call: LinearCall, options: dict[str, Any]) -> Tensor:
        return call.compute("gather", data, indices, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        data, indices, call, _ = inputs
        ctx.call, ctx.shape = call.with_resolved_axis(data), data.shape
        ctx.save_for_backward(indices)
        ctx.save_for_forward(indices)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        zeros = grad.new_zeros(ctx.shape)
        return ctx.call.scatter(zeros, *ctx.saved_tensors, grad, ADD), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        result: Tensor = ctx.call.gather(tangent, *ctx.saved_tensors)
        return result

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        return _apply_to_batch(Gather, info.batch_size, dims, arguments)


class Scatter(_Function):  # type: ignore[misc]
    """A scatter; for most reductions it is linear in data and updates together."""

    @staticmethod
    def forward(
        data: Tensor, indices: Tensor, updates: Tensor, call: LinearCall, options: dict[str, Any]
    ) -> Tensor:
        return call.compute("scatter", data, indices, updates, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        data, indices, updates, call, kwargs = inputs
        ctx.call = call.with_resolved_axis(data)
        ctx.options = {name: value for name, value in kwargs.items() if name != "spec"}
        ctx.shapes, saved = (data.shape, updates.shape), [indices]
        if kwargs["reduction"] in _NONLINEAR:
            saved += [data, updates, *([] if kwargs["reduction"] == MUL else [output])]
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        indices = ctx.saved_tensors[0]
        to_data, to_updates = _vector_products(ctx)
        data_gradient = to_data(grad) if ctx.needs_input_grad[0] else None
        updates_gradient = None
        if ctx.needs_input_grad[2]:
            updates_gradient = to_updates(ctx.call.gather(grad, indices))
        return data_gradient, None, updates_gradient, None, None

    @staticmethod
    def jvp(ctx: Any, data_tangent: Tensor, _: Any, updates_tangent: Tensor, *__: Any) -> Tensor:
        indices, options = ctx.saved_tensors[0], ctx.options
        if options["reduction"] in _NONLINEAR:
            to_data, to_updates = _vector_products(ctx, conjugate=False)
            options = {"reduction": ADD}
            data_tangent, updates_tangent = to_data(data_tangent), to_updates(updates_tangent)
        require_gradient(options["reduction"])
        result: Tensor = ctx.call.scatter(data_tangent, indices, updates_tangent, **options)
        return result

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        return _apply_to_batch(Scatter, info.batch_size, dims, arguments)


def _apply_to_batch(
    function: Any, count: int, dims: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[Tensor, int]:
    """Apply a function to each element of a batch."""
    if not count:
        return _apply_to_no_batch(function, dims, arguments), 0
    outputs = [
        function.apply(
            *(
                array.select(d, n) if isinstance(d, int) else array
                for array, d in zip(arguments, dims, strict=True)
            )
        )
        for n in range(count)
    ]
    return torch.stack(outputs), 0


def _apply_to_no_batch(function: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Tensor:
    """Return the output for a batch of 0: that of one element has its shape and dtype."""
    element = [
        array.new_zeros([*array.shape[:d], *array.shape[d + 1 :]]) if isinstance(d, int) else array
        for array, d in zip(arguments, dims, strict=True)
    ]
    if function is Gather:  # with zeros as padding, which no axis is too short for
        data, indices, call, _ = element
        element = [data, indices, call._replace(attributes=call.attributes._replace(pad=0)), {}]
        output = function.apply(*element)
    else:
        output = element[0]
    return torch.empty((0, *output.shape), dtype=output.dtype)


def _vector_products(ctx: Any, conjugate: bool = True) -> tuple[_Map, _Map]:
    """Return the maps from the gradient of the output to the gradients of data and of updates.

    The map for updates takes the gradient that is gathered with the indices. conjugate: whether
    factors are conjugated, as in reverse mode.
    """
    call, options, (indices, *values) = ctx.call, ctx.options, ctx.saved_tensors
    # linear reductions: only the shapes of data and updates matter
    data, updates, *output = values or (torch.empty(()).expand(shape) for shape in ctx.shapes)
    reduction, includes_self = options["reduction"], options.get("include_self", True)
    require_gradient(reduction)
    rows = _Rows(call, data, indices)
    if reduction == "none":
        assigned_rows, assigned = rows.find_assigned(options.get("duplicates", "last"))
        return _mask_gradient(assigned_rows, data), _mask_gradient(~assigned, updates)
    none = torch.zeros((), dtype=torch.bool)
    replaced = none if includes_self else rows.counts() > 0  # the current value is not included
    to_data = _mask_gradient(replaced, data)
    row = REDUCTIONS[reduction]
    if row.needs_counts:  # a mean
        counts = rows.counts()
        summands = torch.where(counts > 0, counts + includes_self, 1)
        per_update = rows.gather(summands, 1)
        return (
            lambda grad: to_data(grad / _broadcast_rows(summands, data)),
            lambda grad: grad / _broadcast_rows(per_update, updates),
        )
    if row.kind in ("sum", "difference"):
        return to_data, torch.neg if row.kind == "difference" else torch.positive
    if row.kind == "product":
        factors = rows.products(
            updates, torch.ones_like(data) if not includes_self else data, replaced
        )
        data_factors, updates_factors = (array.conj() if conjugate else array for array in factors)
        return lambda grad: to_data(grad * data_factors), lambda grad: grad * updates_factors
    return _extremum_gradients(rows, data, updates, output[0], _broadcast_rows(replaced, data))


def _extremum_gradients(
    rows: _Rows, data: Tensor, updates: Tensor, output: Tensor, replaced: Tensor
) -> tuple[_Map, _Map]:
    """Return the maps of max and min: elements equal to the result divide its gradient."""
    call, indices = rows.call, rows.indices
    from_data = _equal(data.detach(), output.detach()) & ~replaced
    selecting = _broadcast_rows(rows.row_indices() >= 0, updates)
    from_updates = _equal(updates.detach(), call.gather(output.detach(), indices)) & selecting
    count = call.scatter(from_data.long(), indices, from_updates.long(), ADD).clamp(min=1)
    per_update = call.gather(count, indices).clamp(min=1)
    return (
        lambda grad: (grad / count).masked_fill(~from_data, 0),
        lambda grad: (grad / per_update).masked_fill(~from_updates, 0),
    )


def _equal(array: Tensor, other: Tensor) -> Tensor:
    """Return a mask of equal elements; NaN equals NaN."""
    result: Tensor = (array == other) | (array.isnan() & other.isnan())
    return result


def _broadcast_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Reshape a value for each slice so that it broadcasts over the elements of the slice."""
    return rows.reshape((*rows.shape, *[1] * (like.dim() - rows.dim())))


def _mask_gradient(mask: Tensor, like: Tensor) -> _Map:
    broadcast_mask = _broadcast_rows(mask, like)
    return lambda grad: grad.masked_fill(broadcast_mask, 0)


class _Rows:
    """The slices of a call, each reduced to one element."""

    def __init__(self, call: LinearCall, data: Tensor, indices: Tensor) -> None:
        self.call, self.indices = call, indices
        self._data, self._updates = call.row_shapes(data, indices)
        self._last = (
            [1] if call.suffix == "_nd" else []
        )  # an axis of slices, as tuples may select elements

    def _scatter(self, filled: int, updates: Tensor, reduction: str, **options: Any) -> Tensor:
        data = torch.full(self._data + self._last, filled)
        result = self.call.scatter(data, self.indices, updates, reduction, **options)
        return result.reshape(self._data)

    def gather(self, rows: Tensor, fill: int) -> Tensor:
        """Return the value of the slice that each tuple selects, `fill` if it selects none."""
        result = self.call.gather(rows.reshape(self._data + self._last), self.indices, fill)
        return result.reshape(self._updates)

    def counts(self) -> Tensor:
        """Return the number of updates of each slice."""
        ones = torch.ones(self._updates + self._last, dtype=torch.int64)
        return self._scatter(0, ones, ADD)

    def row_indices(self) -> Tensor:
        """Return the linear index of the slice that each tuple selects, -1 for none."""
        return self.gather(torch.arange(prod(self._data)), -1)

    def find_assigned(self, duplicates: str) -> tuple[Tensor, Tensor]:
        """Return masks of the slices that are assigned an update, and of the assigned updates."""
        update_indices = torch.arange(prod(self._updates)).reshape(self._updates)
        shaped = update_indices.reshape(self._updates + self._last)
        assigned = self._scatter(-1, shaped, "none", duplicates=duplicates)
        return assigned >= 0, self.gather(assigned, -1) == update_indices

    def products(self, updates: Tensor, data: Tensor, replaced: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of a product with respect to data and to updates."""
        data_derivative = self.call.scatter(torch.ones_like(data), self.indices, updates, MUL)
        row_indices = self.row_indices().reshape(-1)
        factors = (
            updates.reshape(len(row_indices), -1) if len(row_indices) else updates.reshape(0, 1)
        )
        other_factors = _leave_one_out_products(factors, row_indices).reshape(updates.shape)
        return data_derivative, other_factors * self.call.gather(data, self.indices)


def _leave_one_out_products(factors: Tensor, groups: Tensor) -> Tensor:
    """Return for each row the product of the other rows of its group, without division.

    groups: a group ID for each row, -1 for none.
    """
    order = torch.argsort(groups, stable=True)
    ordered, position = groups[order], torch.arange(len(groups))
    is_first = torch.ones(len(groups), dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_last = is_first.roll(-1)
    preceding = position - torch.where(is_first, position, 0).cummax(0).values
    following = (
        torch.where(is_last, position, len(groups)).flip(0).cummin(0).values.flip(0) - position
    )
    masked_factors = torch.where((ordered >= 0)[:, None], factors[order], 1)
    result = _preceding_products(masked_factors, preceding)
    result = result * _preceding_products(masked_factors.flip(0), following.flip(0)).flip(0)
    return result[torch.argsort(order)]


def _preceding_products(factors: Tensor, counts: Tensor) -> Tensor:
    """Return for each row the product of the `counts` rows before it, in log2 steps."""
    result, step = torch.where((counts > 0)[:, None], factors.roll(1, 0), 1), 1
    while len(counts) and step <= int(counts.max()):
        result = result * torch.where((counts >= step)[:, None], result.roll(step, 0), 1)
        step *= 2
    return result


def require_gradient(reduction: str) -> None:
    """Raise RuleError for a reduction without a gradient."""
    if reduction not in _DIFFERENTIABLE:
        raise RuleError(
            f"reduction {reduction} has no gradient: expected one of {', '.join(_DIFFERENTIABLE)}",
            hint="pass data.detach() and updates.detach()",
        )
