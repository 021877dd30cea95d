"""Mean average precision and its similarities give what COCO's own evaluation and exact polygons give."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import metric_cases
import pytest
import torch
from metric_cases import CELLS, KINDS, SIDE, SIGMAS, Case, Picture, Thing

from graphreplay.errors import OptionError
from graphreplay.tasks.batch import MAX_OBJECTS, Batch, Predictions
from graphreplay.tasks.metrics import MeanAveragePrecision, box_iou, keypoint_similarity, mask_iou, rotated_iou
from graphreplay.tasks.metrics.average_precision import BOX_SHARE
from graphreplay.tasks.metrics.similarity import box_area
from graphreplay.tasks.scenes import SceneData

# Made by scripts/metric_goldens.py with pycocotools and shapely.
GOLDENS = json.loads(Path(__file__).with_name("metric_goldens.json").read_text())
CASES = {case.name: case for case in metric_cases.cases()}
PAIRS = {pairs.name: pairs for pairs in metric_cases.pairs()}


def predictions(picture: Picture) -> Predictions:
    found = picture.found
    return Predictions(
        scores=torch.tensor([one.score for one in found]),
        classes=torch.tensor([one.kind for one in found], dtype=torch.int64),
        boxes=torch.tensor([one.box for one in found]).reshape(-1, 4),
        rotated=torch.tensor([one.rotated for one in found]).reshape(-1, 5),
        keypoints=torch.tensor([one.keypoints for one in found]).reshape(-1, len(SIGMAS), 3)[..., :2],
        masks=torch.tensor([one.mask for one in found]).reshape(-1, CELLS, CELLS) > 0,
    )


def batch(pictures: Sequence[Picture]) -> Batch:
    """The true things, in the last places of each image, so that padding comes first."""
    count = len(pictures)
    made = Batch(
        images=torch.zeros(count, 3, SIDE, SIDE),
        present=torch.zeros(count, MAX_OBJECTS, dtype=torch.bool),
        classes=torch.zeros(count, MAX_OBJECTS, dtype=torch.int64),
        boxes=torch.zeros(count, MAX_OBJECTS, 4),
        keypoints=torch.zeros(count, MAX_OBJECTS, len(SIGMAS), 3),
        rotated=torch.zeros(count, MAX_OBJECTS, 5),
        masks=torch.zeros(count, MAX_OBJECTS, CELLS, CELLS, dtype=torch.uint8),
    )
    for image, picture in enumerate(pictures):
        for place, one in enumerate(picture.true, MAX_OBJECTS - len(picture.true)):
            made.present[image, place] = True
            made.classes[image, place] = one.kind
            made.masks[image, place] = torch.tensor(one.mask)
            for field in ("boxes", "keypoints", "rotated"):
                getattr(made, field)[image, place] = shape(one, field)
    return made


def shape(one: Thing, field: str) -> torch.Tensor:
    values = {"boxes": one.box, "keypoints": one.keypoints, "rotated": one.rotated, "masks": one.mask}
    return torch.tensor(values[field])


def evaluated(kind: str, case: Case, size: int = 5) -> dict[str, float]:
    metric = MeanAveragePrecision(kind, sigmas=SIGMAS, max_detections=case.limit)
    for start in range(0, len(case.pictures), size):
        part = case.pictures[start : start + size]
        metric.update([predictions(picture) for picture in part], batch(part))
    return metric.compute()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_precision_is_that_of_pycocotools(kind: str, name: str) -> None:
    assert evaluated(kind, CASES[name]) == pytest.approx(GOLDENS["precision"][name][kind], abs=1e-6)


def test_the_goldens_tell_kinds_and_thresholds_apart() -> None:
    assert set(GOLDENS["precision"]) == set(CASES)
    far = GOLDENS["precision"]["far"]
    assert len({far[kind]["map"] for kind in KINDS}) == len(KINDS)
    assert len({value for case in GOLDENS["precision"].values() for value in case["boxes"].values()}) > len(CASES)


@pytest.mark.parametrize("kind", KINDS)
def test_similarity_is_that_of_pycocotools_and_shapely(kind: str) -> None:
    for name, golden in GOLDENS["similarity"].items():
        if kind in golden:
            measured = similarity(kind, PAIRS[name].ones, PAIRS[name].others)
            torch.testing.assert_close(measured, torch.tensor(golden[kind], dtype=torch.float64), atol=1e-9, rtol=0)


def similarity(kind: str, ones: Sequence[Thing], others: Sequence[Thing]) -> torch.Tensor:
    one, other = (torch.stack([shape(thing, kind) for thing in things]).double() for things in (ones, others))
    if kind == "keypoints":
        areas = BOX_SHARE * box_area(torch.tensor([thing.box for thing in others], dtype=torch.float64))
        return keypoint_similarity(one[..., :2], other, areas, torch.tensor(SIGMAS, dtype=torch.float64))
    return {"boxes": box_iou, "rotated": rotated_iou, "masks": mask_iou}[kind](one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_precision_is_the_same_however_the_images_are_batched(kind: str) -> None:
    for case in (CASES["mixed"], CASES["equal scores"]):
        assert evaluated(kind, case, size=1) == evaluated(kind, case, size=7) == evaluated(kind, case, size=100)


def test_reset_forgets_what_was_seen() -> None:
    metric = MeanAveragePrecision("boxes")
    for name in ("far", "mixed"):
        metric.reset()
        metric.update([predictions(picture) for picture in CASES[name].pictures], batch(CASES[name].pictures))
    assert metric.compute() == pytest.approx(GOLDENS["precision"]["mixed"]["boxes"], abs=1e-6)
    metric.reset()
    assert metric.compute() == {"map50": -1.0, "map": -1.0}


def test_an_object_without_a_visible_keypoint_does_not_count() -> None:
    picture = CASES["perfect"].pictures[0]
    hidden = picture.true[0]._replace(keypoints=[[*point[:2], 0.0] for point in picture.true[0].keypoints])
    with_hidden = Case("hidden", [Picture(picture.found, [*picture.true, hidden]), Picture([], [hidden])])
    assert evaluated("keypoints", with_hidden) == {"map50": 1.0, "map": 1.0}
    assert evaluated("boxes", with_hidden)["map50"] < 1


@pytest.mark.parametrize(
    ("task", "kind"),
    [("detection", "boxes"), ("oriented", "rotated"), ("pose", "keypoints"), ("segmentation", "masks")],
)
def test_the_truth_of_scenes_scores_one_and_less_when_some_is_missing(task: str, kind: str) -> None:
    whole, part = MeanAveragePrecision(kind), MeanAveragePrecision(kind)
    for targets in SceneData(task, batch_size=4, sizes=((96, 96), (64, 96)), val_scenes=10).val_dataloader():
        truth = [true_predictions(targets, image, kind) for image in range(len(targets.images))]
        whole.update(truth, targets)
        part.update([first_half(one) for one in truth], targets)
    assert whole.compute() == {"map50": 1.0, "map": 1.0}
    assert 0 < part.compute()["map"] < 1


def true_predictions(targets: Batch, image: int, kind: str) -> Predictions:
    present = targets.present[image]
    shapes = getattr(targets, kind)[image][present]
    shapes = {"keypoints": shapes[..., :2], "masks": shapes > 0}.get(kind, shapes)
    return Predictions(torch.ones(int(present.sum())), targets.classes[image][present], **{kind: shapes})


def first_half(one: Predictions) -> Predictions:
    return Predictions(*(None if field is None else field[: len(field) // 2] for field in one))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_predictions_may_come_in_other_precisions_and_with_gradients(dtype: torch.dtype) -> None:
    targets = next(iter(SceneData("detection", batch_size=8, val_scenes=8).val_dataloader()))
    metric = MeanAveragePrecision("boxes")
    found = [true_predictions(targets, image, "boxes") for image in range(8)]
    metric.update(
        [one._replace(scores=one.scores.to(dtype).requires_grad_(), boxes=one.boxes.to(dtype)) for one in found],
        targets,
    )
    assert metric.compute()["map50"] == 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_precision_is_the_same_for_what_lies_on_the_gpu(kind: str) -> None:
    pictures = CASES["mixed"].pictures
    metric = MeanAveragePrecision(kind, sigmas=SIGMAS)
    found = [Predictions(*(field.cuda() for field in predictions(picture))) for picture in pictures]
    metric.update(found, Batch(*(field.cuda() for field in batch(pictures))))
    assert metric.compute() == evaluated(kind, CASES["mixed"])


def test_the_intersection_of_a_square_and_itself_turned_by_an_eighth_is_an_octagon() -> None:
    square = torch.tensor([[5.0, 7.0, 1.0, 1.0, 0.3], [5.0, 7.0, 1.0, 1.0, 0.3 + math.pi / 4]], dtype=torch.float64)
    octagon = 2 * (math.sqrt(2) - 1)
    assert rotated_iou(square[:1], square[1:]).item() == pytest.approx(octagon / (2 - octagon), abs=1e-12)


def test_rotated_boxes_without_area_are_like_nothing_and_not_nan() -> None:
    boxes = torch.tensor([[5.0, 5, 0, 0, 0], [5, 5, 4, 0, 0.5], [5, 5, 4, 2, 0.5]])
    assert rotated_iou(boxes, boxes).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, pytest.approx(1)]]


def test_rotated_iou_does_not_depend_on_order_place_or_common_turn() -> None:
    random = torch.Generator().manual_seed(3)
    boxes = torch.rand(40, 5, generator=random, dtype=torch.float64) * torch.tensor([20, 20, 15, 15, 3]) + 0.1
    iou = rotated_iou(boxes, boxes)
    assert 0.1 < (iou > 0).double().mean() < 0.9
    torch.testing.assert_close(iou, iou.T, atol=1e-12, rtol=0)
    cosine, sine = math.cos(1.1), math.sin(1.1)
    turned = boxes.clone()
    turned[:, 0] = 300 + boxes[:, 0] * cosine - boxes[:, 1] * sine
    turned[:, 1] = -40 + boxes[:, 0] * sine + boxes[:, 1] * cosine
    turned[:, 4] += 1.1
    torch.testing.assert_close(rotated_iou(turned, turned), iou, atol=1e-12, rtol=0)
    swapped = torch.stack([*boxes.T[:2], boxes[:, 3], boxes[:, 2], boxes[:, 4] + math.pi / 2], 1)
    torch.testing.assert_close(rotated_iou(swapped, boxes), iou, atol=1e-12, rtol=0)


def test_boxes_turned_inside_out_have_no_area() -> None:
    boxes = torch.tensor([[4.0, 4, 2, 2], [4, 2, 2, 4], [2, 2, 4, 4]])
    assert box_iou(boxes, boxes).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "box"}, "kind='box' is unknown; use one of boxes, rotated, keypoints, masks"),
        ({"sigmas": (0.1, 0)}, "sigmas=(0.1, 0) must be positive, one a keypoint"),
        ({"max_detections": 0}, "max_detections=0 must be a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as refusal:
        MeanAveragePrecision(**{"kind": "boxes", **options})
    assert str(refusal.value) == says


def test_predictions_that_do_not_fit_the_batch_are_refused() -> None:
    pictures = CASES["mixed"].pictures[:3]
    found, targets = [predictions(picture) for picture in pictures], batch(pictures)
    with pytest.raises(ValueError, match="2 predictions for 3 images; give one for each"):
        MeanAveragePrecision("boxes").update(found[:2], targets)
    with pytest.raises(ValueError, match="predictions without masks; MeanAveragePrecision\\('masks'\\) compares them"):
        MeanAveragePrecision("masks").update([one._replace(masks=None) for one in found], targets)
    with pytest.raises(ValueError, match="4 keypoints and 2 sigmas; give one for each"):
        MeanAveragePrecision("keypoints", sigmas=(0.1, 0.1)).update(found, targets)
