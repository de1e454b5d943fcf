"""Gradients through the operators on torch tensors: exact, of any order, in both modes."""

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from later import later
from strategies import sample

import ndtool
from ndtool import files
from ndtool.errors import BoundsError, DtypeError, DuplicatesError, InputError, RuleError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
torch, differentiable = later("torch"), later("ndtool.torch")

REDUCTIONS = ("none", "add", "sub", "mul", "max", "min", "mean")
# name, data's shape, indices with duplicates and negative ones, further arguments
CALLS: tuple[tuple[str, tuple[int, ...], Any, dict[str, Any]], ...] = (
    ("nd", (3, 2), [[0], [2], [-3], [2]], {}),
    ("nd", (3, 2), [[[0, 1]], [[2, -1]], [[0, 1]]], {}),
    ("nd", (2, 3, 2), [[[0], [2]], [[1], [1]]], {"batch_dims": 1}),
    ("nd", (3, 2), np.zeros((0, 1), np.int64), {}),
    ("elements", (3, 3), [[0, 2, 1], [2, 2, 1]], {}),
    ("elements", (2, 3), [[0, -1, 2, 2], [1, 1, 1, 0]], {"axis": -1}),
    ("", (3, 2), [2, 0, 2], {}),
    ("", (2, 3, 2), [[1, -2], [0, 1]], {"axis": -2}),
    ("", (2, 3, 2), [[1, 1, 0], [2, 0, 2]], {"axis": 1, "batch_dims": 1}),
    ("", (3,), np.array(-2), {}),  # updates of rank 0
    ("nd", (2,), np.zeros((3, 0), np.int64), {}),  # scatters only
)
IDS = [f"{name or 'axis'}{number}" for number, (name, *_) in enumerate(CALLS)]


def require_grad(verb: str, suffix: str) -> Any:
    return getattr(differentiable, f"{verb}_{suffix}" if suffix else verb)


def random_tensor(shape: tuple[int, ...], seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def require_gradients(function: Any, *inputs: Any) -> None:
    """Compare derivatives of both orders, in both modes, with finite differences."""
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("call", CALLS[:-1], ids=IDS[:-1])
def test_a_gather(call: Any) -> None:
    suffix, shape, indices, options = call
    require_gradients(
        lambda x: require_grad("gather", suffix)(x, indices, **options), random_tensor(shape)
    )


@pytest.mark.parametrize(("call", "reduction"), sample(8, CALLS, REDUCTIONS))
def test_a_scatter(call: Any, reduction: str) -> None:
    suffix, shape, indices, options = call
    data = random_tensor(shape)
    if np.shape(indices)[-1:] == (0,):
        updates = random_tensor((*np.shape(indices)[:-1], *shape), 1)
    else:
        updates = random_tensor(
            tuple(require_grad("gather", suffix)(data, indices, **options).shape), 1
        )
    for more in ({}, {"include_self": False}):
        if reduction == "sub" and more:
            continue

        def scatter(x: Any, u: Any, more: Any = more) -> Any:
            return require_grad("scatter", suffix)(
                x, indices, u, reduction=reduction, **options, **more
            )

        require_gradients(scatter, data, updates)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_what_selects_nothing_has_no_gradient(reduction: str) -> None:
    data, updates = random_tensor((3, 2)), random_tensor((5, 2), 1)
    ids = torch.tensor([0, 7, -1, 2, 0])
    choices = [("drop", None), ("drop", -1), ("clip", -1), ("wrap", None)]
    for mode, pad in choices[REDUCTIONS.index(reduction) % 2 :: 2]:
        require_gradients(
            lambda x, u, m=mode, p=pad: differentiable.scatter(
                x, ids, u, reduction=reduction, out_of_bounds=m, pad=p
            ),
            data,
            updates,
        )


def test_what_a_gather_fills_has_no_gradient() -> None:
    data, ids = random_tensor((3, 2)), torch.tensor([0, 7, -1, 2, 0])
    for mode in ("fill", "clip", "wrap"):
        options = {"out_of_bounds": mode, "pad": -1, "fill": float("nan")}
        require_gradients(
            lambda x, options=options: differentiable.gather(x, ids, **options).nan_to_num(), data
        )


def test_the_update_that_is_assigned_gets_the_gradient() -> None:
    data, updates = random_tensor((3,)), random_tensor((4,), 1)
    for duplicates, assigned in (("last", [0.0, 1.0, 0.0, 1.0]), ("first", [1.0, 0.0, 1.0, 0.0])):
        result = differentiable.scatter(data, [2, 2, 0, 0], updates, duplicates=duplicates)
        of_data, of_updates = torch.autograd.grad(result.sum(), (data, updates))
        assert of_data.tolist() == [0.0, 1.0, 0.0]
        assert of_updates.tolist() == assigned
        require_gradients(
            lambda x, u, d=duplicates: differentiable.scatter(x, [2, 2, 0, 0], u, duplicates=d),
            data,
            updates,
        )
    with pytest.raises(DuplicatesError):
        differentiable.scatter(data, [2, 2, 0, 0], updates, duplicates="error")
    result = differentiable.scatter(data, [2, 2, 0, 0], updates)
    (of_updates,) = torch.autograd.grad(result, updates, torch.full((3,), torch.inf).double())
    assert of_updates.tolist() == [0.0, torch.inf, 0.0, torch.inf]


def test_equal_elements_share_the_gradient_of_max_as_in_torch() -> None:
    ids = torch.tensor([0, 0, 1, 0, 2, 2])
    updates = torch.tensor([5.0, 5.0, 1.0, 4.0, torch.nan, 3.0], dtype=torch.float64)
    for reduction, torch_name in (("max", "amax"), ("min", "amin")):
        grads = []
        for function in (
            lambda x, u, r=reduction: differentiable.scatter(x, ids, u, reduction=r),
            lambda x, u, r=torch_name: x.scatter_reduce(0, ids, u, r),
        ):
            data = torch.tensor([5.0, 1.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
            new = updates.clone()
            new[4] = 3.0
            new.requires_grad_()
            grads.append(torch.autograd.grad(function(data, new).sum(), (data, new)))
        assert all(map(torch.equal, *grads))
    data = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    new = updates.requires_grad_()
    result = differentiable.scatter(data, ids, new, reduction="max")
    assert torch.autograd.grad(result[2], new)[0].tolist() == [0, 0, 0, 0, 1, 0]  # NaN is the max


def test_products_with_zeros() -> None:
    data = torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    updates = torch.tensor([0.0, 5.0, 7.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)

    def scatter(x: Any, u: Any) -> Any:
        return differentiable.scatter(x, [0, 0, 1, 2, 2], u, reduction="mul")

    require_gradients(scatter, data, updates)
    gradients = torch.autograd.grad(scatter(data, updates).sum(), (data, updates))
    assert [gradient.tolist() for gradient in gradients] == [
        [0.0, 7.0, 0.0],
        [10.0, 0.0, 0.0, 0.0, 0.0],
    ]


def test_the_backward_of_a_gather_is_the_sequential_sum_at_any_number_of_threads() -> None:
    random_ids = np.random.default_rng(0).integers(0, 1000, 300_000)
    grad = torch.from_numpy(np.random.default_rng(1).standard_normal((300_000, 4), np.float32))
    expected = np.zeros((1000, 4), np.float32)
    np.add.at(expected, random_ids, grad.numpy())
    for threads in (1, 2, 3):
        table = torch.zeros(1000, 4, requires_grad=True)
        differentiable.gather(table, random_ids, threads=threads).backward(grad)
        assert table.grad.numpy().tobytes() == expected.tobytes()


def test_transforms_of_torch_func() -> None:
    ids = torch.tensor([1, 0, 1])
    data, updates = random_tensor((3,)).detach(), random_tensor((3,), 1).detach()

    def loss(x: Any, u: Any) -> Any:
        return (differentiable.scatter(x, ids, u, reduction="mul") ** 2).sum()

    def scatter_squared(x: Any, u: Any) -> Any:
        return (x.scatter_reduce(0, ids, u, "prod") ** 2).sum()

    gradient = torch.func.grad(scatter_squared)  # torch's own has no forward mode
    expected = gradient(data, updates)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(loss)(data, updates), expected)
    hessian = torch.func.jacrev(gradient)(data, updates)
    torch.testing.assert_close(torch.func.hessian(loss)(data, updates), hessian)
    rows = torch.func.vmap(lambda x: differentiable.gather(x, ids))(random_tensor((5, 3)).detach())
    assert rows.shape == (5, 3)


def test_later_changes_of_the_indices_do_not_reach_the_backward() -> None:
    ids = np.array([1, 1])
    table = torch.zeros(3, requires_grad=True)
    result = differentiable.gather(table, ids)
    ids[:] = 0
    result.sum().backward()
    assert table.grad.tolist() == [0.0, 2.0, 0.0]
    indices = torch.tensor([1, 1])
    result = differentiable.gather(table, indices)
    indices[:] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_refusals_say_how_to_go_on() -> None:
    data = torch.zeros(3, requires_grad=True)
    with pytest.raises(DtypeError, match=r"requires grad: pass data.detach\(\)") as excinfo:
        ndtool.gather(data, [0])
    assert excinfo.value.hint == "the functions of ndtool.torch are differentiable"
    with pytest.raises(DtypeError, match="updates is a torch tensor that requires grad"):
        ndtool.scatter(torch.zeros(3), [0], torch.zeros(1, requires_grad=True))
    with pytest.raises(DtypeError, match="requires grad"):
        ndtool.files.gather(data, [0])
    with torch.no_grad():
        assert ndtool.gather(data, [0]).tolist() == [0.0]
    with torch.autograd.forward_ad.dual_level(), pytest.raises(DtypeError, match="requires grad"):
        ndtool.gather(torch.autograd.forward_ad.make_dual(data.detach(), data.detach()), [0])
    with pytest.raises(RuleError, match="reduction div has no gradient: expected one of none, add"):
        differentiable.scatter(data, [0], torch.ones(1), reduction="div")
    assert differentiable.scatter(data.detach(), [0], torch.ones(1), reduction="div")[0] == 0
    with pytest.raises(DtypeError, match="data is a ndarray: it must be a torch tensor"):
        differentiable.gather(np.zeros(3), [0])
    with pytest.raises(BoundsError, match="out of bounds"):
        differentiable.gather(data, [3])
    with pytest.raises(DtypeError, match="indices"):
        differentiable.gather(data, torch.tensor([0.5]))
    with pytest.raises(RuleError, match="onnx:11"):
        differentiable.gather_nd(torch.zeros(2, 2), [[0], [0]], batch_dims=1, spec="onnx:11")


def test_the_examples() -> None:
    assert doctest.testmod(ndtool.torch).failed == 0
    assert "torch" in dir(ndtool)
    assert "torch" not in ndtool.__all__  # `from ndtool import *` does not load it


def test_a_tensor_as_data_and_updates_and_parameters() -> None:
    tensor = torch.full((2,), 3.0, requires_grad=True)
    differentiable.scatter(tensor, [0, 1], tensor, reduction="mul").sum().backward()
    assert tensor.grad.tolist() == [6.0, 6.0]
    weights = torch.nn.Parameter(torch.ones(4, 2))
    differentiable.gather_nd(weights, [[0]]).sum().backward()
    assert weights.grad[0].tolist() == [1.0, 1.0]
    with torch.inference_mode():
        assert differentiable.gather(weights, [0]).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("axis_size", [0, 3])
def test_batches_of_no_elements(axis_size: int) -> None:
    data, indices = torch.zeros(0, axis_size, 2), torch.zeros(0, 4, dtype=torch.int64)
    updates = torch.zeros(0, 4, 2)
    gathered = torch.func.vmap(differentiable.gather)(data, indices)
    assert gathered.shape == (0, 4, 2)
    shared = torch.func.vmap(differentiable.gather, (None, 0))(torch.zeros(axis_size, 2), indices)
    assert shared.shape == (0, 4, 2)
    scattered = torch.func.vmap(differentiable.scatter)(data, indices, updates)
    assert scattered.shape == data.shape


def test_an_archive_of_torch_is_refused_with_the_way_on(workdir: Path) -> None:
    torch.save({"w": torch.ones(3)}, "x.npz")
    with pytest.raises(InputError, match=r"an archive of torch\.save") as excinfo:
        files.gather("x.npz:w", np.array([0]))
    assert "weights_only=True" in excinfo.value.hint
