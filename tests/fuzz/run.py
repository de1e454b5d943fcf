"""Fuzz the readers of headers and archives: run.py SECONDS [headers] [random] [FOLDER].

Whole files are opened in every way; with "headers" only .npy headers are read, which is faster.
With atheris (coverage-guided) where it is installed; else, or with "random", choices are random,
twenty times as many. A finding ends the run with a traceback and is kept as a file in FOLDER,
tests/fuzz/regressions unless given; the tests read every file there. Prints how many inputs there
were.
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

import recipes
import target

SLOW = 2.0  # seconds that no file may take

count = 0
headers_only = False
folder = Path(__file__).parent / "regressions"


def one(raw: bytes) -> None:
    """Check the file that some bytes choose; keep it if something is wrong."""
    global count
    count += 1
    content = recipes.npy(recipes.Choices(raw)) if headers_only else recipes.file(raw)
    started = time.process_time()
    try:
        (target.check_header if headers_only else target.check)(content)
        lasted = time.process_time() - started
        assert lasted < SLOW, f"it took {lasted} s"
    except BaseException:
        name = hashlib.sha256(content).hexdigest()[:16]
        (folder / name).write_bytes(content)
        print(f"kept as {folder / name}, after {count} inputs", file=sys.stderr)
        raise


def main() -> None:
    global folder, headers_only
    seconds, *more = sys.argv[1:]
    headers_only = "headers" in more
    folder = Path(([word for word in more if word not in ("headers", "random")] or [folder])[0])
    fuzz(int(seconds), atheris is not None and "random" not in more)


def fuzz(seconds: int, guided: bool) -> None:
    if not guided:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            one(random.randbytes(random.randrange(400)))
        print(f"{count} inputs, random")
        return
    # libFuzzer ends the process by itself: a line now and then says how far it came
    started = time.monotonic()

    def counted(raw: bytes) -> None:
        one(raw)
        if time.monotonic() - started > seconds:
            print(f"{count} inputs, guided by coverage", flush=True)
            os._exit(0)

    atheris.Setup(
        [sys.argv[0], "-max_len=400", "-rss_limit_mb=4096", "-timeout=10", "-verbosity=0"], counted
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
