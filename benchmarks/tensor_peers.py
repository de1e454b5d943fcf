"""The tensor frameworks among the peers: PyTorch, TensorFlow and JAX; see peers.py."""

from typing import Any

import numpy as np
from peers import THREADS, Methods, NotOfferedError
from problems import Problem


def torch_methods(p: Problem) -> Methods:
    import torch

    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    return _torch_scatters(torch, p) if p.case.is_scatter else _torch_gathers(torch, p)


def _torch_gathers(torch: Any, p: Problem) -> Methods:
    case, data, indices = p.case, torch.from_numpy(p.data), torch.from_numpy(p.indices)
    out = torch.empty(case.output, dtype=data.dtype)
    if not case.has_tuples:
        return {"gather(out)": lambda: torch.gather(data, case.attribute, indices, out=out)}
    components = indices.unbind(-1)
    if case.batch_dims:
        batch = torch.arange(case.data_shape[0]).unsqueeze(1)
        rows, flat_out = data.flatten(0, 1), out.flatten(0, 1)
        expanded = indices.expand(*case.indices_shape[:-1], case.data_shape[2])
        return {
            "data[batch, index]": lambda: data[batch, components[0]],
            "gather(out)": lambda: torch.gather(data, 1, expanded, out=out),
            "linear indices, index_select(out)": _return_output(
                lambda: torch.index_select(
                    rows, 0, (components[0] + batch * case.data_shape[1]).flatten(), out=flat_out
                ),
                out,
            ),
        }
    if case.k == 1:
        methods = {
            "index_select(out)": lambda: torch.index_select(data, 0, components[0], out=out),
            "data[index]": lambda: data[components[0]],
        }
        if data.ndim == 1:
            methods["take(out)"] = lambda: torch.take(data, components[0], out=out)
        return methods
    linear = _torch_linear_indices(torch, case.data_shape, components)
    flat_data = data.flatten()
    return {
        "data[i, j]": lambda: data[components],
        "linear indices, take(out)": lambda: torch.take(flat_data, linear(), out=out),
        "linear indices, index_select(out)": lambda: torch.index_select(
            flat_data, 0, linear(), out=out
        ),
    }


def _torch_linear_indices(torch: Any, sizes: tuple[int, ...], components: Any) -> Any:
    """Return a call that computes the linear indices of (i, j), into reused memory."""
    if len(components) == 1:
        return lambda: components[0]
    linear = torch.empty(components[0].shape, dtype=torch.int64)
    return lambda: torch.add(components[1], components[0], alpha=sizes[1], out=linear)


def _torch_scatters(torch: Any, p: Problem) -> Methods:
    case, data, indices = p.case, torch.from_numpy(p.data), torch.from_numpy(p.indices)
    updates, out = torch.from_numpy(p.updates), torch.empty_like(torch.from_numpy(p.data))
    reduce = {"add": "sum", "max": "amax"}.get(case.reduction)
    if not case.has_tuples:
        axis = case.attribute
        return {
            "scatter_add_": lambda: out.copy_(data).scatter_add_(axis, indices, updates),
            "scatter_reduce_": lambda: out.copy_(data).scatter_reduce_(
                axis, indices, updates, reduce
            ),
        }
    components = indices.unbind(-1)
    if case.reduction == "none":
        return {
            "index_copy_": lambda: out.copy_(data).index_copy_(0, components[0], updates),
            "index_put_": lambda: out.copy_(data).index_put_(components, updates),
        }
    linear = _torch_linear_indices(torch, case.data_shape, components)

    def flat_output() -> Any:
        """Return a new output in which the indexed axes are merged."""
        return out.copy_(data).flatten(0, case.k - 1)

    if case.reduction == "max":
        method = _return_output(
            lambda: flat_output().scatter_reduce_(0, linear(), updates, "amax"), out
        )
        return {"scatter_reduce_": method}
    methods = {
        "index_add_": lambda: flat_output().index_add_(0, linear(), updates),
        "index_put_": lambda: out.copy_(data).index_put_(components, updates, accumulate=True),
    }
    if updates.ndim == 1:
        methods["scatter_add_"] = lambda: flat_output().scatter_add_(0, linear(), updates)
    else:
        expanded = components[0].unsqueeze(1).expand_as(updates)
        methods["scatter_add_"] = lambda: flat_output().scatter_add_(0, expanded, updates)
    return {name: _return_output(method, out) for name, method in methods.items()}


def _return_output(method: Any, out: Any) -> Any:
    """Make a call return the complete output instead of a view with fewer axes."""

    def run() -> Any:
        method()
        return out

    return run


def tensorflow_methods(p: Problem) -> Methods:
    import tensorflow as tf

    case = p.case
    try:
        tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    except RuntimeError:
        pass  # it has run before, with the same setting
    data, indices = tf.constant(p.data), tf.constant(p.indices)
    if case.operator == "gather_nd":
        methods = {"gather_nd": lambda: tf.gather_nd(data, indices, case.batch_dims)}
        if case.k == 1:
            row_indices, b = tf.constant(p.indices[..., 0]), case.batch_dims
            methods["gather"] = lambda: tf.gather(data, row_indices, axis=b, batch_dims=b)
        return methods
    if case.operator == "gather_elements":
        if case.attribute == 1:
            return {"gather": lambda: tf.gather(data, indices, axis=1, batch_dims=1)}
        take_along_axis = tf.experimental.numpy.take_along_axis
        return {"take_along_axis": lambda: take_along_axis(data, indices, case.attribute)}
    if case.operator == "scatter_elements":
        raise NotOfferedError("has no scatter along an axis")
    updates = tf.constant(p.updates)
    names = {
        "none": "tensor_scatter_nd_update",
        "add": "tensor_scatter_nd_add",
        "max": "tensor_scatter_nd_max",
    }
    scatter = getattr(tf, names[case.reduction])
    return {names[case.reduction]: lambda: scatter(data, indices, updates)}


def jax_methods(p: Problem) -> Methods:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    case, axis = p.case, p.case.attribute
    unchecked = {"mode": "promise_in_bounds"}
    distinct = {"unique_indices": case.pattern == "distinct", **unchecked}

    def index_of(indices: Any) -> Any:
        if case.has_tuples:
            batches = jnp.ix_(*map(jnp.arange, case.indices_shape[:-1]))[: case.batch_dims]
            return (*batches, *(indices[..., c] for c in range(case.k)))
        grid = list(jnp.ix_(*map(jnp.arange, case.indices_shape)))
        grid[axis] = indices
        return tuple(grid)

    def compute(data: Any, indices: Any, updates: Any) -> Any:
        selection = data.at[index_of(indices)]
        if not case.is_scatter:
            return selection.get(**unchecked)
        name = "set" if case.reduction == "none" else case.reduction
        return getattr(selection, name)(updates, **distinct)

    def take_along_axis(data: Any, indices: Any, _: Any) -> Any:
        return jnp.take_along_axis(data, indices, axis, **unchecked)

    arrays = [None if a is None else jnp.asarray(a) for a in (p.data, p.indices, p.updates)]
    methods: Methods = {}
    functions = {"at[...]": compute}
    if case.operator == "gather_elements":
        functions["take_along_axis"] = take_along_axis
    for name, function in functions.items():
        jitted = jax.jit(function)
        methods[f"jit({name})"] = lambda call=jitted: call(*arrays).block_until_ready()
        methods[f"jit({name}), output reused"] = _Donated(jax, function, arrays, case.output)
    return methods


class _Donated:
    """A jitted function whose output reuses the memory of its last output."""

    def __init__(self, jax: Any, function: Any, arrays: Any, shape: tuple[int, ...]) -> None:
        self._arrays = arrays
        self._last = jax.numpy.zeros(shape, arrays[0].dtype)
        self._call = jax.jit(
            lambda _, *arguments: function(*arguments), donate_argnums=0, keep_unused=True
        )

    def __call__(self) -> Any:
        self._last = self._call(self._last, *self._arrays).block_until_ready()
        return self._last


def as_array(answer: Any) -> np.ndarray:
    """Return a peer's result as an array, whatever its type."""
    if hasattr(answer, "numpy") and not isinstance(answer, np.ndarray):
        answer = answer.numpy()
    elif hasattr(answer, "to_numpy"):
        answer = answer.to_numpy()
    return np.asarray(answer)
