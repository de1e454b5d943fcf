"""Fuzz the readers of files: run.py SECONDS [KIND] [random] [FOLDER].

Complete files are opened in all ways: of all kinds, or of one, which is "safetensors", "index",
"onnx" or "store" (Zarr); "headers" reads .npy headers only, which is faster.
With atheris (coverage-guided) if it is installed; else, or with "random", choices are random,
twenty times as many. A failure ends the run with a traceback, and its input is saved in FOLDER,
by default tests/fuzz/regressions, which the tests read. Prints the number of inputs.
"""

import hashlib
import os
import random
import sys
import time
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None
else:
    with atheris.instrument_imports(include=["ndtool"]):
        pass

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import recipes
import target
import tensors

TIMEOUT = 2.0  # timeout in seconds for one file

count = 0
kind = ""
KINDS = {
    "": (recipes.decode_file, target.check),
    "headers": (lambda raw: recipes.npy(recipes.Choices(raw)), target.check_header),
    "safetensors": (
        lambda raw: tensors.safetensors(recipes.Choices(raw)),
        lambda content: target.check(content, ("", ".safetensors")),
    ),
    "index": (
        lambda raw: tensors.index(recipes.Choices(raw)),
        lambda content: target.check(content, ("", ".safetensors.index.json")),
    ),
    "onnx": (
        lambda raw: tensors.onnx(recipes.Choices(raw)),
        lambda content: target.check(content, ("", ".pb", ".onnx")),
    ),
    "store": (tensors.store, target.check_store),
}
folder = Path(__file__).parent / "regressions"


def check_input(raw: bytes) -> None:
    """Check the file that some bytes encode; save it on failure."""
    global count
    count += 1
    recipe, check = KINDS[kind]
    content = recipe(raw)
    start = time.process_time()
    try:
        check(content)
        seconds = time.process_time() - start
        assert seconds < TIMEOUT, f"it took {seconds} s"
    except BaseException:
        saved_bytes = content if isinstance(content, bytes) else target.pack_store(content)
        name = hashlib.sha256(saved_bytes).hexdigest()[:16] + (f".{kind}" if kind else "")
        (folder / name).write_bytes(saved_bytes)
        print(f"saved as {folder / name}, after {count} inputs", file=sys.stderr)
        raise


def main() -> None:
    global folder, kind
    seconds, *options = sys.argv[1:]
    kind = next((word for word in options if word in KINDS), "")
    folder = Path(([word for word in options if word not in (*KINDS, "random")] or [folder])[0])
    fuzz(int(seconds), atheris is not None and "random" not in options)


def fuzz(seconds: int, guided: bool) -> None:
    if not guided:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            check_input(random.randbytes(random.randrange(400)))
        print(f"{count} inputs, random")
        return
    # libFuzzer never returns: the last input prints the count and ends the process
    start = time.monotonic()

    def check_until_timeout(raw: bytes) -> None:
        check_input(raw)
        if time.monotonic() - start > seconds:
            print(f"{count} inputs, guided by coverage", flush=True)
            os._exit(0)

    atheris.Setup(
        [sys.argv[0], "-max_len=400", "-rss_limit_mb=4096", "-timeout=10", "-verbosity=0"],
        check_until_timeout,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
