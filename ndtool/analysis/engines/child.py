"""The script of an engine's process: it runs one call on the engine; and the table of engines.

Its argument is the call, as JSON. Replies are lines of a file: first the engine's version, then for
each run the type of the output, and its place in the file of outputs, which has each different one.
The script imports nothing of the package ndtool.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Compute = Callable[[], Any]
_MAX_MESSAGE = 1000  # characters
_ALIGNMENT = 64  # of outputs in their file, in bytes
_PR_SET_PDEATHSIG = 1  # of prctl: sets the signal that is sent when the parent ends
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_REDUCTIONS = tuple(_UFUNCS)
_UFUNCS |= {"sub": np.subtract, "div": np.divide}


class NotOfferedError(Exception):
    """An engine does not support the call; the message says what it lacks."""


class Call(NamedTuple):
    """A call of an operator. title: its name in ONNX. version: its version, 0 if ONNX lacks it."""

    operator: str
    title: str
    version: int
    attributes: dict[str, Any]
    data: Array
    indices: Array
    updates: Array | None
    threads: int

    @property
    def operands(self) -> dict[str, Array]:
        """The inputs by their names."""
        operands = {"data": self.data, "indices": self.indices}
        return operands if self.updates is None else {**operands, "updates": self.updates}

    @property
    def axis(self) -> int:
        """The non-negative axis along which indices select."""
        return int(self.attributes.get("axis", self.batch_dims)) % max(self.data.ndim, 1)

    @property
    def reduction(self) -> str:
        """How an update is combined with the current value."""
        return str(self.attributes.get("reduction", "none"))

    def require_reduction(self, engine: str, names: Iterable[str], needs_self: bool = True) -> bool:
        """Refuse a reduction that an engine lacks; needs_self: also without current values."""
        is_first = self.attributes.get("duplicates") == "first"
        _refuse_if(is_first, f"{engine} may assign any duplicate")
        include_self = bool(self.attributes.get("include_self", True)) or self.reduction == "none"
        problem = f"{engine} has no reduction {self.reduction}"
        _refuse_if(self.reduction not in ("none", *names), problem)
        _refuse_if(needs_self and not include_self, f"{problem} without the current values")
        return include_self

    @property
    def batch_dims(self) -> int:
        """The number of leading axes that data and indices share."""
        return int(self.attributes.get("batch_dims", 0))

    @property
    def selectable(self) -> tuple[slice, ...]:
        """The region of data that indices can select: on other axes, as long as indices are."""
        sizes = enumerate(self.indices.shape)
        return tuple(slice(None) if d == self.axis else slice(n) for d, n in sizes)

    @property
    def index_arrays(self) -> tuple[Any, ...]:
        """The index arrays for data, one for each axis, as in NumPy."""
        indices = self.indices
        if self.operator.endswith("_nd"):
            batches = np.ix_(*map(np.arange, indices.shape[:-1]))[: self.batch_dims]
            return *batches, *np.moveaxis(indices, -1, 0)
        if self.operator in ("gather", "scatter"):
            batch, ids = self.data.shape[: self.axis], indices.shape[self.batch_dims :]
            outer = np.ix_(*map(np.arange, batch + ids))[: self.axis]
            shared = indices.shape[: self.batch_dims] + (1,) * (self.axis - self.batch_dims)
            return *outer, indices.reshape(shared + ids)
        grid = list(np.ix_(*map(np.arange, indices.shape)))
        grid[self.axis] = indices
        return tuple(grid)


def _numpy(_: Any, call: Call) -> Compute:
    """Call take, take_along_axis, indexing with arrays, or a ufunc's method `at`."""
    data, indices, axis = call.data, call.indices, call.axis
    if call.operator == "gather" and not call.batch_dims:
        return lambda: np.take(data, indices, axis)
    if call.operator == "gather_elements":
        return lambda: np.take_along_axis(data[call.selectable], indices, axis)
    _require_tuples(call, "NumPy")
    call.require_reduction("NumPy", _UFUNCS)
    index_arrays = call.index_arrays

    def compute() -> Any:
        if call.updates is None:
            return data[index_arrays]
        out = data.copy()
        if call.reduction == "none":
            out[index_arrays] = call.updates
        else:
            _UFUNCS[call.reduction].at(out, index_arrays, call.updates)
        return out

    return compute


def _refuse_if(condition: object, reason: str) -> None:
    """Raise NotOfferedError if an engine does not support a call."""
    if condition:
        raise NotOfferedError(reason)


def _require_tuples(call: Call, engine: str) -> None:
    empty = call.operator.endswith("_nd") and not call.indices.shape[-1]
    _refuse_if(empty, f"{engine} has no empty index tuples")


def _torch(torch: Any, call: Call) -> Compute:
    """Call indexing, gather, index_put, scatter and scatter_reduce, index_copy, _add, _reduce."""
    torch.set_num_threads(call.threads)
    operator, reduction, axis = call.operator, call.reduction, call.axis
    _require_tuples(call, "torch")
    dtype, rank = call.indices.dtype.name, call.indices.ndim
    has_integers = dtype in ("int32", "int64")
    _refuse_if(not has_integers, f"torch does not accept {dtype} indices: int32, int64")
    _refuse_if(call.batch_dims, "torch has no batch_dims")
    is_unknown = operator == "scatter_nd" and reduction not in ("none", "add")
    _refuse_if(is_unknown, f"torch has no {reduction} for index tuples")
    is_unknown = operator == "scatter" and rank != 1
    _refuse_if(is_unknown, f"torch has no {reduction} for indices of rank {rank}")
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin", "mean": "mean"}
    names |= {"sub": "sub"} if operator == "scatter" else {}
    is_sum = operator == "scatter" and reduction in ("add", "sub")
    needs_self = operator == "scatter_nd" or (is_sum and reduction == "add")
    keywords = {"include_self": call.require_reduction("torch", names, needs_self)}
    data, indices = _tensor(torch, call.data), _tensor(torch, call.indices)
    updates = None if call.updates is None else _tensor(torch, call.updates)
    by_axis, name = (axis, indices, updates), names.get(reduction)
    compute: Compute = {
        "gather": lambda: data[(*[slice(None)] * axis, indices)],
        "gather_nd": lambda: data[indices.unbind(-1)],
        "gather_elements": lambda: torch.gather(data, axis, indices),
        "scatter_nd": lambda: data.index_put(
            indices.unbind(-1), updates, accumulate=reduction == "add"
        ),
        "scatter": lambda: data.index_reduce(*by_axis, name, **keywords),
        "scatter_elements": lambda: torch.scatter_reduce(data, *by_axis, name, **keywords),
    }[operator]
    if is_sum:
        compute = partial(data.index_add, *by_axis, alpha=1 if reduction == "add" else -1)
    elif name is None and operator == "scatter":
        compute = partial(data.index_copy, *by_axis)
    elif name is None and operator == "scatter_elements":
        compute = partial(torch.scatter, data, *by_axis)
    return lambda: _from_torch(torch, compute())


def _tensor(torch: Any, array: Array) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _from_torch(torch: Any, tensor: Any) -> Array:
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy()).view(_dtype("bfloat16"))
    return np.asarray(tensor.numpy())


def _tensorflow(tf: Any, call: Call) -> Compute:
    """Call gather, gather_nd, take_along_axis or tensor_scatter_nd_update, _add and so on."""
    tf.config.threading.set_intra_op_parallelism_threads(call.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    operator, axis, b = call.operator, call.axis, call.batch_dims
    _refuse_if(operator == "scatter_elements", "tensorflow has no ScatterElements")
    is_unknown = operator == "scatter" and (axis or b)
    _refuse_if(is_unknown, "tensorflow scatters along the first axis only")
    _refuse_if(operator == "scatter_nd" and b, "tensorflow has no batch_dims for updates")
    names = {"none": "update", "add": "add", "sub": "sub", "max": "max", "min": "min"}
    call.require_reduction("tensorflow", names)
    data, indices = tf.constant(call.data), tf.constant(call.indices)
    updates = None if call.updates is None else tf.constant(call.updates)
    tuples = indices[..., None] if operator == "scatter" else indices
    take = tf.experimental.numpy.take_along_axis
    compute: Compute = {
        "gather": lambda: tf.gather(data, indices, axis=axis, batch_dims=b),
        "gather_nd": lambda: tf.gather_nd(data, indices, b),
        "gather_elements": lambda: take(data[call.selectable], indices, axis),
    }.get(operator) or partial(
        getattr(tf, f"tensor_scatter_nd_{names[call.reduction]}"), data, tuples, updates
    )
    return lambda: compute().numpy()


def _jax(jax: Any, call: Call) -> Compute:
    """Call take, take_along_axis, indexing under vmap, or a method of `data.at[...]`."""
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    _require_tuples(call, "jax")
    names = {"none": "set", "sub": "subtract", "div": "divide"}
    call.require_reduction("jax", (*_REDUCTIONS, *names))
    data, indices = jnp.asarray(call.data), jnp.asarray(call.indices)
    updates = None if call.updates is None else jnp.asarray(call.updates)

    def gather_tuples(data: Any, indices: Any) -> Any:
        return data[tuple(jnp.moveaxis(indices, -1, 0))]

    for _ in range(call.batch_dims):
        gather_tuples = jax.vmap(gather_tuples)

    def scatter() -> Any:
        method = names.get(call.reduction, call.reduction)
        return getattr(data.at[call.index_arrays], method)(updates)

    compute: Compute = {
        "gather": lambda: (
            data[call.index_arrays] if call.batch_dims else jnp.take(data, indices, call.axis)
        ),
        "gather_nd": lambda: gather_tuples(data, indices),
        "gather_elements": lambda: jnp.take_along_axis(data[call.selectable], indices, call.axis),
    }.get(call.operator, scatter)
    return lambda: np.asarray(compute())


def _openvino(ov: Any, call: Call) -> Compute:
    """Compile a model of one node."""
    ops: Any = import_module("openvino.opset15")
    operands = list(call.operands.values())
    inputs = [ops.parameter(array.shape, array.dtype.type) for array in operands]
    reduction = {"add": "sum", "mul": "prod"}.get(call.reduction, call.reduction)
    axis = np.array(call.attributes.get("axis", 0))
    if call.operator == "gather_nd":
        node = ops.gather_nd(*inputs, batch_dims=call.batch_dims)
    elif call.operator == "gather":
        node = ops.gather(*inputs, axis, call.batch_dims)
    elif call.operator == "gather_elements":
        node = ops.gather_elements(*inputs, int(axis))
    elif call.batch_dims:
        raise NotOfferedError("openvino has no batch_dims for updates")
    elif call.operator == "scatter":
        _refuse_if(reduction != "none", f"ScatterUpdate has no {call.reduction}")
        node = ops.scatter_update(*inputs, axis)
    elif call.operator == "scatter_nd":
        call.require_reduction("ScatterNDUpdate", (*_REDUCTIONS, "sub"))
        node = ops.scatter_nd_update(*inputs, reduction=reduction)
    else:
        init = call.require_reduction("ScatterElementsUpdate", (*_REDUCTIONS, "mean"), False)
        node = ops.scatter_elements_update(*inputs, axis, reduction=reduction, use_init_val=init)
    settings = {"INFERENCE_NUM_THREADS": call.threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.compile_model(ov.Model([node], inputs, "one node"), "CPU", settings)
    return lambda: compiled(operands)[0]


def _onnxruntime(ort: Any, call: Call) -> Compute:
    """Create a CPU session for a model of one node."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = call.threads, 1
    options.log_severity_level = 4
    session = ort.InferenceSession(
        _model(call).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, call.operands)[0]


def _onnx(_: Any, call: Call) -> Compute:
    """Run a model of one node in the reference evaluator of the onnx package."""
    reference: Any = import_module("onnx.reference")
    evaluator = reference.ReferenceEvaluator(_model(call))
    return lambda: evaluator.run(None, call.operands)[0]


def _model(call: Call) -> Any:
    """Return a model of one node, of the newest operator version that ndtool knows."""
    _refuse_if(not call.version, f"ONNX has no {call.title}")
    call.require_reduction("ONNX", _REDUCTIONS)
    _refuse_if(
        call.batch_dims and call.operator != "gather_nd", f"ONNX's {call.title} has no batch_dims"
    )
    helper: Any = import_module("onnx.helper")
    attributes = {name: value for name, value in call.attributes.items() if value != "none"}
    for name in ("include_self", "duplicates", *["batch_dims"] * (not call.batch_dims)):
        attributes.pop(name, None)  # ONNX has no such attributes
    inputs: dict[str, Any] = {}
    try:
        for name, array in call.operands.items():
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs[name] = helper.make_tensor_value_info(name, element, array.shape)
    except (KeyError, ValueError):
        raise NotOfferedError(f"ONNX has no {call.data.dtype}") from None
    element = inputs["data"].type.tensor_type.elem_type
    output = helper.make_tensor_value_info("output", element, None)
    node = helper.make_node(call.title, list(inputs), ["output"], **attributes)
    graph = helper.make_graph([node], "one node", list(inputs.values()), [output])
    opset = helper.make_opsetid("", call.version)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


class Engine(NamedTuple):
    """An engine.

    modules: the modules that it needs, its own first. packages: their names for pip. compile:
    returns the function that computes a call. parallel: whether it can use several threads.
    """

    modules: tuple[str, ...]
    packages: str
    compile: Callable[[Any, Call], Compute]
    parallel: bool = True


ENGINES = {
    "onnxruntime": Engine(("onnxruntime", "onnx"), "onnxruntime onnx", _onnxruntime),
    "openvino": Engine(("openvino",), "openvino", _openvino),
    "torch": Engine(("torch",), "torch", _torch),
    "tensorflow": Engine(("tensorflow",), "tensorflow", _tensorflow),
    "jax": Engine(("jax",), "jax", _jax),
    "numpy": Engine(("numpy",), "numpy", _numpy, parallel=False),
    "onnx": Engine(("onnx",), "onnx", _onnx, parallel=False),
}


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        extended: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return extended


def _array(description: dict[str, Any], engine: str) -> Array:
    """Map an input, copy-on-write, and align it."""
    dtype, shape = _dtype(description["dtype"]), tuple(description["shape"])
    _refuse_if(
        dtype.kind == "V" and dtype.isbuiltin != 2 and engine != "numpy",
        f"{engine} has no {description['type']}",
    )
    if 0 in shape:
        return np.empty(shape, dtype)
    with open(description["fd"], "rb", closefd=False) as file:
        mapped = np.memmap(file, dtype, "c", description["offset"], shape, description["order"])
    return np.require(np.asarray(mapped), requirements=("C", "A"))


def _call(job: dict[str, Any]) -> Call:
    data, indices, *updates = (_array(description, job["engine"]) for description in job["arrays"])
    keys = ("operator", "title", "version", "attributes", "threads")
    update = updates[0] if updates else None
    return Call(**{key: job[key] for key in keys}, data=data, indices=indices, updates=update)


def main() -> None:
    """Run a call several times, with one processor for each thread."""
    job = json.loads(sys.argv[1])
    if sys.platform == "linux":  # an engine may hang: the kernel kills it with its parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(os, "sched_setaffinity"):  # some engines have no setting for threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    modules: dict[str, Any] = sys.modules
    modules["openvino_telemetry"] = None  # blocks the import

    def report(**fields: Any) -> None:
        os.write(job["replies"], json.dumps(fields).encode() + b"\n")

    try:
        engine = import_module(job["engine"])
    except ImportError as exc:
        report(missing=str(exc)[:_MAX_MESSAGE])
        return
    report(version=getattr(engine, "__version__", ""))
    places: dict[str, int] = {}
    try:
        compute = ENGINES[job["engine"]].compile(engine, _call(job))
        for _ in range(job["runs"]):
            array, place = np.asarray(compute()), 0
            if array.nbytes == job["nbytes"] and not array.dtype.hasobject:
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                digest = hashlib.blake2b(flat.data).hexdigest()
                if digest not in places:
                    places[digest] = len(places) * -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
                    with open(job["output"], "wb", closefd=False) as file:
                        file.seek(places[digest])
                        flat.tofile(file)
                place = places[digest]
            report(dtype=array.dtype.name, shape=array.shape, place=place)
    except NotOfferedError as exc:
        report(refused=f"not offered: {exc}")
    except Exception as exc:
        message = " ".join(str(exc).split()) or type(exc).__name__
        report(refused=message[:_MAX_MESSAGE])


if __name__ == "__main__":
    main()
