"""Shape inference with symbolic sizes: results, assumptions, and contradictions."""

from math import prod
from typing import Any

import numpy as np
import pytest
from command import ndtool
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases

from ndtool.analysis import infer
from ndtool.analysis.infer import Inferred
from ndtool.errors import RuleError, UsageError
from ndtool.rules import plans, shapes
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.rules.trace import Symbol

Sized = dict[str, plans.Shape]


def infer_output(operator: str, *types: str, **attributes: Any) -> Inferred:
    """Infer from types as text."""
    inputs = dict(zip(OPERATORS[operator].inputs, types, strict=True))
    return infer.infer(operator, inputs, Attributes(**attributes))


def test_the_output_has_the_names_of_the_inputs() -> None:
    inference = infer_output("gather_nd", "float32[N,128,D]", "int64[N,M,1]", batch_dims=1)
    assert shapes.format_shape(inference.output.shape) == "[N,M,D]"
    assert inference.assumed == ()
    assert [step.result for step in inference.trace][-2:] == ["N*M index tuples", "D elements each"]


def test_undecidable_rules_are_assumed() -> None:
    inference = infer_output("gather_nd", "float32[N,128,D]", "int64[B,M,1]", batch_dims=1)
    assert inference.assumed == ("data's axis 0 (N) and indices' axis 0 (B) are equal",)
    inference = infer_output("scatter_elements", "int8[N,M]", "int8[5,K]", "int8[U,K]", axis=0)
    assert inference.assumed == (
        "indices' axis 1 (K) is at most data's axis 1 (M)",
        "updates' axis 0 (U) is 5",
    )


def test_assumptions_apply_to_later_rules() -> None:
    with pytest.raises(RuleError, match=r"data has 9, indices has B \(assumed to be 8\)"):
        infer_output("gather_nd", "float32[8,9,D]", "int64[B,B,1]", batch_dims=2)
    with pytest.raises(RuleError, match=r"data has B \(assumed to be 8\), indices has 9"):
        infer_output("gather_nd", "float32[A,B,B,D]", "int64[A,8,9,1]", batch_dims=3)


@pytest.mark.parametrize("operator", ["gather_nd", "scatter_nd"])
def test_the_components_of_a_tuple_must_be_a_number(operator: str) -> None:
    types = ("float32[N,3]", "int64[M,K]", "float32[M]")[: len(OPERATORS[operator].inputs)]
    with pytest.raises(
        RuleError, match=r"indices\.shape\[-1\] is K: it must be a number"
    ) as excinfo:
        infer_output(operator, *types)
    assert excinfo.value.trace.steps[-1].result == "broken"  # type: ignore[attr-defined]


def name_sizes(sizes: Sized, names: dict[int, str]) -> Sized:
    """Replace numbers by symbols."""
    return {
        role: tuple(Symbol(names[d]) if d in names else d for d in shape)
        for role, shape in sizes.items()
    }


def substitute_sizes(shape: plans.Shape, names: dict[int, str]) -> plans.Shape:
    """Replace symbols by numbers."""
    numbers = {name: number for number, name in names.items()}
    return tuple(
        int(d) * prod(numbers[n] for n in d.names) if isinstance(d, Symbol) else d for d in shape
    )


@given(st.data())
def test_a_valid_call_remains_valid_with_equal_results(data: st.DataObject) -> None:
    case = data.draw(cases)
    attributes = Attributes(**case.arguments)
    roles = OPERATORS[case.operator].inputs
    sizes = dict(zip(roles, (a.shape for a in case.arrays), strict=True))
    _, plain = shapes.infer(case.operator, sizes, attributes)
    letters = data.draw(st.dictionaries(st.integers(0, 7), st.sampled_from("ABCDEFGH")))
    names = {number: f"{name}{number}" for number, name in letters.items()}
    symbolic = name_sizes(sizes, names)
    if case.operator in ("gather_nd", "scatter_nd"):  # k is never a symbol
        symbolic["indices"] = (*symbolic["indices"][:-1], sizes["indices"][-1])
    trace, plan = shapes.infer(case.operator, symbolic, attributes)
    assert substitute_sizes(plan.output, names) == plain.output
    assert bool(trace.assumptions) == any(step.result == "assumed" for step in trace.steps)


@given(st.data())
def test_without_an_assumption_every_number_will_do(data: st.DataObject) -> None:
    shape = st.lists(st.sampled_from([1, 2, Symbol("N"), Symbol("M")]), min_size=1, max_size=3)
    operator = data.draw(st.sampled_from(sorted(OPERATORS)))
    sizes = {role: tuple(data.draw(shape)) for role in OPERATORS[operator].inputs}
    try:
        trace, _ = shapes.infer(operator, sizes, Attributes())
    except RuleError:
        trace = None
    for n, m in ((0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (3, 5)):
        values = {"N": n, "M": m}
        plain = {
            role: tuple(values[d.names[0]] if isinstance(d, Symbol) else d for d in shape)
            for role, shape in sizes.items()
        }
        if trace is not None and not trace.assumptions:
            shapes.infer(operator, plain, Attributes())
        elif trace is None and not isinstance(sizes["indices"][-1], Symbol):
            with pytest.raises(RuleError):
                shapes.infer(operator, plain, Attributes())


def test_symbols_on_the_command_line(workdir: object) -> None:
    types = ("float32[N,128,D]", "int64[B,M,1]", "--batch-dims", "1")
    result = ndtool("infer", "gather-nd", *types)
    assert (result.status, result.err) == (0, "")
    assert result.out.decode().splitlines()[-2:] == [
        "assumed: data's axis 0 (N) and indices' axis 0 (B) are equal",
        "output float32[B,M,D]",
    ]
    report = ndtool("infer", "gather-nd", *types, "--json").json
    assert report["output"] == {
        "name": None, "dtype": "float32", "shape": ["B", "M", "D"], "bytes": None,
    }  # fmt: skip
    assert report["inputs"]["data"]["shape"] == ["N", 128, "D"]
    assert report["assumed"] == ["data's axis 0 (N) and indices' axis 0 (B) are equal"]
    np.save("data.npy", np.zeros((4, 3), np.float32))
    report = ndtool("infer", "gather-nd", "data.npy", "int32[N,1]", "--json").json
    assert (report["output"]["shape"], report["assumed"]) == (["N", 3], [])
    report = ndtool("infer", "gather-nd", "data.npy", "int32[2,1]", "--json").json
    assert (report["output"]["bytes"], report["assumed"]) == (24, [])


def test_known_numbers_that_contradict_are_an_error() -> None:
    with pytest.raises(RuleError, match="updates has shape"):
        infer_output("scatter_nd", "int8[N,3]", "int8[M,1]", "int8[M,4]")
    with pytest.raises(UsageError, match=r"expected a file or dtype"):
        infer_output("gather", "datetime64[ns]", "int8[1]")


def test_an_output_beyond_64_bits_is_assumed_to_be_empty_where_a_size_may_be_0() -> None:
    most = 2**63 - 1
    for operator, types, shape, assumed in (
        ("gather", (f"float32[{most},N]", f"int64[{most},1]"), f"[{most},1,N]", "N is 0"),
        ("gather_nd", (f"float32[3,{2**62},N]", "int64[M,1]"), f"[M,{2**62},N]", "M or N is 0"),
        ("gather_nd", (f"float32[3,{2**62},N]", "int64[N,1]"), f"[N,{2**62},N]", "N is 0"),
    ):
        inference = infer_output(operator, *types)
        assert shapes.format_shape(inference.output.shape) == shape
        assert inference.assumed == (f"the output has no elements: {assumed}",)
        assert inference.trace[-1].rule == "bytes of output < 2^63"
        numbers = [item.replace("N", "0").replace("M", "0") for item in types]
        assert infer_output(operator, *numbers).output.bytes == 0


def test_an_output_beyond_64_bits_is_refused_where_no_size_can_be_0() -> None:
    with pytest.raises(RuleError, match=r"would have .*B bytes: at most 2\^63 - 1 fit"):
        infer_output("gather_nd", "float32[8,N]", f"int64[B,{2**62},1]", batch_dims=1)  # B is 8
    with pytest.raises(RuleError, match="elements: at most"):  # of the axes with symbols
        infer_output("scatter_nd", f"int8[{2**62},4,N]", "int8[2,1]", "int8[2,4,N]")


def test_only_infer_accepts_symbolic_sizes(workdir: object) -> None:
    result = ndtool("explain", "gather", "float32[N]", "[3]", "--at", "0")
    assert (result.status, result.out) == (2, b"")
    assert result.err == "error: float32[N]: size N is a symbol: expected a number\n"
