"""MuSGD against its definition written out; what padding, memory formats, checkpoints and schedules must not change."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from graphreplay import OptionError
from graphreplay.optim import MuSGD, orthogonalize, orthogonalize_padded
from graphreplay.optim.buckets import buckets
from graphreplay.reference import ReferenceModule, ReferenceNetwork, reference_batches
from graphreplay.testing import Scenario, compare, fit

SHAPES = (
    (8, 4, 3, 3),
    (16, 4, 3, 3),
    (6, 36),
    (40, 36),
    (5, 7),
    (12, 4, 1, 1),
    (4, 2, 6, 2),
    (9,),
    (3, 1, 1),
    (2, 1, 2, 2, 2),
)
NEAR = 0.06  # bfloat16's 0.4 %, through five steps; seen: 0.033


def weights(shapes: Sequence[tuple[int, ...]] = SHAPES, seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]


def give_gradients(params: Sequence[nn.Parameter], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for weight in params:
        fresh = torch.randn(weight.shape, generator=random)
        weight.grad = torch.empty_like(weight).copy_(fresh)


def run(optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter], steps: int = 3, first: int = 1) -> None:
    for step in range(first, first + steps):
        give_gradients(params, step)
        optimizer.step()


def values(params: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(index): weight.detach().clone() for index, weight in enumerate(params)}


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Relative, in the Frobenius norm."""
    return float((left.double() - right.double()).norm() / right.double().norm())


def newton_schulz(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = matrix.to(dtype)
    x = x / (x.norm() + 1e-7)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)


class Definition:
    """The definition, line by line, in float64 but for what `dtype` says of Newton-Schulz."""

    def __init__(self, params: Sequence[torch.Tensor], lr: float, mu: float, decay: float, dtype: torch.dtype) -> None:
        self.values = [weight.detach().double() for weight in params]
        self.lr, self.mu, self.decay, self.dtype = lr, mu, decay, dtype
        self.m = [torch.zeros_like(value) for value in self.values]
        self.b = [torch.zeros_like(value) for value in self.values]

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        for index, gradient in enumerate(gradients):
            p, g, mu = self.values[index], gradient.double(), self.mu
            if p.ndim in (2, 4):
                self.m[index] = m = mu * self.m[index] + (1 - mu) * g
                u = mu * m + (1 - mu) * g
                s = math.sqrt(max(1, g.shape[-2] / g.shape[-1]))
                p = p - self.lr * 0.2 * s * newton_schulz(u.reshape(len(u), -1), self.dtype).reshape(u.shape)
            g = g + self.decay * p
            self.b[index] = b = mu * self.b[index] + g
            self.values[index] = p - self.lr * (g + mu * b)


@pytest.mark.parametrize("batched", [True, False])
def test_steps_follow_the_definition(batched: bool) -> None:
    """Closely, with Newton-Schulz in bfloat16; the SGD branch to float32's roundings."""
    params = weights()
    start = values(params)
    expected = Definition(params, lr=0.1, mu=0.9, decay=0.01, dtype=torch.bfloat16)
    optimizer = MuSGD(params, lr=0.1, momentum=0.9, weight_decay=0.01, batched=batched)
    for step in range(1, 5):
        give_gradients(params, step)
        optimizer.step()
        expected.step([weight.grad for weight in params])
    for index, (weight, value) in enumerate(zip(params, expected.values, strict=True)):
        moved = distance(weight.detach() - start[str(index)], value - start[str(index)].double())
        assert moved < (2e-3 if weight.ndim in (2, 4) else 1e-6), SHAPES[index]


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (32, 32), (1, 9), (9, 1)], ids=str)
def test_orthogonalized_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    """And it is the float64 iteration's but for bfloat16, wide, tall and square."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 1e-3
    kept = matrix.clone()
    image = orthogonalize(matrix)
    assert torch.equal(matrix, kept)
    assert image.dtype is torch.bfloat16
    assert distance(image, newton_schulz(matrix.double(), torch.float64)) < NEAR
    singular = torch.linalg.svdvals(image.float())
    assert singular.max() < 1.3
    assert singular.median() > 0.6
    # What lies along the matrix itself is kept in direction.
    assert (image.float() * matrix).sum() > 0


def test_transposed_matrix_has_the_transposed_image() -> None:
    matrix = torch.randn(20, 50, generator=torch.Generator().manual_seed(4))
    assert compare({"": orthogonalize(matrix.T.contiguous()).T}, {"": orthogonalize(matrix)}) is None


def test_zero_matrix_stays_zero_beside_others() -> None:
    images = orthogonalize_padded([torch.zeros(3, 5), torch.eye(4, 5)])
    assert not images[0].any()
    assert images[1].isfinite().all()


def test_a_matrix_that_is_not_finite_does_not_spread() -> None:
    broken = torch.full((3, 6), math.inf)
    whole = torch.randn(5, 6)
    images = orthogonalize_padded([broken, whole])
    assert images[0, :3].isnan().all()
    assert compare({"": images[1]}, {"": orthogonalize_padded([torch.ones(3, 6), whole])[1]}) is None


@pytest.mark.parametrize("tallest", [12, 64], ids=["wide", "transposed by padding"])
def test_padding_is_neutral_within_bfloat16(tallest: int) -> None:
    """Whether or not it makes the rows exceed the columns; and padded rows come out zero."""
    random = torch.Generator().manual_seed(5)
    matrices = [torch.randn(rows, 16, generator=random) for rows in (4, 9, tallest)]
    images = orthogonalize_padded(matrices)
    assert images.shape == (3, tallest, 16)
    for image, matrix in zip(images, matrices, strict=True):
        assert distance(image[: len(matrix)], newton_schulz(matrix.double(), torch.float64)) < NEAR
        assert not image[len(matrix) :].any()


def test_bucket_members_share_columns_factor_and_dtype() -> None:
    shapes = [(8, 36), (8, 4, 3, 3), (2, 36), (200, 36), (8, 37), (4, 4, 9, 1), (4, 4, 3, 3)]
    params = weights(shapes)
    params[-1] = nn.Parameter(params[-1].detach().double())
    # 200 rows are over 16 times 2; s of (200, 36), (8, 36) and (2, 36) is 2.4, 1 and 1; of a 9 x 1 kernel it is 3.
    assert buckets(params) == [[2, 0, 1], [3], [4], [5], [6]]
    # 32 is 16 times 2 exactly; the next bucket begins with 33.
    assert buckets(weights([(33, 600), (2, 600), (500, 600), (32, 600)])) == [[1, 3], [0, 2]]


def test_batched_and_one_by_one_agree_within_bfloat16() -> None:
    both = []
    for batched in (True, False):
        params = weights()
        run(MuSGD(params, lr=0.1, batched=batched), params)
        both.append(params)
    for left, right, start in zip(*both, weights(), strict=True):
        assert distance(left.detach() - start.detach(), right.detach() - start.detach()) < NEAR


@pytest.mark.parametrize("shape", [(7,), (3, 1, 1), (2, 3, 2, 2, 2), ()], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_other_dimensions_take_sgd_bit_for_bit(shape: tuple[int, ...], decay: float) -> None:
    """A LayerScale gain of (C, 1, 1) and a 3-D convolution as well (ultralytics#25447); zeros keep their sign."""
    ours, theirs = weights([shape]), weights([shape])
    for params, make in ((ours, MuSGD), (theirs, torch.optim.SGD)):
        sgd = {"nesterov": True} if make is torch.optim.SGD else {}
        optimizer = make(params, lr=0.1, momentum=0.9, weight_decay=decay, **sgd)
        params[0].grad = torch.full(shape, -0.0)
        optimizer.step()
        run(optimizer, params)
        params.append(optimizer.state[params[0]]["momentum_buffer"])
    assert compare(values(theirs), values(ours)) is None


def test_weight_without_gradient_is_left_out() -> None:
    """Its value and state stay as they are, and others' bits do not depend on it."""
    params = weights([(6, 36), (8, 36), (5,)])
    before = values(params)
    optimizer = MuSGD(params, lr=0.1, weight_decay=0.1)
    run(optimizer, [params[0]])
    assert compare(before, {**values(params), "0": before["0"]}) is None
    assert set(optimizer.state) == {params[0]}
    alone = weights([(6, 36)])
    run(MuSGD(alone, lr=0.1, weight_decay=0.1), alone)
    assert compare(values(alone), values(params[:1])) is None


def test_gradients_are_not_written() -> None:
    params = weights()
    give_gradients(params, 1)
    before = values([weight.grad for weight in params])
    optimizer = MuSGD(params, lr=0.1, weight_decay=0.1)
    optimizer.step()
    optimizer.step()
    assert compare(before, values([weight.grad for weight in params])) is None


def test_channels_last_weights_move_like_contiguous_ones() -> None:
    """But for roundings, and in their own memory format: weights, momenta, and gradients of the other format."""
    shapes = [(8, 4, 3, 3), (16, 4, 3, 3), (12, 4, 1, 1), (6, 1, 3, 3)]
    plain, last = weights(shapes), weights(shapes)
    for weight in last:
        weight.data = weight.data.to(memory_format=torch.channels_last)
    strides = [weight.stride() for weight in last]
    optimizers = [MuSGD(params, lr=0.1, weight_decay=0.01) for params in (plain, last)]
    for optimizer, params in zip(optimizers, (plain, last), strict=True):
        run(optimizer, params)
    for weight in last:
        weight.grad = weight.grad.contiguous()
    for optimizer in optimizers:
        optimizer.step()
    for left, right, start in zip(plain, last, weights(shapes), strict=True):
        assert distance(right.detach() - start.detach(), left.detach() - start.detach()) < 2e-3
    assert [weight.stride() for weight in last] == strides
    for name in ("muon_momentum", "momentum_buffer"):
        assert [optimizers[1].state[weight][name].stride() for weight in last] == strides


def test_weights_of_odd_strides_move_like_contiguous_ones() -> None:
    plain = weights([(6, 10)])
    odd = [nn.Parameter(plain[0].detach().T.contiguous().T), nn.Parameter(torch.zeros(6, 20)[:, ::2])]
    odd[1].data.copy_(plain[0].detach())
    for params in (plain, odd[:1], odd[1:]):
        run(MuSGD(params, lr=0.1), params)
    for weight in odd:
        assert distance(weight.detach(), plain[0].detach()) < 1e-3


def test_checkpoint_resumes_bit_for_bit() -> None:
    through, resumed = weights(), weights()
    optimizer = MuSGD(through, lr=0.1, weight_decay=0.01)
    run(optimizer, through, steps=5)
    first = MuSGD(resumed, lr=0.1, weight_decay=0.01)
    run(first, resumed, steps=2)
    saved = copy.deepcopy(first.state_dict())
    second = MuSGD(resumed, lr=0.7)
    second.load_state_dict(saved)
    run(second, resumed, steps=3, first=3)
    assert compare(values(through), values(resumed)) is None
    assert second.param_groups[0]["lr"] == 0.1


def test_groups_spare_biases_and_norms_the_decay() -> None:
    """Every weight once, a tied one too."""
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
    )
    network[5].weight = network[3].weight
    network.register_parameter("gain", nn.Parameter(torch.ones(4, 1, 1)))
    decayed, plain = MuSGD.groups(network, weight_decay=0.1)
    assert {id(one) for one in decayed["params"]} == {id(network[0].weight), id(network[3].weight), id(network.gain)}
    assert len(decayed["params"]) + len(plain["params"]) == len(list(network.parameters()))
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert [len(group["params"]) for group in MuSGD.groups(nn.BatchNorm2d(2))] == [2]
    optimizer = MuSGD([decayed, plain], lr=0.5)
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight)
    before = values([network[0].weight, network[1].weight])
    optimizer.step()
    after = values([network[0].weight, network[1].weight])
    assert compare({"1": before["1"]}, {"1": after["1"]}) is None
    torch.testing.assert_close(after["0"], before["0"] * (1 - 0.5 * 0.1 * 1.9))


@pytest.mark.parametrize("tensor", [False, True])
def test_scheduled_learning_rate_is_followed(tensor: bool) -> None:
    """Also where it is a tensor, which the scheduler writes into."""
    params = weights()
    expected = Definition(params, lr=0.1, mu=0.9, decay=0.0, dtype=torch.bfloat16)
    optimizer = MuSGD(params, lr=torch.tensor(0.1) if tensor else 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    for step in range(3):
        give_gradients(params, step)
        expected.lr = 0.1 / (step + 1)
        expected.step([weight.grad for weight in params])
        optimizer.step()
        schedule.step()
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor) is tensor
    for weight, value in zip(params, expected.values, strict=True):
        assert distance(weight.detach(), value) < 1e-3


def test_tensor_rate_and_momentum_that_stay_on_the_device_do_what_floats_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in: on a GPU such tensors are not read on the host; here the rule is told not to read them either."""
    monkeypatch.setattr("graphreplay.optim.musgd._number", lambda value, _: value)
    floats, tensors = weights(), weights()
    run(MuSGD(floats, lr=0.1, momentum=0.9, weight_decay=0.01), floats)
    run(MuSGD(tensors, lr=torch.tensor(0.1), momentum=torch.tensor(0.9), weight_decay=0.01), tensors)
    for left, right in zip(tensors, floats, strict=True):
        assert distance(left.detach(), right.detach()) < 1e-3


def test_groups_have_rates_of_their_own() -> None:
    params = weights([(6, 36), (6, 36)])
    before = values(params)
    run(MuSGD([{"params": params[:1], "lr": 0.0}, {"params": params[1:]}], lr=0.1), params, steps=1)
    assert compare({"0": before["0"]}, {"0": params[0].detach()}) is None
    assert distance(params[1].detach(), before["1"]) > 0.01


def test_closure_gives_loss_and_gradients() -> None:
    params = weights([(4, 5)])
    optimizer = MuSGD(params, lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert MuSGD(params).step() is None


def test_scaler_skips_a_step_with_an_infinite_gradient() -> None:
    params = weights([(4, 5), (3,)])
    optimizer = MuSGD(params, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(params[0].sum() + params[1].sum()).backward()
    params[1].grad[0] = math.inf
    before = values(params)
    scaler.step(optimizer)
    scaler.update()
    assert compare(before, values(params)) is None
    assert scaler.get_scale() == 2.0
    optimizer.zero_grad()
    plain = weights([(4, 5), (3,)])
    other = MuSGD(plain, lr=0.1)
    scaler.scale(params[0].square().sum() + params[1].sum()).backward()
    (plain[0].square().sum() + plain[1].sum()).backward()
    scaler.step(optimizer)
    other.step()
    assert compare(values(plain), values(params)) is None


class MuSGDModule(ReferenceModule):
    """The reference module under MuSGD, with a schedule of every step."""

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = MuSGD(MuSGD.groups(self.network), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def test_lightning_fit_repeats_bit_for_bit_and_learns() -> None:
    """Over accumulation windows, with a weight that never gets a gradient."""
    trainer = {"accelerator": "cpu", "max_epochs": 4, "accumulate_grad_batches": 2}
    scenario = Scenario(MuSGDModule, lambda: reference_batches([(2, 64, 64)], 4), trainer=trainer)
    first, again = fit(scenario, replay=False).state, fit(scenario, replay=False).state
    assert first.difference(again) is None
    assert first.losses[-1] < first.losses[0]
    assert compare({"": first.tensors["module.network.spare"]}, {"": torch.ones(3)}) is None


def test_a_network_has_far_fewer_buckets_than_matrices() -> None:
    """What the batching lives on."""
    matrices = [weight for weight in ReferenceNetwork().parameters() if weight.ndim in (2, 4)]
    assert len(matrices) == 51
    assert len(buckets(matrices)) == 14


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.1}, r"lr=-0\.1 must be a finite number of at least 0"),
        ({"lr": math.nan}, "lr=nan must be"),
        ({"lr": math.inf}, "lr=inf must be"),
        ({"lr": "fast"}, "lr='fast' must be"),
        ({"lr": torch.ones(2)}, r"lr is a torch\.float32 tensor of \(2,\), must be one floating value"),
        ({"momentum": 1.0}, r"momentum=1\.0 must be a finite number of at least 0 and below 1"),
        ({"momentum": torch.tensor(-0.5)}, r"momentum=-0\.5 must be"),
        ({"weight_decay": -1}, "weight_decay=-1 must be"),
        ({"weight_decay": torch.tensor(0.1)}, "weight_decay must be a float"),
        ({"batched": 1}, "batched=1 must be True or False"),
    ],
)
def test_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    """In the constructor and in a group."""
    with pytest.raises(OptionError, match=message):
        MuSGD(weights(), **options)
    with pytest.raises(OptionError, match=message):
        MuSGD([{"params": weights(), **options}])


def test_complex_weight_and_sparse_gradient_are_refused() -> None:
    with pytest.raises(OptionError, match=r"a weight of \(2, 2\) is complex"):
        MuSGD([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])
    table = nn.Embedding(4, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"no sparse gradient, as that of \(4, 3\); use sparse=False"):
        MuSGD(table.parameters()).step()
