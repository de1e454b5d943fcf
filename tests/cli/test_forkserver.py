"""Commands have the same result in forks, as most tests run them, and in new processes."""

from pathlib import Path

import forkserver
import numpy as np
import pytest
from command import NDTOOL, environment, execute, ndtool, save

pytestmark = pytest.mark.skipif(not forkserver.AVAILABLE, reason="forks are for Linux only")
DATA = np.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(data=DATA, idx=np.array([[3], [0]]))


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (("gather-nd", "data.npy", "-", "-o", "-"), {}),
        (
            ("gather-nd", "data.npy", "idx.npy", "-o", "out.zarr", "--trace"),
            {"NDTOOL_THREADS": "3"},
        ),
        (("gather-nd", "none.npy", "idx.npy"), {"NDTOOL_JSON": "1"}),
        (("gather-nd", "data.npy", "idx.npy", "--axis", "1"), {"NO_COLOR": "1", "COLUMNS": "20"}),
    ],
)
def test_a_fork_and_a_new_process(command: tuple[str, ...], env: dict[str, str]) -> None:
    stdin = Path("idx.npy").read_bytes()
    server_count = len(forkserver._all)
    forked = ndtool(*command, stdin=stdin, env=env)
    assert max(server_count, 1) == len(forkserver._all)
    assert forkserver._idle[-1].is_compatible(environment(**env))  # was used
    assert forked == execute(*NDTOOL, *command, stdin=stdin, env=env)
