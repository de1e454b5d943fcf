"""Two workers in this process, each with one thread, which load a module of the test first."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENT = {"distributed.deploy.lost-worker-timeout": "1 day"}  # including one that a test stops


@contextmanager
def two_workers(folder: Path, preload: str, **settings: Any) -> Iterator[Any]:
    """Start them; yield their client. preload: source, formatted with folder; settings: dask's."""
    import dask
    import distributed

    (folder / "preload.py").write_text(preload.format(folder=str(folder)))
    with (
        dask.config.set({"temporary-directory": str(folder), **settings}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            preload=[str(folder / "preload.py")], local_directory=str(folder), memory_limit=0,
            silence_logs=100,
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        yield client
