"""The other libraries, each by its fastest methods: one function per peer.

A peer takes a Problem and returns its variants: name -> a call that computes the result. One-time
setup (sessions, compilation, tensors over our memory, reused outputs) is not timed;
work that depends on the values of indices is. Raises NotOfferedError with the
reason if a peer has no such operation, ImportError if it is not installed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from problems import Array, Problem, update
from timing import Call

Methods = dict[str, Call]

THREADS = 2


class NotOfferedError(Exception):
    """A peer cannot compute a case; the reason is the message."""


def numpy_methods(p: Problem) -> Methods:
    return _numpy_scatters(p) if p.case.is_scatter else _numpy_gathers(p)


def _numpy_gathers(p: Problem) -> Methods:
    case, data, out = p.case, p.data, np.empty(p.case.output, p.data.dtype)
    if not case.has_tuples:
        methods: Methods = {
            "take_along_axis": lambda: np.take_along_axis(data, p.indices, case.attribute)
        }
    else:
        positions = p.positions
        methods = {"fancy indexing": lambda: data[positions]}
        if case.k == 1 and not case.batch_dims:
            mode = "wrap" if case.pattern == "negative" else "clip"  # clip maps them to 0
            first = p.indices[..., 0]
            methods[f"take(out, {mode})"] = lambda: np.take(data, first, 0, out=out, mode=mode)
            return methods
    if case.pattern == "negative" or not data.flags.c_contiguous:
        return methods
    linear, rows = _linear_indices(p), data.reshape(-1, *_slice_shape(p))
    methods["linear indices, take(out, clip)"] = lambda: np.take(
        rows, linear(), 0, out=out, mode="clip"
    )
    return methods


def _numpy_scatters(p: Problem) -> Methods:
    case, data, updates = p.case, p.data, p.updates
    out = np.empty(case.output, data.dtype)
    positions, slice_shape = p.positions, _slice_shape(p)
    flat_out, flat_updates = out.reshape(-1, *slice_shape), updates.reshape(-1, *slice_shape)

    def scatter(target: Array, selected: Any, new: Array) -> Array:
        np.copyto(out, data)
        update(target, selected, new, case.reduction)
        return out

    methods: Methods = {"positions": lambda: scatter(out, positions, updates)}
    if case.pattern != "negative":
        flat = _linear_indices(p)
        methods["linear indices"] = lambda: scatter(flat_out, flat().reshape(-1), flat_updates)
    return methods


def _slice_shape(p: Problem) -> tuple[int, ...]:
    case = p.case
    return case.data_shape[case.batch_dims + case.k :] if case.has_tuples else ()


def _linear_indices(p: Problem) -> Call:
    """Return a call that computes linear indices of the selected elements, into reused memory."""
    case, components = p.case, p.positions
    sizes, shape = case.data_shape, case.indices_shape
    if case.has_tuples:
        sizes, shape = sizes[: case.batch_dims + case.k], shape[:-1]
        if len(sizes) == 1:
            return lambda: components[0]
    linear = np.empty(shape, np.int64)
    steps = [int(np.prod(sizes[d + 1 :], dtype=np.int64)) for d in range(len(sizes))]

    def compute() -> Array:
        # in 64 bits, whatever the type of the indices
        np.multiply(components[0], steps[0], out=linear, dtype=np.int64, casting="unsafe")
        for part, step in zip(components[1:], steps[1:], strict=True):
            if step > 1:
                part = np.multiply(part, step, dtype=np.int64, casting="unsafe")
            np.add(linear, part, out=linear, dtype=np.int64, casting="unsafe")
        return linear

    return compute


ONNX_NAMES = {
    "gather_nd": "GatherND",
    "scatter_nd": "ScatterND",
    "gather_elements": "GatherElements",
    "scatter_elements": "ScatterElements",
}


def onnxruntime_methods(p: Problem) -> Methods:
    import onnxruntime as ort

    case = p.case
    attributes: dict[str, Any] = {} if case.has_tuples else {"axis": case.attribute}
    if case.operator == "gather_nd":
        attributes = {"batch_dims": case.attribute}
    if case.is_scatter:
        attributes["reduction"] = case.reduction
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    options.log_severity_level = 3
    operands = _operands(p)
    session = onnx_session(options, ONNX_NAMES[case.operator], attributes, operands)
    shape = tuple(session.get_outputs()[0].shape)
    out = ort.OrtValue.ortvalue_from_shape_and_type(shape, p.data.dtype.type)
    binding = session.io_binding()
    for name, array in operands.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    binding.bind_ortvalue_output("output", out)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return out

    run.operands = operands  # type: ignore[attr-defined]  # the values refer to their memory
    return {ONNX_NAMES[case.operator]: run}


def _operands(p: Problem) -> dict[str, Array]:
    arrays = {"data": p.data, "indices": p.indices, "updates": p.updates}
    return {name: np.ascontiguousarray(a) for name, a in arrays.items() if a is not None}


def onnx_session(
    options: Any, operator: str, attributes: dict[str, Any], operands: dict[str, Array]
) -> Any:
    """Return an onnxruntime session of a model of one node."""
    import onnxruntime as ort
    from onnx import helper

    element = helper.np_dtype_to_tensor_dtype
    inputs = [
        helper.make_tensor_value_info(name, element(array.dtype), array.shape)
        for name, array in operands.items()
    ]
    output = helper.make_tensor_value_info("output", element(operands["data"].dtype), None)
    node = helper.make_node(operator, list(operands), ["output"], **attributes)
    graph = helper.make_graph([node], "one node", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def openvino_methods(p: Problem) -> Methods:
    import openvino as ov
    from openvino import opset15 as ops

    case, operands = p.case, _operands(p)
    inputs = [ops.parameter(a.shape, a.dtype.type, name) for name, a in operands.items()]
    reduction = {"add": "sum", "none": "none", "max": "max"}.get(case.reduction)
    nodes: dict[str, Any] = {}
    if case.operator == "gather_nd":
        nodes["GatherND"] = ops.gather_nd(*inputs, batch_dims=case.batch_dims)
        if case.k == 1:
            squeezed = ops.squeeze(inputs[1], np.array([-1]))
            axis = np.array(case.batch_dims)
            nodes["Gather"] = ops.gather(inputs[0], squeezed, axis, case.batch_dims)
    elif case.operator == "gather_elements":
        nodes["GatherElements"] = ops.gather_elements(*inputs, case.attribute)
    elif case.operator == "scatter_nd":
        nodes["ScatterNDUpdate"] = ops.scatter_nd_update(*inputs, reduction=reduction)
    else:
        nodes["ScatterElementsUpdate"] = ops.scatter_elements_update(
            *inputs, np.array(case.attribute), reduction=reduction
        )
    return {
        name: _openvino_call(ov, ov.Model([node], inputs, name), operands, case.output)
        for name, node in nodes.items()
    }


def _openvino_call(ov: Any, model: Any, operands: dict[str, Array], shape: tuple[int, ...]) -> Call:
    settings = {
        "INFERENCE_NUM_THREADS": THREADS,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    out = np.zeros(shape, operands["data"].dtype)
    for number, array in enumerate(operands.values()):
        request.set_input_tensor(number, ov.Tensor(array, shared_memory=True))
    request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))

    def run() -> Array:
        request.infer()
        return out

    run.operands = operands  # type: ignore[attr-defined]  # the tensors refer to their memory
    return run


def torch_methods(p: Problem) -> Methods:
    import torch

    torch.set_num_threads(THREADS)
    case, data, indices = p.case, torch.from_numpy(p.data), torch.from_numpy(p.indices)
    out, axis = torch.empty(case.output, dtype=data.dtype), case.attribute
    updates = None if p.updates is None else torch.from_numpy(p.updates)
    reduce = {"max": "amax"}.get(case.reduction)

    def reduced(target: Any, index: Any) -> Any:
        if reduce:
            return target.scatter_reduce_(axis, index, updates, reduce)
        return target.scatter_add_(axis, index, updates)

    if not case.has_tuples:
        if updates is None:
            return {
                "gather(out)": lambda: torch.gather(data, axis, indices, out=out),
                "gather": lambda: torch.gather(data, axis, indices),
            }
        return {
            "scatter along an axis": lambda: reduced(out.copy_(data), indices),
            "scatter along an axis, new output": lambda: reduced(data.clone(), indices),
        }
    parts, axes = indices.unbind(-1), case.batch_dims + case.k
    if case.batch_dims:
        parts = (torch.arange(case.data_shape[0]).unsqueeze(1), *parts)
    number = torch.empty(parts[-1].shape, dtype=torch.int64)
    rows, flat_out = data.flatten(0, axes - 1), out if updates is None else out.flatten(0, axes - 1)

    def linear() -> Any:
        if axes == 1:
            return parts[0]
        return torch.add(parts[1], parts[0], alpha=case.data_shape[1], out=number).flatten()

    def scatter() -> Any:
        out.copy_(data)
        if case.reduction == "none":
            flat_out.index_copy_(0, linear(), updates)
        else:
            reduced(flat_out, linear().reshape(-1, *[1] * (updates.ndim - 1)).expand_as(updates))
        return out

    def gather() -> Any:
        torch.index_select(rows, 0, linear(), out=out.view(-1, *rows.shape[1:]))
        return out

    if updates is not None:
        return {"linear indices": scatter}
    return {
        "linear indices": gather,
        "linear indices, new output": lambda: torch.index_select(rows, 0, linear().flatten()).view(
            out.shape
        ),
    }


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
    name = {"none": "update"}.get(case.reduction, case.reduction)
    updates, scatter = tf.constant(p.updates), getattr(tf, f"tensor_scatter_nd_{name}")
    return {name: lambda: scatter(data, indices, updates)}


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
        if case.operator == "gather_elements":
            return jnp.take_along_axis(data, indices, axis, **unchecked)
        selection = data.at[index_of(indices)]
        if not case.is_scatter:
            return selection.get(**unchecked)
        name = "set" if case.reduction == "none" else case.reduction
        return getattr(selection, name)(updates, **distinct)

    arrays = [None if a is None else jnp.asarray(a) for a in (p.data, p.indices, p.updates)]
    jitted = jax.jit(compute)
    # The output reuses the memory of the last one, which is donated.
    reusing = jax.jit(lambda _, *arrays: compute(*arrays), donate_argnums=0, keep_unused=True)
    last = [jnp.zeros(case.output, arrays[0].dtype)]

    def reuse() -> Any:
        last[0] = reusing(last[0], *arrays).block_until_ready()
        return last[0]

    return {"jit": lambda: jitted(*arrays).block_until_ready(), "jit, output reused": reuse}


def polars_methods(p: Problem) -> Methods:
    import polars as pl

    case, data = p.case, p.data
    if case.is_scatter or not case.has_tuples or case.k > 1 or case.batch_dims:
        raise NotOfferedError("gathers elements of one column, by one index each")
    dtype = pl.Array(pl.Float32, data.shape[1]) if data.ndim == 2 else pl.Float32
    column = pl.Series(data, dtype=dtype)
    unsigned = pl.Series(p.indices[..., 0], dtype=pl.UInt32)  # its own index type
    signed = pl.Series(p.indices[..., 0])
    return {
        "Series.gather(uint32)": lambda: column.gather(unsigned),
        "Series.gather(int64)": lambda: column.gather(signed),
    }


PEERS: dict[str, Callable[[Problem], Methods]] = {
    "numpy": numpy_methods, "onnxruntime": onnxruntime_methods, "openvino": openvino_methods,
    "torch": torch_methods, "tensorflow": tensorflow_methods, "jax": jax_methods,
    "polars": polars_methods,
}  # fmt: skip


def as_array(answer: Any) -> np.ndarray:
    """Return a peer's result as an array, whatever its type."""
    if hasattr(answer, "numpy") and not isinstance(answer, np.ndarray):
        answer = answer.numpy()
    elif hasattr(answer, "to_numpy"):
        answer = answer.to_numpy()
    return np.asarray(answer)
