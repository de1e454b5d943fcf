"""What may be the reason for what indices are."""

from ndtool.analysis.stats import Stats
from ndtool.rules.dtypes import Dtype


def causes(found: Stats, dtype: Dtype) -> list[str]:
    """Return what may be the reason for what is out of bounds, or odd; dtype: of the indices."""
    sizes = [component.size for component in found.components]
    if not found.beyond:
        return [_MASK] if _is_mask(found) else []
    values = [(one.value, sizes[one.component]) for one in found.beyond]
    value, _ = values[0]
    guesses = []
    for bits in (16, 32, 64):
        if all(2**bits - size <= one < 2**bits > 2 * size for one, size in values):
            guesses.append(f"{value} is {value - 2**bits} as uint{bits}: was a sign lost?")
    if all(-size <= _swapped(one, dtype) < size for one, size in values) and dtype.itemsize > 1:
        guesses.append(f"{value} is {_swapped(value, dtype)} with its bytes swapped")
    if all(one == size for one, size in values):
        lowest = min(c.lowest for c in found.components if c.lowest is not None)
        base = "are they 1-based?" if lowest > 0 else "is it a mark for nothing?"
        guesses.append(f"{value} equals the size of the axis: {base}")
    if any(one in (-(2**31), -(2**63)) for one, _ in values):
        guesses.append("the lowest integer is what NaN becomes")
    if len(sizes) > 1 and all(
        -size <= c.lowest and c.highest < size
        for c, size in zip(found.components, reversed(sizes), strict=True)
        if c.lowest is not None and c.highest is not None
    ):
        guesses.append("all are within bounds if the components are in the other order")
    return guesses


_MASK = "all are 0 or 1, as many as there are runs: is it a mask? np.argwhere gives indices"


def _is_mask(found: Stats) -> bool:
    """Whether there is a 0 or 1 for each run of a long axis."""
    return len(found.components) == 1 and all(
        one.lowest == 0 and one.highest == 1 and found.tuples == one.size > 2
        for one in found.components
    )


def _swapped(value: int, dtype: Dtype) -> int:
    signed = dtype.kind == "i"
    raw = value.to_bytes(dtype.itemsize, "little", signed=signed)
    return int.from_bytes(raw, "big", signed=signed)
