"""What computes a call with another engine, as a script in a process of its own.

It is told of one call in a line of JSON on standard input, and answers in lines on a descriptor of
its own: first with the engine's version, then, for every further line, that an answer is in the
output's file. It imports nothing of ndtool: an engine may take the process with it.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Compute = Callable[[], Any]
_WORDS = 1000  # characters of a message
_PR_SET_PDEATHSIG = 1  # Linux's: which signal comes when the parent ends
_TELLTALES: dict[str, Any] = {"openvino_telemetry": None}  # modules that tell others of their use
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class NotOfferedError(Exception):
    """An engine has no such call; the message says what it lacks."""


class Call(NamedTuple):
    """One call of an operator; title: its name in ONNX. version: of the operator there."""

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
        named = {"data": self.data, "indices": self.indices}
        return named if self.updates is None else {**named, "updates": self.updates}

    @property
    def axis(self) -> int:
        """Which axis indices are about, from 0 on."""
        return int(self.attributes["axis"]) % max(self.data.ndim, 1)

    @property
    def reduction(self) -> str:
        """What an update does."""
        return str(self.attributes.get("reduction", "none"))

    @property
    def batch_dims(self) -> int:
        """How many axes data and indices share."""
        return int(self.attributes.get("batch_dims", 0))

    @property
    def reached(self) -> tuple[slice, ...]:
        """The part of data along whose axis indices are, as long as these off the axis."""
        sizes = enumerate(self.indices.shape)
        return tuple(slice(None) if d == self.axis else slice(n) for d, n in sizes)

    @property
    def places(self) -> tuple[Any, ...]:
        """What to index data with, in NumPy's way."""
        indices = self.indices
        if self.operator.endswith("_nd"):
            batches = np.ix_(*map(np.arange, indices.shape[:-1]))[: self.batch_dims]
            return *batches, *np.moveaxis(indices, -1, 0)
        grid = list(np.ix_(*map(np.arange, indices.shape)))
        grid[self.axis] = indices
        return tuple(grid)


def _numpy(_: Any, call: Call) -> Compute:
    """Index with arrays, as NumPy's users do."""
    data, indices, axis = call.data, call.indices, call.attributes.get("axis")
    if call.operator == "gather":
        return lambda: np.take(data, indices, axis)
    if call.operator == "gather_elements":
        return lambda: np.take_along_axis(data[call.reached], indices, axis)
    _require_tuples(call, "NumPy")
    places = call.places

    def compute() -> Any:
        if call.updates is None:
            return data[places]
        out = data.copy()
        if call.reduction == "none":
            out[places] = call.updates
        else:
            _UFUNCS[call.reduction].at(out, places, call.updates)
        return out

    return compute


def _require_tuples(call: Call, engine: str) -> None:
    if call.operator.endswith("_nd") and not call.indices.shape[-1]:
        raise NotOfferedError(f"{engine} has no empty index tuples")


def _torch(torch: Any, call: Call) -> Compute:
    """Index with tensors; along an axis, gather, scatter and scatter_reduce."""
    torch.set_num_threads(call.threads)
    if call.indices.dtype.name not in ("int32", "int64"):
        raise NotOfferedError(f"torch takes no {call.indices.dtype} for indices: int32, int64")
    _require_tuples(call, "torch")
    axis, reduction = call.attributes.get("axis"), call.reduction
    if call.batch_dims:
        raise NotOfferedError("torch has no batch_dims")
    if call.operator == "scatter_nd" and reduction not in ("none", "add"):
        raise NotOfferedError(f"torch has no {reduction} for index tuples")
    data, indices = _tensor(torch, call.data), _tensor(torch, call.indices)
    updates = None if call.updates is None else _tensor(torch, call.updates)
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}

    def compute() -> Any:
        if call.operator == "gather":
            return data[(*[slice(None)] * call.axis, indices)]
        if call.operator == "gather_nd":
            return data[indices.unbind(-1)]
        if call.operator == "gather_elements":
            return torch.gather(data, axis, indices)
        if call.operator == "scatter_nd":
            return data.index_put(indices.unbind(-1), updates, accumulate=reduction == "add")
        if reduction == "none":
            return torch.scatter(data, axis, indices, updates)
        return torch.scatter_reduce(data, axis, indices, updates, names[reduction])

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
    """Call gather_nd, tensor_scatter_nd_…, gather; for elements NumPy's function in TensorFlow."""
    tf.config.threading.set_intra_op_parallelism_threads(call.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if call.operator == "scatter_elements":
        raise NotOfferedError("tensorflow has no ScatterElements")
    if call.reduction == "mul":
        raise NotOfferedError("tensorflow has no mul for index tuples")
    data, indices = tf.constant(call.data), tf.constant(call.indices)
    updates = None if call.updates is None else tf.constant(call.updates)
    names = {"none": "update", "add": "add", "max": "max", "min": "min"}

    def compute() -> Any:
        if call.operator == "gather":
            return tf.gather(data, indices, axis=call.axis)
        if call.operator == "gather_nd":
            return tf.gather_nd(data, indices, call.batch_dims)
        if call.operator == "gather_elements":
            along = tf.experimental.numpy.take_along_axis
            return along(data[call.reached], indices, call.axis)
        return getattr(tf, f"tensor_scatter_nd_{names[call.reduction]}")(data, indices, updates)

    return lambda: compute().numpy()


def _jax(jax: Any, call: Call) -> Compute:
    """Index with arrays, and `.at[...]`, under vmap for each batch axis."""
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    _require_tuples(call, "jax")
    data, indices = jnp.asarray(call.data), jnp.asarray(call.indices)
    updates = None if call.updates is None else jnp.asarray(call.updates)
    method = "set" if call.reduction == "none" else call.reduction

    def taken(data: Any, indices: Any) -> Any:
        return data[tuple(jnp.moveaxis(indices, -1, 0))]

    for _ in range(call.batch_dims):
        taken = jax.vmap(taken)

    def compute() -> Any:
        if call.operator == "gather":
            return jnp.take(data, indices, call.axis)
        if call.operator == "gather_nd":
            return taken(data, indices)
        if call.operator == "gather_elements":
            return jnp.take_along_axis(data[call.reached], indices, call.axis)
        return getattr(data.at[call.places], method)(updates)

    return lambda: np.asarray(compute())


def _openvino(ov: Any, call: Call) -> Compute:
    """Compile a model of the one node of its own operator set."""
    ops: Any = import_module("openvino.opset15")
    operands = list(call.operands.values())
    inputs = [ops.parameter(array.shape, array.dtype.type) for array in operands]
    names = {"add": "sum", "mul": "prod"}
    reduction = names.get(call.reduction, call.reduction)
    axis = np.array(call.attributes.get("axis", 0))
    if call.operator == "gather_nd":
        node = ops.gather_nd(*inputs, batch_dims=call.batch_dims)
    elif call.operator == "gather":
        node = ops.gather(*inputs, axis)
    elif call.operator == "gather_elements":
        node = ops.gather_elements(*inputs, int(axis))
    elif call.operator == "scatter_nd":
        node = ops.scatter_nd_update(*inputs, reduction=reduction)
    else:
        node = ops.scatter_elements_update(*inputs, axis, reduction=reduction)
    settings = {"INFERENCE_NUM_THREADS": call.threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.compile_model(ov.Model([node], inputs, "one node"), "CPU", settings)
    return lambda: compiled(operands)[0]


def _onnxruntime(ort: Any, call: Call) -> Compute:
    """Make a session on the CPU for a model of the one node."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = call.threads, 1
    options.log_severity_level = 4
    session = ort.InferenceSession(
        _model(call).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, call.operands)[0]


def _onnx(_: Any, call: Call) -> Compute:
    """Let the reference evaluator of the onnx package run a model of the one node."""
    reference: Any = import_module("onnx.reference")
    evaluator = reference.ReferenceEvaluator(_model(call))
    return lambda: evaluator.run(None, call.operands)[0]


def _model(call: Call) -> Any:
    """Return a model of the one node, of the operator's newest version that ndtool knows."""
    helper: Any = import_module("onnx.helper")
    named: dict[str, Any] = {}
    for name, array in call.operands.items():
        try:
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
        except (KeyError, ValueError):
            raise NotOfferedError(f"ONNX has no {array.dtype}") from None
        named[name] = helper.make_tensor_value_info(name, element, array.shape)
    element = named["data"].type.tensor_type.elem_type
    output = helper.make_tensor_value_info("output", element, None)
    given = {name: value for name, value in call.attributes.items() if value != "none"}
    node = helper.make_node(call.title, list(named), ["output"], **given)
    graph = helper.make_graph([node], "one node", list(named.values()), [output])
    opset = helper.make_opsetid("", call.version)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


ENGINES = {
    "onnxruntime": _onnxruntime, "openvino": _openvino, "torch": _torch,
    "tensorflow": _tensorflow, "jax": _jax, "numpy": _numpy, "onnx": _onnx,
}  # fmt: skip


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        extended: np.dtype[Any] = np.dtype(getattr(import_module("ml_dtypes"), name))
        return extended


def _array(told: dict[str, Any], engine: str) -> Array:
    """Return an array that was lent, aligned; what is written to it is ours alone."""
    dtype, shape = _dtype(told["dtype"]), tuple(told["shape"])
    if dtype.kind == "V" and dtype.isbuiltin != 2 and engine != "numpy":
        raise NotOfferedError(f"{engine} has no {told['type']}")
    if 0 in shape:
        return np.empty(shape, dtype)
    with open(told["fd"], "rb", closefd=False) as file:
        mapped = np.memmap(file, dtype, "c", told["offset"], shape, told["order"])
    return np.require(np.asarray(mapped), requirements=("C", "A"))


def _call(job: dict[str, Any]) -> Call:
    data, indices, *updates = (_array(one, job["engine"]) for one in job["arrays"])
    return Call(
        job["operator"],
        job["title"],
        job["version"],
        job["attributes"],
        data,
        indices,
        updates[0] if updates else None,
        job["threads"],
    )


def _limit(threads: int) -> None:
    """Stay on as many processors as there are threads: not every engine has a setting for them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _answer(answer: Any, fd: int, room: int) -> dict[str, Any]:
    """Write an answer to the output's file where it has the size; return what it is like."""
    result = np.asarray(answer)
    told = {"dtype": result.dtype.name, "shape": result.shape, "digest": ""}
    if result.nbytes == room and not result.dtype.hasobject:
        flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        told["digest"] = hashlib.blake2b(flat.data).hexdigest()
        with open(fd, "wb", closefd=False) as file:
            file.seek(0)
            flat.tofile(file)
    return told


def _follow_parent() -> None:
    """End with the process that asks, also in an engine that never returns, where that can be."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _refusal(exc: Exception) -> dict[str, str]:
    if isinstance(exc, NotOfferedError):
        return {"refused": f"not offered: {exc}"}
    words = " ".join(str(exc).split()) or type(exc).__name__
    return {"refused": words[:_WORDS]}


def main() -> None:
    """Serve one call, answer by answer."""
    _follow_parent()
    with open(os.dup(0), "rb") as lines:
        _serve(lines)


def _serve(lines: IO[bytes]) -> None:
    job = json.loads(lines.readline())
    os.dup2(2, 1)  # engines chat
    _limit(job["threads"])
    sys.modules.update(_TELLTALES)  # they are not found

    def tell(**fields: Any) -> None:
        os.write(job["replies"], json.dumps(fields).encode() + b"\n")

    try:
        engine = import_module(job["engine"])
    except ImportError as exc:
        tell(missing=str(exc)[:_WORDS])
        return
    tell(version=getattr(engine, "__version__", ""))
    try:
        compute = ENGINES[job["engine"]](engine, _call(job))
        while lines.readline():
            tell(**_answer(compute(), job["output"], job["room"]))
    except Exception as exc:
        tell(**_refusal(exc))


if __name__ == "__main__":
    main()
