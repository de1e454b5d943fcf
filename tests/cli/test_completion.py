"""Completion of words in bash, zsh and fish."""

import os
import pty
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import chdir

import numpy as np
import pytest
from command import environment, ndtool


def complete(typed, shell="bash", current_word=None, folder="."):
    env = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ") if current_word is None else current_word),
    }
    with chdir(folder):
        completed = ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_complete", **env})
    assert (completed.status, completed.err) == (0, "")
    lines = completed.out.decode().splitlines()
    if shell == "zsh":
        return lines[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


def test_completion_of_commands_and_options():
    gathers = ["gather-nd", "gather-elements", "gather"]
    assert complete("ndtool gather") == gathers
    assert "--batch-dims" in complete("ndtool gather-nd --b")
    reductions = complete("ndtool scatter-nd a b c --reduction m")
    assert reductions == ["mul", "max", "min", "mean"]
    assert complete("ndtool spec scatter") == [
        "scatter-nd", "scatter-elements", "scatter",
    ]  # fmt: skip
    assert complete("") == complete("ndtool ")
    assert complete("ndtool 'gather") == complete("ndtool gather")
    assert "--axis" in complete("ndtool gather-elements --threads x --a")


@pytest.fixture
def arrays(tmp_path):
    """Create a folder of arrays."""
    np.save(tmp_path / "data.npy", np.arange(3))
    np.savez(tmp_path / "many.npz", first=np.arange(2))
    (tmp_path / "dates").mkdir()
    return tmp_path


SHELLS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-d", "-f", "-i"], "fish": ["-N", "-i"]}
SETUP = {
    "bash": "PS1=; source ./source",
    "zsh": "PS1=; autoload -U compinit; compinit -u -D; source ./source",
    "fish": "source ./source",
}


class Shell:
    """A shell in a terminal, in which ndtool only reports the words that it receives."""

    def __init__(self, shell, folder):
        path = shutil.which(shell)
        if path is None:
            pytest.skip(f"{shell} is not installed")
        source, self._report = os.pipe()
        (folder / "source").write_bytes(ndtool(env={"_NDTOOL_COMPLETE": f"{shell}_source"}).out)
        command = folder / "ndtool"
        command.write_text(
            f"#!/bin/sh\n[ -z $_NDTOOL_COMPLETE ] || exec {shlex.quote(sys.executable)} -m ndtool\n"
            f"printf '%s\\0' \"$@\" END >/dev/fd/{self._report}\n"
        )
        command.chmod(0o755)
        self._words = open(source, "rb")  # noqa: SIM115
        self._controller, terminal = pty.openpty()
        self._child = subprocess.Popen(
            [path, *SHELLS[shell]], cwd=folder, pass_fds=[self._report, terminal],
            preexec_fn=lambda: os.login_tty(terminal),  # fish requires a controlling terminal
            env=environment(PATH=f"{folder}:{os.environ['PATH']}", HOME=str(folder), TERM="dumb"),
        )  # fmt: skip
        os.close(terminal)
        os.close(self._report)
        self._reader = threading.Thread(target=read_until_closed, args=(self._controller,))
        self._reader.start()
        self.run(f"{SETUP[shell]}; ndtool")

    def run(self, keys):
        """Type a line; return the words of the command, without the first two of `ndtool x`."""
        os.write(self._controller, keys.encode() + b"\r")
        words = [b""]
        while words[-1] != b"END":
            character = self._words.read(1)
            assert character, "the shell has exited"
            words = [*words, b""] if character == b"\0" else [*words[:-1], words[-1] + character]
        self._words.read(1)
        return [os.fsdecode(word) for word in words[:-1]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._child.kill()
        self._child.wait()
        self._words.close()
        self._reader.join()
        os.close(self._controller)


def read_until_closed(fd):
    """Read a terminal's output until all processes have closed it."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except OSError:
        pass


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_words(arrays, shell):
    (arrays / "two words.npy").write_bytes((arrays / "data.npy").read_bytes())
    (arrays / "x,y.npy").write_bytes((arrays / "data.npy").read_bytes())
    with Shell(shell, arrays) as session:
        for typed, word in (
            ("ma", "many.npz"), ("many.npz:first ma", "many.npz"), ("datash", "datash"),
            ("tw", "two words.npy"), ("'tw", "two words.npy"), ('"tw', "two words.npy"), ("x", "x,y.npy"),
            ("two\\ ", "two words.npy"), ("--batch", "--batch-dims"),
        ):  # fmt: skip
            assert session.run(f"ndtool gather-nd {typed}\t")[-1] == word
        assert session.run("ndtool scatter-e\t") == ["scatter-elements"]
        assert session.run("ndtool gather-nd dates\tx") == ["gather-nd", "dates/x"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"_NDTOOL_COMPLETE": "bash_complete"}, "with COMP_WORDS and COMP_CWORD"),
        ({"_NDTOOL_COMPLETE": "fish_complete", "COMP_WORDS": "ndtool"}, "with COMP_WORDS"),
        (
            {"_NDTOOL_COMPLETE": "zsh_complete", "COMP_WORDS": "ndtool", "COMP_CWORD": "9" * 5000},
            "with COMP_WORDS and COMP_CWORD",
        ),
        *(
            ({"_NDTOOL_COMPLETE": value}, "expected SHELL_source, or SHELL_complete")
            for value in ("1", "_complete", "bash_\x1b[31m")
        ),
    ],
)
def test_invalid_completion_variables_are_refused(env, message):
    completed = ndtool("gather-nd", env=env)
    assert (completed.status, completed.out) == (2, b"")
    assert completed.err.startswith("error: _NDTOOL_COMPLETE is ")
    assert message in completed.err
    assert completed.err.count("\n") == 1
    assert "\x1b" not in completed.err
