"""How much memory this process may come to have, pages of files included."""

from ndtool.engine import cgroups

UNKNOWN = 1 << 30  # bytes, where the system does not tell


def available() -> int:
    """Return the bytes that are free or can be freed, no more than its control groups allow."""
    return cgroups.lowest("memory", _limit, _free())


def holds(nbytes: int, limit: int | None = None) -> bool:
    """Whether bytes that are accessed at random fit; limit: of memory, None for what there is."""
    return nbytes <= (available() if limit is None else limit) // 4 * 3


def _free() -> int:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return UNKNOWN


def _limit(folder: str) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            with open(f"{folder}/{name}") as file:
                return int(file.read())
        except (OSError, ValueError):
            pass  # "max" is none
    return None
