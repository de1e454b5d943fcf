"""The other libraries, each by its fastest methods: one function per peer.

A peer takes a Problem and returns its variants: name -> a call that computes the result. One-time
setup (sessions, compilation, tensors over our memory, reused outputs) is not timed;
work that depends on the values of indices is. Raises NotOfferedError with the
reason if a peer has no such operation, ImportError if it is not installed.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from problems import UFUNCS, Array, Problem
from timing import Call

Methods = dict[str, Call]

THREADS = 2


class NotOfferedError(Exception):
    """A peer cannot compute a case; the reason is the message."""


def numpy_methods(p: Problem) -> Methods:
    return _numpy_scatters(p) if p.case.is_scatter else _numpy_gathers(p)


def _numpy_gathers(p: Problem) -> Methods:
    case, data, out = p.case, p.data, np.empty(p.case.output, p.data.dtype)
    mode = "wrap" if case.pattern == "negative" else "clip"  # clip maps them to 0
    if not case.has_tuples:
        methods: Methods = {
            "take_along_axis": lambda: np.take_along_axis(data, p.indices, case.attribute)
        }
    else:
        batches = np.ix_(*map(np.arange, case.indices_shape[:-1]))[: case.batch_dims]
        methods = {"fancy indexing": lambda: data[(*batches, *p.components)]}
        if case.k == 1 and not case.batch_dims:
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
    if case.has_tuples:
        positions = p.components
    else:
        grid = list(np.ix_(*map(np.arange, case.indices_shape)))
        grid[case.attribute] = p.indices
        positions = tuple(grid)
    flat_out, flat_updates = (
        out.reshape(-1, *_slice_shape(p)),
        updates.reshape(-1, *_slice_shape(p)),
    )
    flat = None if case.pattern == "negative" else _linear_indices(p)

    def fresh() -> Array:
        np.copyto(out, data)
        return out

    def assign() -> Array:
        fresh()[positions] = updates
        return out

    def at() -> Array:
        UFUNCS[case.reduction].at(fresh(), positions, updates)
        return out

    def flat_at() -> Array:
        fresh()
        UFUNCS[case.reduction].at(flat_out, flat().reshape(-1), flat_updates)
        return out

    def flat_assign() -> Array:
        fresh()
        flat_out[flat().reshape(-1)] = flat_updates
        return out

    def bincount() -> Array:
        return data + np.bincount(p.indices[:, 0], updates, len(data)).astype(data.dtype)

    if case.reduction == "none":
        return {"fancy assignment": assign} | ({"linear indices": flat_assign} if flat else {})
    methods: Methods = {"ufunc.at": at} | ({"linear indices, ufunc.at": flat_at} if flat else {})
    if case.reduction == "add" and data.ndim == 1 and data.dtype.kind == "f" and flat:
        methods["bincount"] = bincount
    return methods


def _slice_shape(p: Problem) -> tuple[int, ...]:
    case = p.case
    return case.data_shape[case.batch_dims + case.k :] if case.has_tuples else ()


def _linear_indices(p: Problem) -> Call:
    """Return a call that computes linear indices of the selected elements, into reused memory."""
    case, indices = p.case, p.indices
    if case.has_tuples:
        sizes = case.data_shape[: case.batch_dims + case.k]
        if len(sizes) == 1:
            return lambda: p.components[0]
        batches = np.ix_(*map(np.arange, case.indices_shape[:-1]))[: case.batch_dims]
        components = (*batches, *p.components)
        linear = np.empty(case.indices_shape[:-1], np.int64)
    else:
        sizes, linear = case.data_shape, np.empty(case.indices_shape, np.int64)
        components = tuple(
            indices if d == case.attribute else part
            for d, part in enumerate(np.ix_(*map(np.arange, case.indices_shape)))
        )
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
    attributes: dict[str, Any] = {}
    if case.operator == "gather_nd":
        attributes = {"batch_dims": case.attribute}
    elif not case.has_tuples:
        attributes = {"axis": case.attribute}
    if case.is_scatter:
        attributes["reduction"] = case.reduction
    models = {ONNX_NAMES[case.operator]: (attributes, _operands(p))}
    if case.operator == "gather_nd" and case.k == 1 and not case.batch_dims:
        models["Gather"] = ({"axis": 0}, {"data": p.data, "indices": p.indices[..., 0]})
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    options.log_severity_level = 3
    return {name: _onnx_call(ort, options, name, *model) for name, model in models.items()}


def _operands(p: Problem) -> dict[str, Array]:
    operands = {"data": p.data, "indices": p.indices}
    return operands if p.updates is None else {**operands, "updates": p.updates}


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


def _onnx_call(
    ort: Any, options: Any, operator: str, attributes: dict[str, Any], operands: dict[str, Array]
) -> Call:
    session = onnx_session(options, operator, attributes, operands)
    operands = {name: np.ascontiguousarray(array) for name, array in operands.items()}
    shape = tuple(session.get_outputs()[0].shape)
    out = ort.OrtValue.ortvalue_from_shape_and_type(shape, operands["data"].dtype.type)
    binding = session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in operands.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("output", out)

    def run() -> Any:
        session.run_with_iobinding(binding)
        return out

    run.operands = operands  # type: ignore[attr-defined]  # the values refer to their memory
    return run


def openvino_methods(p: Problem) -> Methods:
    import openvino as ov
    from openvino import opset15 as ops

    case = p.case
    operands = {name: np.ascontiguousarray(array) for name, array in _operands(p).items()}
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
    for linear, array in enumerate(operands.values()):
        request.set_input_tensor(linear, ov.Tensor(array, shared_memory=True))
    request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))

    def run() -> Array:
        request.infer()
        return out

    run.operands = operands  # type: ignore[attr-defined]  # the tensors refer to their memory
    return run


def polars_methods(p: Problem) -> Methods:
    import polars as pl

    case, data = p.case, p.data
    if not (case.has_tuples and case.k == 1 and not case.batch_dims and case.reduction == "none"):
        raise NotOfferedError("gathers and sets elements of one column, by one index each")
    if case.is_scatter and data.ndim > 1:
        raise NotOfferedError("sets scalars only")
    dtype = pl.Array(pl.Float32, data.shape[1]) if data.ndim == 2 else pl.Float32
    column = pl.Series(data, dtype=dtype)
    unsigned = pl.Series(p.indices[..., 0], dtype=pl.UInt32)  # its own index type
    signed = pl.Series(p.indices[..., 0])
    if case.is_scatter:
        values = pl.Series(p.updates)
        return {"Series.scatter": lambda: column.clone().scatter(signed, values)}
    return {
        "Series.gather(uint32)": lambda: column.gather(unsigned),
        "Series.gather(int64)": lambda: column.gather(signed),
    }


PEERS: dict[str, tuple[str, str]] = {
    "numpy": ("peers", "numpy_methods"),
    "onnxruntime": ("peers", "onnxruntime_methods"),
    "openvino": ("peers", "openvino_methods"),
    "torch": ("tensor_peers", "torch_methods"),
    "tensorflow": ("tensor_peers", "tensorflow_methods"),
    "jax": ("tensor_peers", "jax_methods"),
    "polars": ("peers", "polars_methods"),
}


def methods_of(peer: str) -> Callable[[Problem], Methods]:
    module, name = PEERS[peer]
    methods: Callable[[Problem], Methods] = getattr(import_module(module), name)
    return methods
