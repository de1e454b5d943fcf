"""Resource limits set by the control groups of this process (version 2 or 1)."""

import os
from collections.abc import Callable


def lowest_limit(controller: str, limit: Callable[[str], int | None], default: int) -> int:
    """Return the lowest limit from this process's group up to the root, at most `default`.

    limit: returns the limit set in a group's directory, None if unlimited.
    """
    roots = {"": "/sys/fs/cgroup", controller: f"/sys/fs/cgroup/{controller}"}
    limits = [default]
    try:
        with open("/proc/self/cgroup") as lines:
            for line in lines:
                _, names, path = line.rstrip("\n").split(":", 2)
                for name in names.split(","):
                    if name in roots:
                        limits += _limits(roots[name], path, limit)
    except (OSError, ValueError):
        pass
    return min(limits)


def _limits(mount: str, path: str, limit: Callable[[str], int | None]) -> list[int]:
    """Return the limits from a group up to the root."""
    limits = []
    while True:
        value = limit(mount + path)
        if value is not None:
            limits.append(value)
        if path in ("", "/"):
            return limits
        path = os.path.dirname(path)
