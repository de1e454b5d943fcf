"""What a run of two rows executes: a start is short if it calls few functions of few modules."""

import subprocess
import sys
from pathlib import Path

import numpy as np

COUNT = """
import sys
from importlib.util import find_spec
folder, files, calls = find_spec("ndtool").origin.removesuffix("__init__.py"), set(), 0
def count(frame, event, _):
    global calls
    code = frame.f_code
    is_module = code.co_name == "<module>"
    if event == "call" and code.co_filename.startswith(folder) and not is_module:
        files.add(code.co_filename)
        calls += 1
sys.argv[0] = "ndtool"
sys.setprofile(count)
from ndtool.__main__ import main
status = main()
sys.setprofile(None)
print(status, calls, len(files), "numpy" in sys.modules, "rich" in sys.modules)
"""


def test_a_gather_of_two_rows_calls_few_functions(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "idx.npy", np.array([[2], [0]]))
    words = ["gather-nd", "data.npy", "idx.npy", "-o", "out.npy"]
    command = [sys.executable, "-c", COUNT, *words]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    status, calls, files, *imported = completed.stdout.split()
    assert (status, imported) == ("0", ["False", "False"]), completed.stderr
    assert (int(calls) <= 900, int(files) <= 44) == (True, True), completed.stdout
    assert np.load(tmp_path / "out.npy").tolist() == [[6, 7, 8], [0, 1, 2]]
