"""The script of an engine's process: it runs one call on the engine; and the table of engines.

It receives the call on a connection, whose descriptor is its argument, and replies first with the
engine's version, then for each run with the type of the output, and its place in the file of
outputs, which has each different one. The script imports nothing of the package ndtool.
"""

import ctypes
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Compute = Callable[[], Any]
_MAX_MESSAGE = 1000  # characters
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_UFUNCS |= {"sub": np.subtract, "div": np.divide}


class NotOfferedError(Exception):
    """An engine does not support the call; the message says what it lacks."""


class Call(NamedTuple):
    """A call of an operator. title: its name in ONNX. version: its version, 0 if ONNX lacks it.

    axis: the axis along which indices select, not negative. The other attributes are ndtool's.
    """

    operator: str
    title: str
    version: int
    threads: int
    axis: int
    batch_dims: int
    reduction: str
    include_self: bool
    duplicates: str
    data: Array
    indices: Array
    updates: Any = None

    @property
    def operands(self) -> dict[str, Array]:
        """The inputs by their names."""
        operands = {"data": self.data, "indices": self.indices, "updates": self.updates}
        return {name: array for name, array in operands.items() if array is not None}

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


def _refuse_if(condition: object, reason: str) -> None:
    """Raise NotOfferedError if an engine does not support a call."""
    if condition:
        raise NotOfferedError(reason)


def _numpy(_: Any, call: Call) -> Compute:
    """Index with arrays, assign to them, or call a ufunc's method `at`."""
    index_arrays = call.index_arrays

    def scatter() -> Array:
        out = call.data.copy()
        if call.reduction == "none":
            out[index_arrays] = call.updates
        else:
            _UFUNCS[call.reduction].at(out, index_arrays, call.updates)
        return out

    return scatter if call.updates is not None else lambda: call.data[index_arrays]


def _jax(jax: Any, call: Call) -> Compute:
    """Index with arrays, or call a method of `data.at[...]`."""
    jax.config.update("jax_enable_x64", True)
    data, index_arrays = jax.numpy.asarray(call.data), call.index_arrays
    if call.updates is None:
        return lambda: data[index_arrays]
    method = {"none": "set", "sub": "subtract", "div": "divide"}.get(call.reduction, call.reduction)
    return lambda: getattr(data.at[index_arrays], method)(call.updates)


def _torch(torch: Any, call: Call) -> Compute:
    """Call indexing, gather, index_put, scatter and scatter_reduce, index_copy, _add, _reduce."""
    torch.set_num_threads(call.threads)
    operator, reduction, axis = call.operator, call.reduction, call.axis
    is_unknown = call.indices.dtype.name not in ("int32", "int64")
    _refuse_if(is_unknown, "torch has indices of int32 and int64 only")
    is_sum = operator == "scatter" and reduction in ("add", "sub")
    _refuse_if(is_sum and not call.include_self, f"torch has no include_self in {reduction}")

    def tensor(array: Array) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    data, indices, *rest = map(tensor, call.operands.values())
    by_axis = axis, indices, *rest
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin", "mean": "mean"}
    reduced = {"reduce": names.get(reduction), "include_self": call.include_self}
    calls: dict[tuple[str, bool], Callable[[], Any]] = {  # by operator, and whether it reduces
        ("gather", False): lambda: data[(*[slice(None)] * axis, indices)],
        ("gather_nd", False): lambda: data[indices.unbind(-1)],
        ("gather_elements", False): lambda: torch.gather(data, axis, indices),
        ("scatter_nd", False): lambda: data.index_put(indices.unbind(-1), *rest),
        ("scatter_nd", True): lambda: data.index_put(indices.unbind(-1), *rest, True),
        ("scatter", False): lambda: data.index_copy(*by_axis),
        ("scatter", True): lambda: data.index_reduce(*by_axis, **reduced),
        ("scatter_elements", False): lambda: torch.scatter(data, *by_axis),
        ("scatter_elements", True): lambda: torch.scatter_reduce(data, *by_axis, **reduced),
    }
    compute = calls[operator, reduction != "none"]
    if is_sum:
        compute = partial(data.index_add, *by_axis, alpha=1 if reduction == "add" else -1)
    if call.data.dtype.name == "bfloat16":
        return lambda: compute().contiguous().view(torch.int16).numpy().view(call.data.dtype)
    return lambda: compute().numpy()


def _tensorflow(tf: Any, call: Call) -> Compute:
    """Call gather, gather_nd, take_along_axis or tensor_scatter_nd_update, _add and so on."""
    tf.config.threading.set_intra_op_parallelism_threads(call.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    operator, axis, b = call.operator, call.axis, call.batch_dims
    _refuse_if(operator == "scatter" and axis, "tensorflow scatters along the first axis only")
    data, indices, *rest = map(tf.constant, call.operands.values())
    tuples = indices[..., None] if operator == "scatter" else indices
    take = tf.experimental.numpy.take_along_axis  # of as many rows as indices have
    region = tuple(slice(None if d == axis else n) for d, n in enumerate(call.indices.shape))
    method = "update" if call.reduction == "none" else call.reduction
    compute: Compute = {
        "gather": lambda: tf.gather(data, indices, axis=axis, batch_dims=b),
        "gather_nd": lambda: tf.gather_nd(data, indices, b),
        "gather_elements": lambda: take(data[region], indices, axis),
    }.get(operator) or partial(getattr(tf, f"tensor_scatter_nd_{method}"), data, tuples, *rest)
    return lambda: compute().numpy()


def _openvino(ov: Any, call: Call) -> Compute:
    """Compile a model of one node."""
    ops: Any = import_module("openvino.opset15")
    operands = list(call.operands.values())
    inputs = [ops.parameter(array.shape, array.dtype.type) for array in operands]
    reduction = {"add": "sum", "mul": "prod"}.get(call.reduction, call.reduction)
    axis = np.array(call.axis)
    make_node: Any = {
        "gather_nd": partial(ops.gather_nd, batch_dims=call.batch_dims),
        "gather": lambda *values: ops.gather(*values, axis, call.batch_dims),
        "gather_elements": partial(ops.gather_elements, axis=call.axis),
        "scatter": lambda *values: ops.scatter_update(*values, axis),
        "scatter_nd": partial(ops.scatter_nd_update, reduction=reduction),
        "scatter_elements": lambda *values: ops.scatter_elements_update(
            *values, axis, reduction=reduction, use_init_val=call.include_self
        ),
    }[call.operator]
    settings = {"INFERENCE_NUM_THREADS": call.threads, "INFERENCE_PRECISION_HINT": "f32"}
    model = ov.Model([make_node(*inputs)], inputs, "one node")
    compiled = ov.compile_model(model, "CPU", settings)
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
    helper: Any = import_module("onnx.helper")
    attributes: dict[str, Any] = {} if call.operator.endswith("_nd") else {"axis": call.axis}
    attributes |= {"batch_dims": call.batch_dims} if call.batch_dims else {}
    attributes |= {} if call.reduction == "none" else {"reduction": call.reduction}
    inputs = {
        name: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in call.operands.items()
    }
    element = inputs["data"].type.tensor_type.elem_type
    output = helper.make_tensor_value_info("output", element, None)
    node = helper.make_node(call.title, list(inputs), ["output"], **attributes)
    graph = helper.make_graph([node], "one node", list(inputs.values()), [output])
    opsets = [helper.make_opsetid("", call.version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


class Engine(NamedTuple):
    """An engine.

    packages: the modules that it needs, its own first, which are also their names for pip. compile:
    returns the function that computes a call. offers: by operator, the reductions and attributes.
    parallel: whether it can use several threads.
    """

    packages: str
    compile: Callable[[Any, Call], Compute]
    offers: dict[str, str]
    parallel: bool = True


_BATCHED = {"gather_nd": "batch_dims", "gather": "batch_dims", "gather_elements": ""}
_UNBATCHED = dict.fromkeys(_BATCHED, "")
_SCATTERS = ("scatter_nd", "scatter", "scatter_elements")
_NUMPY = _BATCHED | dict.fromkeys(_SCATTERS, " ".join(["batch_dims", *_UFUNCS]))
_ONNX = {**_UNBATCHED, "gather_nd": "batch_dims"}
_ONNX |= dict.fromkeys(("scatter_nd", "scatter_elements"), "add mul max min")
_OPENVINO = {**_BATCHED, "scatter": "", "scatter_nd": "add mul max min sub"}
_OPENVINO["scatter_elements"] = _REDUCED = "add mul max min mean include_self"
_TORCH = {**_UNBATCHED, "scatter_nd": "add", "scatter": f"sub {_REDUCED}"}
_TORCH["scatter_elements"] = _REDUCED
_TENSORFLOW = _BATCHED | dict.fromkeys(("scatter_nd", "scatter"), "add sub max min")
ENGINES = {
    "onnxruntime": Engine("onnxruntime onnx", _onnxruntime, _ONNX),
    "openvino": Engine("openvino", _openvino, _OPENVINO),
    "torch": Engine("torch", _torch, _TORCH),
    "tensorflow": Engine("tensorflow", _tensorflow, _TENSORFLOW),
    "jax": Engine("jax", _jax, _NUMPY),
    "numpy": Engine("numpy", _numpy, _NUMPY, parallel=False),
    "onnx": Engine("onnx", _onnx, _ONNX, parallel=False),
}


def prepare(name: str, module: Any, call: Call) -> Compute:
    """Return the function that computes a call; NotOfferedError says what an engine lacks."""
    engine, reduces = ENGINES[name], call.reduction != "none"
    _refuse_if(call.operator not in engine.offers, f"{name} has no {call.title}")
    needed = {
        call.reduction: reduces,
        "include_self": reduces and not call.include_self,
        "batch_dims": call.batch_dims,
        "duplicates": call.duplicates == "first",
        "empty tuples": call.operator == "scatter_nd" and not call.indices.shape[-1],
    }
    for word in filter(needed.get, needed):
        is_offered = word in engine.offers[call.operator].split()
        _refuse_if(not is_offered, f"{name} has no {word} in {call.title}")
    return engine.compile(module, call)


def _array(fd: int, offset: int, dtype: Any, shape: tuple[int, ...], order: Any) -> Array:
    """Map an input, copy-on-write, and align it."""
    if 0 in shape:
        return np.empty(shape, dtype)
    with open(fd, "rb", closefd=False) as file:
        mapped = np.memmap(file, dtype, "c", offset, shape, order)
    return np.require(np.asarray(mapped), requirements=("C", "A"))


def main(connection: Any) -> None:
    """Run a call several times, with one processor for each thread."""
    if sys.platform == "linux":  # an engine may hang: the kernel kills it with its parent
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    name, runs, output, nbytes, fields, arrays = connection.recv()
    if hasattr(os, "sched_setaffinity"):  # some engines have no setting for threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: fields["threads"]])
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # blocks the import
    try:
        engine = import_module(name)
    except ImportError as exc:
        connection.send({"missing": str(exc)[:_MAX_MESSAGE]})
        return
    connection.send({"version": getattr(engine, "__version__", "")})
    places: dict[str, int] = {}
    try:
        operands = {role: _array(*array) for role, array in arrays.items()}
        compute = prepare(name, engine, Call(**fields | operands))
        for _ in range(runs):
            array, place = np.asarray(compute()), 0
            if array.nbytes == nbytes and not array.dtype.hasobject:
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                digest = hashlib.blake2b(flat.data).hexdigest()
                if digest not in places:
                    places[digest] = len(places) * nbytes
                    with open(output, "wb", closefd=False) as file:
                        file.seek(places[digest])
                        flat.tofile(file)
                place = places[digest]
            connection.send({"dtype": array.dtype.name, "shape": array.shape, "place": place})
    except NotOfferedError as exc:
        connection.send({"refused": f"not offered: {exc}"})
    except Exception as exc:
        message = " ".join(str(exc).split()) or type(exc).__name__
        connection.send({"refused": message[:_MAX_MESSAGE]})


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
