"""From maps to objects: maps that say the truth are found to be right in every task, and suppression is greedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from task_cases import MODULES, TASKS, emptied, exact_sides, scene_batch

from graphreplay.tasks.anchors import Anchors, anchors
from graphreplay.tasks.batch import CLASSES, MAX_OBJECTS, Batch
from graphreplay.tasks.losses.rotated import reach
from graphreplay.tasks.metrics import MeanAveragePrecision
from graphreplay.tasks.networks import PROTOTYPES, DetectionMaps
from graphreplay.tasks.predictions import LEAST_SCORE, MOST, _greedy, detections

CPU = torch.device("cpu")
SURE, NEVER = 8.0, -20.0


def true_maps(task: str, batch: Batch) -> Any:
    """Maps in which the anchor nearest to each object says the truth, and all others say that nothing is there."""
    maps = [torch.zeros_like(one) for one in TASKS[task].network().eval()(batch.images)]
    at = anchors(*batch.images.shape[2:], CPU)
    maps[1].fill_(NEVER)
    if task == "segmentation":
        maps[3][:, :MAX_OBJECTS] = batch.masks.float() * 20 - 10
    for image, place in batch.present.nonzero().tolist():
        anchor = nearest(batch, image, place, at)
        maps[1][image, batch.classes[image, place], anchor] = SURE - place
        for index, values in enumerate(truth(task, batch, image, place, at)):
            maps[0 if index == 0 else index + 1][image, :, anchor] = values[..., anchor]
    return type(TASKS[task].network().eval()(batch.images))(*maps)


def nearest(batch: Batch, image: int, place: int, at: Anchors) -> int:
    """At stride 8, that nobody's sides are too long for."""
    centre = batch.rotated[image, place, :2]
    return int(torch.where(at.strides == 8, (at.points - centre).square().sum(1), torch.inf).argmin())


def truth(task: str, batch: Batch, image: int, place: int, at: Anchors) -> list[torch.Tensor]:
    """What all anchors would say of one object: sides, and what the task has beside them, (values, A) each."""
    box = batch.boxes[image, place]
    aims = torch.cat([at.points - box[:2], box[2:] - at.points], 1)
    if task == "oriented":
        turned = batch.rotated[image, place]
        sides = exact_sides(reach(turned, at.points) / at.strides[:, None])[0]
        return [sides, torch.logit(turned[4] / torch.pi + 0.25).expand(1, len(at.points))]
    sides = exact_sides(aims / at.strides[:, None])[0]
    if task == "pose":
        points = batch.keypoints[image, place, :, :2]
        return [sides, ((points - at.points[:, None]) / at.strides[:, None, None]).flatten(1).T]
    if task == "segmentation":
        return [sides, torch.eye(PROTOTYPES)[place][:, None].expand(-1, len(at.points))]
    return [sides]


@pytest.mark.parametrize("task", MODULES)
@pytest.mark.parametrize("seed", [0, 1])
def test_maps_that_say_the_truth_have_a_precision_of_one(task: str, seed: int) -> None:
    batch = scene_batch(task, 8, 96, 128, seed=seed)
    module = MODULES[task](width=2)
    precision = MeanAveragePrecision(module.kind)
    found = module.predictions(true_maps(task, batch), (96, 128))
    precision.update(found, batch)
    assert [len(one.scores) for one in found] == batch.present.sum(1).tolist()
    assert precision.compute()["map50"] == 1
    # A mask's cell at the edge, half covered, may have its centre outside of the box.
    assert precision.compute()["map"] > 0.9


@pytest.mark.parametrize("task", MODULES)
def test_nothing_is_found_where_nothing_is_said(task: str) -> None:
    batch = emptied(scene_batch(task))
    found = MODULES[task](width=2).predictions(true_maps(task, batch), tuple(batch.images.shape[2:]))
    assert [len(one.scores) for one in found] == [0] * 4


def test_suppression_is_greedy() -> None:
    """Against a loop, on random rivalries of all densities."""
    random = torch.Generator().manual_seed(0)
    density = torch.linspace(0, 0.3, 30)[:, None, None]
    rivals = (torch.rand(30, 60, 60, generator=random) < density).triu(1)
    expected = []
    for image in rivals.tolist():
        keep: list[int] = []
        for one in range(60):
            if not any(image[better][one] for better in keep):
                keep.append(one)
        expected.append([one in keep for one in range(60)])
    assert _greedy(rivals).tolist() == expected


def test_only_rivals_of_one_class_are_suppressed() -> None:
    """All anchors say the same box: of each class the best stays."""
    at = anchors(64, 64, CPU)
    count = len(at.points)
    aims = torch.cat([at.points - 8, 56 - at.points], 1).clamp(min=0) / at.strides[:, None]
    scores = torch.rand(1, CLASSES, count, generator=torch.Generator().manual_seed(0))
    (found,) = detections(DetectionMaps(exact_sides(aims), scores.logit()), (64, 64))
    best, kinds = scores[0].max(0)
    assert sorted(found.classes[:CLASSES].tolist()) == list(range(CLASSES))
    inner = ((at.points > 8) & (at.points < 56)).all(1)
    for kind in range(CLASSES):
        of_kind = (found.classes == kind).nonzero()[:, 0]
        assert found.scores[of_kind[0]].item() == pytest.approx(best[kinds == kind].max().item(), abs=1e-6)
        assert len(of_kind) <= 1 + (~inner & (kinds == kind)).sum()


def test_found_objects_are_few_sure_and_ordered() -> None:
    random = torch.Generator().manual_seed(0)
    maps = DetectionMaps(torch.randn(2, 64, 336, generator=random) * 9, torch.randn(2, 3, 336, generator=random) * 9)
    for found in detections(maps, (128, 128)):
        assert 0 < len(found.scores) <= MOST
        assert (found.scores > LEAST_SCORE).all()
        assert (found.scores.diff() <= 0).all()
