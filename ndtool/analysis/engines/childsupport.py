"""Functions of child.py for all engines: processors, output files, ONNX models of one node.

child.py finds this module in its own folder, as it imports nothing of the package.
"""

import ctypes
import hashlib
import os
import signal
import sys
from importlib import import_module
from typing import Any

import numpy as np

_PR_SET_PDEATHSIG = 1  # of prctl: sets the signal that is sent when the parent ends


def pin_processors(threads: int) -> None:
    """Pin the process to one processor per thread: some engines have no setting for threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def write_output(output: Any, fd: int, nbytes: int) -> dict[str, Any]:
    """Write an output of the expected size to its file; return its type and digest."""
    array = np.asarray(output)
    description = {"dtype": array.dtype.name, "shape": array.shape, "digest": ""}
    if array.nbytes == nbytes and not array.dtype.hasobject:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        description["digest"] = hashlib.blake2b(flat.data).hexdigest()
        with open(fd, "wb", closefd=False) as file:
            file.seek(0)
            flat.tofile(file)
    return description


def exit_with_parent() -> None:
    """Request a kill when the parent process ends, on Linux; an engine may hang."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def model(call: Any) -> Any:
    """Return a model of one node, of the newest operator version that ndtool knows.

    Raises KeyError or ValueError for an element type that ONNX lacks.
    """
    helper: Any = import_module("onnx.helper")
    inputs: dict[str, Any] = {}
    for name, array in call.operands.items():
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs[name] = helper.make_tensor_value_info(name, element, array.shape)
    element = inputs["data"].type.tensor_type.elem_type
    output = helper.make_tensor_value_info("output", element, None)
    attributes = {name: value for name, value in call.attributes.items() if value != "none"}
    for name in ("include_self", "duplicates"):  # ONNX has no such attributes
        attributes.pop(name, None)
    if not call.batch_dims:
        attributes.pop("batch_dims", None)
    node = helper.make_node(call.title, list(inputs), ["output"], **attributes)
    graph = helper.make_graph([node], "one node", list(inputs.values()), [output])
    opset = helper.make_opsetid("", call.version)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)
