"""The losses of the four tasks: assignment and overlaps against what can be said by hand, and what they must not do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from task_cases import TASKS, emptied, exact_sides, random_maps, scene_batch
from torch.utils._python_dispatch import TorchDispatchMode

from graphreplay.tasks.anchors import anchors
from graphreplay.tasks.batch import Batch
from graphreplay.tasks.losses.assignment import CANDIDATES, Assignment, assign
from graphreplay.tasks.losses.boxes import complete_iou, decode, distances, inside, iou, side_loss
from graphreplay.tasks.losses.keypoints import SPREAD, residual_loss, similarity_loss
from graphreplay.tasks.losses.masks import mask_loss, within
from graphreplay.tasks.losses.rotated import decode_angles, decode_rotated, inside_rotated, probabilistic_iou, reach
from graphreplay.tasks.networks import BINS

CPU = torch.device("cpu")
ALL = pytest.mark.parametrize("task", TASKS)


def boxes(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Assignment


def loop_assign(
    scores: torch.Tensor, overlaps: torch.Tensor, within_box: torch.Tensor, classes: torch.Tensor, present: torch.Tensor
) -> tuple[list[list[int | None]], torch.Tensor]:
    """The same by loops, as the paper tells it: each anchor's place (None for none), and its alignment."""
    images, places, count = overlaps.shape
    owners: list[list[int | None]] = []
    alignment = torch.zeros(images, count)
    for image in range(images):
        metric = [
            [
                float(scores[image, classes[image, place], anchor]) ** 0.5 * float(overlaps[image, place, anchor]) ** 6
                for anchor in range(count)
            ]
            for place in range(places)
        ]
        owner: list[int | None] = [None] * count
        for place in range(places):
            allowed = [a for a in range(count) if present[image, place] and within_box[image, place, a]]
            for anchor in sorted(allowed, key=lambda a: -metric[place][a])[:CANDIDATES]:
                rival = owner[anchor]
                if rival is None or overlaps[image, place, anchor] > overlaps[image, rival, anchor]:
                    owner[anchor] = place
        for place in range(places):
            mine = [anchor for anchor in range(count) if owner[anchor] == place]
            for anchor in mine:
                share = metric[place][anchor] / max(metric[place][a] for a in mine)
                alignment[image, anchor] = share * max(float(overlaps[image, place, a]) for a in mine)
        owners.append(owner)
    return owners, alignment


@pytest.mark.parametrize("seed", range(5))
def test_assignment_is_that_of_the_paper(seed: int) -> None:
    """With crowds of random boxes that share anchors."""
    random = torch.Generator().manual_seed(seed)
    at = anchors(64, 64, CPU)
    corners = torch.rand(3, 6, 2, generator=random) * 44
    truth = torch.cat([corners, corners + 8 + torch.rand(3, 6, 2, generator=random) * 40], -1)
    guesses = at.points - 10 + torch.rand(3, len(at.points), 2, generator=random) * 8
    guesses = torch.cat([guesses, guesses + 6 + torch.rand(guesses.shape, generator=random) * 30], -1)
    scores = torch.rand(3, 4, len(at.points), generator=random)
    classes = torch.randint(0, 4, (3, 6), generator=random)
    present = torch.rand(3, 6, generator=random) < 0.7
    overlaps, near = iou(truth[:, :, None], guesses[:, None]), inside(truth, at, 0.0)
    found = assign(scores, overlaps, near, classes, present)
    owners, alignment = loop_assign(scores, overlaps, near, classes, present)
    assert found.positive.tolist() == [[place is not None for place in row] for row in owners]
    assert torch.where(found.positive, found.owner, -1).tolist() == [
        [-1 if place is None else place for place in row] for row in owners
    ]
    torch.testing.assert_close(found.alignment, alignment)
    crowded = (near & present[:, :, None]).sum(1) > 1
    assert (crowded & found.positive).any()


def test_candidates_that_are_kept_are_the_positive_anchors() -> None:
    found = assigned(scene_batch("detection", 8))
    assert torch.equal((found.picks & found.kept[..., None]).sum((1, 2)), found.positive.long())
    assert (found.picks.sum(3) == 1).all()
    assert found.picks.sum(2).max() == 1


def assigned(batch: Batch) -> Assignment:
    maps = random_maps("detection", batch)
    at = anchors(*batch.images.shape[2:], CPU)
    overlaps = iou(batch.boxes[:, :, None], decode(maps.sides.detach(), at)[:, None])
    near = inside(batch.boxes, at, 0.0)
    return assign(maps.classes.detach().sigmoid(), overlaps, near, batch.classes, batch.present)


def test_every_object_has_an_anchor_even_where_nothing_overlaps() -> None:
    """Before anything is learned, all alignments may be 0: anchors inside are still preferred to those outside."""
    at = anchors(64, 64, CPU)
    truth = torch.tensor([[[3.0, 3.0, 29.0, 29.0], [33.0, 40.0, 60.0, 61.0]]])
    near = inside(truth, at, 0.0)
    nothing = torch.zeros(1, 2, len(at.points))
    found = assign(torch.rand(1, 3, len(at.points)), nothing, near, torch.tensor([[0, 2]]), torch.ones(1, 2).bool())
    assert found.kept.any(-1).all()
    assert (near[:, :, None] | ~found.picks).all(3)[found.kept].all()
    assert (found.alignment == 0).all()


@pytest.mark.parametrize("turn", [0.0, 0.3, math.pi / 4, 1.2])
def test_the_smallest_objects_hold_an_anchor_wherever_they_are(turn: float) -> None:
    at = anchors(64, 64, CPU)
    random = torch.Generator().manual_seed(0)
    centres = 8 + 48 * torch.rand(1, 200, 2, generator=random)
    tiny = torch.cat([centres, torch.full((1, 200, 2), 3.0), torch.full((1, 200, 1), turn)], -1)
    assert inside_rotated(tiny, at, 12.0).any(-1).all()
    assert inside(torch.cat([centres - 1.5, centres + 1.5], -1), at, 12.0).any(-1).all()


def test_rotated_and_upright_agree_about_what_is_inside() -> None:
    at = anchors(64, 96, CPU)
    upright = torch.tensor([[[10.0, 14.0, 50.0, 33.0]]])
    rotated = torch.tensor([[[30.0, 23.5, 40.0, 19.0, 0.0], [30.0, 23.5, 19.0, 40.0, math.pi / 2]]])
    assert torch.equal(inside(upright, at, 0.0).expand(1, 2, -1), inside_rotated(rotated, at, 0.0))


# Overlaps


def test_complete_iou_by_hand() -> None:
    same, aside = boxes((0, 0, 2, 2)), boxes((1, 1, 3, 3))
    assert complete_iou(same, same).item() == pytest.approx(1, abs=1e-6)
    assert complete_iou(same, aside).item() == pytest.approx(1 / 7 - 2 / 18, abs=1e-6)
    apart = boxes((8, 6, 10, 8))
    assert complete_iou(same, apart).item() == pytest.approx(-100 / 164, abs=1e-6)
    wide = boxes((0, 0, 4, 1))
    v = 4 / math.pi**2 * (math.atan(4) - math.atan(1)) ** 2
    overlap = 2 / 6
    expected = overlap - (1 + 0.25) / (16 + 4) - v * v / (1 - overlap + v)
    assert complete_iou(same, wide).item() == pytest.approx(expected, abs=1e-6)


def test_complete_iou_is_symmetric_and_does_not_mind_shift_and_scale() -> None:
    random = torch.Generator().manual_seed(0)
    left, right = torch.rand(2, 50, 2, 2, generator=random, dtype=torch.float64).sort(2).values.flatten(2) * 40
    left, right = left + boxes((0, 0, 3, 3)), right + boxes((0, 0, 3, 3))
    value = complete_iou(left, right)
    torch.testing.assert_close(complete_iou(right, left), value)
    torch.testing.assert_close(complete_iou(left * 2 + 7, right * 2 + 7), value)
    assert (value > -1.5).all()
    assert (value < iou(left, right)).all()


def test_probabilistic_iou_by_hand() -> None:
    """Two squares of side s, d apart: 1 - sqrt(1 - exp(-3/2 d^2 / s^2)). One within the other: from determinants."""
    square, aside = boxes((0, 0, 6, 6, 0.4)), boxes((3, 0, 6, 6, 0.1))
    assert probabilistic_iou(square, square).item() == pytest.approx(1, abs=1e-3)
    expected = 1 - math.sqrt(1 - math.exp(-1.5 * 9 / 36))
    assert probabilistic_iou(square, aside).item() == pytest.approx(expected, abs=1e-5)
    # Covariances 3 and 12 on each axis: det sum = 225, 4 sqrt(det det) = 144.
    twice = boxes((0, 0, 12, 12, 0))
    assert probabilistic_iou(square, twice).item() == pytest.approx(1 - math.sqrt(1 - 144**0.5 / 15), abs=1e-5)


def test_probabilistic_iou_does_not_mind_how_a_box_is_written() -> None:
    random = torch.Generator().manual_seed(0)
    left, right = 4 + torch.rand(2, 60, 5, generator=random, dtype=torch.float64) * 20
    value = probabilistic_iou(left, right)
    torch.testing.assert_close(probabilistic_iou(right, left), value)
    half_turn = right + boxes((0, 0, 0, 0, math.pi))
    torch.testing.assert_close(probabilistic_iou(left, half_turn), value)
    swapped = right[:, [0, 1, 3, 2, 4]] + boxes((0, 0, 0, 0, math.pi / 2))
    torch.testing.assert_close(probabilistic_iou(left, swapped), value)
    assert ((value >= 0) & (value <= 1)).all()


@pytest.mark.parametrize("angle", [0.0, 0.6, -1.0])
def test_probabilistic_iou_does_not_mind_a_turn_of_everything(angle: float) -> None:
    random = torch.Generator().manual_seed(1)
    left, right = 4 + torch.rand(2, 60, 5, generator=random, dtype=torch.float64) * 20

    def turned(rows: torch.Tensor) -> torch.Tensor:
        x, y, w, h, a = rows.unbind(-1)
        cos, sin = math.cos(angle), math.sin(angle)
        return torch.stack([x * cos - y * sin, x * sin + y * cos, w, h, a + angle], -1)

    torch.testing.assert_close(probabilistic_iou(turned(left), turned(right)), probabilistic_iou(left, right))


def test_overlaps_have_the_gradients_of_their_values() -> None:
    left = boxes((0, 0, 9, 5, 0.3), (5, 3, 8, 8, 1.4)).requires_grad_()
    right = boxes((2, 1, 7, 6, 0.9), (4, 4, 12, 3, 0.2))
    assert torch.autograd.gradcheck(probabilistic_iou, (left, right))


@pytest.mark.parametrize("overlap", [complete_iou, probabilistic_iou])
def test_overlaps_have_finite_gradients_where_boxes_are_the_same_or_flat(overlap: Any) -> None:
    rows = [(3.0, 3.0, 3.0, 3.0, 0.0), (1.0, 1.0, 5.0, 9.0, 0.2), (1e4, 1e4, 1e4, 1e4, 3.0)]
    rows.append((0.0, 0.0, 0.0, 0.0, 0.0))
    width = 4 if overlap is complete_iou else 5
    left = torch.tensor(rows)[:, None, :width].requires_grad_()
    value = overlap(left, torch.tensor(rows)[None, :, :width])
    value.sum().backward()
    assert value.isfinite().all()
    assert left.grad.isfinite().all()


# Boxes from maps


def test_sides_say_expected_distances() -> None:
    sides = torch.zeros(1, 4 * BINS, 1)
    sides[0, 5], sides[0, BINS + 2], sides[0, BINS + 3] = 1000.0, 1000.0, 1000.0
    assert distances(sides)[0, 0].tolist() == [5.0, 2.5, 7.5, 7.5]


def test_distribution_focal_loss_by_hand() -> None:
    """At 2.25: three quarters of the cross-entropy with bin 2, one quarter of that with bin 3."""
    random = torch.Generator().manual_seed(0)
    sides = torch.randn(1, 4 * BINS, 1, generator=random)
    logs = sides.view(4, BINS).log_softmax(1)
    aims = torch.tensor([[[2.25, 0.0, 15.0, 40.0]]])
    each = [-(0.75 * logs[0, 2] + 0.25 * logs[0, 3]), -logs[1, 0], -logs[2, 15], -logs[3, 15]]
    torch.testing.assert_close(side_loss(sides, aims)[0, 0], torch.stack(each).mean())


def test_a_rotated_box_is_found_again_from_its_sides() -> None:
    """Maps that say exactly the distances of an anchor from a box's sides decode to that box, whatever its angle."""
    at = anchors(64, 64, CPU)
    for angle in (-0.7, 0.0, 0.9, 2.2):
        box = torch.tensor([[30.0, 26.0, 28.0, 20.0, angle]]).expand(len(at.points), 5)
        aims = reach(box, at.points) / at.strides[:, None]
        near = (aims > 0).all(-1) & (aims < BINS - 1).all(-1)
        sides = exact_sides(aims)
        raw = torch.full((1, 1, len(at.points)), torch.logit(torch.tensor(angle / math.pi + 0.25)).item())
        decoded = decode_rotated(sides, raw, at)[0]
        assert near.sum() > 5
        torch.testing.assert_close(decoded[near], box[near], atol=2e-3, rtol=0)


def test_angles_cover_half_a_turn() -> None:
    low, high = decode_angles(torch.tensor([[[-40.0, 40.0]]]))[0].tolist()
    assert (low, high) == pytest.approx((-math.pi / 4, 3 * math.pi / 4))


# Keypoints and masks


def test_keypoint_losses_by_hand() -> None:
    """An object of 100 square pixels has the size 10."""
    points, targets = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 0.0]]])
    area = torch.tensor([100.0])
    expected = 1 - math.exp(-25 / (2 * 100 * SPREAD**2))
    assert similarity_loss(points, targets, area).item() == pytest.approx(expected)
    scales = torch.tensor([[[0.2, 0.5]]])
    expected = (math.log(0.4) + 0.3 / 0.2 + math.log(1.0) + 0.4 / 0.5) / 2
    assert residual_loss(points, scales, targets, area).item() == pytest.approx(expected)


def test_residuals_are_most_likely_where_the_scale_is_their_mean() -> None:
    """What makes the scale an uncertainty: the best scale of a Laplace distribution is the mean of |r|."""
    area = torch.tensor(1.0)
    residuals = torch.tensor([0.1, 0.2, 0.6]).view(3, 1, 1).expand(3, 1, 2)
    scales = torch.linspace(0.05, 0.9, 171)
    losses = [residual_loss(residuals, scale.expand(3, 1, 2), torch.zeros(3, 1, 2), area).mean() for scale in scales]
    assert scales[torch.stack(losses).argmin()].item() == pytest.approx(0.3, abs=0.01)


def test_mask_loss_by_hand() -> None:
    """Of a mask 4 x 4 with a box of 2 x 2: the mean entropy of those four pixels, and the mean over two anchors."""
    prototypes = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    coefficients = torch.tensor([[[1.0, -0.5, 9.0], [2.0, 0.0, 9.0]]])
    masks = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    masks[0, 0, 1, 1] = 1
    box = torch.tensor([[[4.0, 4.0, 12.0, 12.0]]])
    found = Assignment(
        torch.tensor([[True, True, False]]),
        torch.zeros(1, 3, dtype=torch.int64),
        torch.ones(1, 3),
        torch.eye(3, dtype=torch.bool)[None, None],
        torch.tensor([[[True, True, False]]]),
    )
    each = []
    for anchor in range(2):
        logits = torch.einsum("c,chw->hw", coefficients[0, :, anchor], prototypes[0])[1:3, 1:3].sigmoid()
        each.append(-(logits[0, 0].log() + (1 - logits).log().sum() - (1 - logits[0, 0]).log()) / 4)
    torch.testing.assert_close(mask_loss(coefficients, prototypes, masks, box, found), torch.stack(each).mean())


def test_a_pixel_is_within_a_box_that_holds_its_centre() -> None:
    assert within(torch.tensor([2.0, 5.9, 10.0, 14.0]), 4, 4).tolist() == [
        [False] * 4,
        [True, True, False, False],
        [True, True, False, False],
        [False] * 4,
    ]


# Whole losses


def value_and_gradients(task: str, maps: Any, batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    leaves = [one.detach().clone().requires_grad_() for one in maps]
    total = TASKS[task].loss(type(maps)(*leaves), batch).total
    return total.detach(), list(torch.autograd.grad(total, leaves, materialize_grads=True))


@ALL
def test_places_that_hold_nothing_have_no_effect(task: str) -> None:
    """More of them, and whatever is written there."""
    batch = scene_batch(task)
    maps = random_maps(task, batch)
    random = torch.Generator().manual_seed(0)
    more = [junk(target, random) for target in batch[2:]]
    present = torch.cat([batch.present, torch.zeros(4, 3, dtype=torch.bool)], 1)
    padded = Batch(batch.images, present, *(torch.cat(pair, 1) for pair in zip(batch[2:], more, strict=True)))
    value, gradients = value_and_gradients(task, maps, batch)
    again, others = value_and_gradients(task, maps, padded)
    torch.testing.assert_close(again, value)
    torch.testing.assert_close(others, gradients)


def junk(target: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Three places of random values as a target may have them."""
    shape = (target.size(0), 3, *target.shape[2:])
    if target.is_floating_point():
        return torch.rand(shape, generator=random) * 50
    return torch.randint(0, 2, shape, generator=random, dtype=target.dtype)


@ALL
def test_batches_without_objects_have_finite_gradients_and_teach_only_that_nothing_is_there(task: str) -> None:
    batch = emptied(scene_batch(task))
    maps = random_maps(task, batch)
    loss = TASKS[task].loss(maps, batch)
    loss.total.backward()
    assert {name for name, part in loss.parts.items() if part != 0} == {"classes"}
    assert (maps.classes.grad > 0).all()
    assert all((one.grad == 0).all() for name, one in maps._asdict().items() if name != "classes")


@ALL
def test_losses_of_half_precision_maps_are_computed_in_float32(task: str) -> None:
    batch = scene_batch(task)
    maps = random_maps(task, batch)
    for dtype in (torch.float16, torch.bfloat16):
        halves = type(maps)(*(one.detach().to(dtype) for one in maps))
        whole = type(maps)(*(one.float() for one in halves))
        with torch.autocast("cpu", torch.bfloat16):
            value, gradients = value_and_gradients(task, halves, batch)
        expected, _ = value_and_gradients(task, whole, batch)
        assert value.dtype == torch.float32
        assert torch.equal(value, expected)
        assert all(one.dtype == dtype and one.isfinite().all() for one in gradients)


@ALL
def test_losses_fall_when_maps_follow_their_gradients(task: str) -> None:
    batch = scene_batch(task)
    maps = random_maps(task, batch)
    optimizer = torch.optim.Adam(list(maps), lr=0.1)
    values = []
    for _ in range(80):
        optimizer.zero_grad()
        total = TASKS[task].loss(maps, batch).total
        total.backward()
        optimizer.step()
        values.append(total.item())
    assert values[-1] < values[0] / 3


@ALL
@pytest.mark.parametrize("empty", [False, True])
def test_losses_and_networks_read_nothing_back_and_sum_in_a_fixed_order(task: str, empty: bool) -> None:
    """No operation whose shape depends on values or whose result goes to the host, and none that CUDA does in another
    order each time. On a GPU, torch itself is asked in `test_task_replay.py`."""
    batch = scene_batch(task)
    batch = emptied(batch) if empty else batch
    network = TASKS[task].network()
    seen = Operations()
    with seen:
        TASKS[task].loss(network(batch.images), batch).total.backward()
    assert "convolution_backward" in seen.names
    assert seen.names & _FORBIDDEN == set()


# The backward of `prod` reads a value on a GPU, though not while it is watched like this.
_FORBIDDEN = {
    *("_local_scalar_dense", "nonzero", "masked_select", "index", "index_put", "_index_put_impl", "unique2", "item"),
    *("is_nonzero", "equal", "scatter_add", "index_add", "scatter_reduce", "cumsum", "kthvalue", "median", "histc"),
    *("upsample_nearest2d_backward", "upsample_bilinear2d_backward", "bincount", "repeat_interleave", "put"),
    *("scatter", "prod"),
}


class Operations(TorchDispatchMode):
    """Notes the names of all operations, those of the backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__.rstrip("_"))
        return function(*args, **(kwargs or {}))
