"""Drawn scenes are the same everywhere, their labels are those of what is drawn, and their batches vary in layout."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy

from graphreplay.errors import OptionError
from graphreplay.tasks.batch import CLASSES, KEYPOINTS, MASK_STRIDE, MAX_OBJECTS, TASKS, Batch
from graphreplay.tasks.scenes import Scene, SceneData, draw_scene
from graphreplay.tasks.scenes.drawing import cover, spans
from graphreplay.tasks.scenes.scene import GAP, LONGEST, MOST, OVERHANG, SHORTEST, stream
from graphreplay.tasks.scenes.shapes import GRAIN

# What scenes 0 to 7 of seed 3 are, at three sizes: pixels and labels. It may change with the drawing alone.
DIGEST = "63c0f4039a82434013fd9adce91c68a8c6d50d8d28dec5fc57f73e0e14b0b581"
SIZES = ((96, 96), (128, 96), (64, 160))


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(5, index, *SIZES[index % len(SIZES)]) for index in range(240)]


def digest(tensors: Iterable[torch.Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()))
    return total.hexdigest()


def objects(scenes: list[Scene]) -> Iterable[tuple[Scene, int]]:
    return [(scene, place) for scene in scenes for place in range(len(scene.classes))]


def test_scenes_are_the_same_on_every_machine() -> None:
    drawn = [draw_scene(3, index, *size) for index in range(8) for size in SIZES]
    assert digest(tensor for scene in drawn for tensor in (*scene, scene.masks())) == DIGEST


def test_every_index_has_a_stream_of_its_own() -> None:
    assert len({stream(1, index) for index in (*range(20_000), *range(1 << 31, (1 << 31) + 20_000))}) == 40_000
    assert stream(1, 0) != stream(2, 0)


def test_a_pixel_is_drawn_where_its_centre_is_not_outside_the_polygon() -> None:
    random = torch.Generator().manual_seed(1)
    height, width = 24, 32
    for _ in range(60):
        polygon = convex(torch.randint(-100, 600, (9, 2), generator=random).tolist())
        drawn = cover(spans(torch.tensor(polygon), height, width), width)
        expected = [[inside(polygon, x, y) for x in range(width)] for y in range(height)]
        assert drawn.tolist() == expected


def convex(points: list[list[int]]) -> list[list[int]]:
    """The corners of the points' convex hull, in clockwise order on the screen, by gift wrapping."""
    hull = [min(points)]
    while True:
        after = points[0]
        for point in points:
            turn = cross(hull[-1], after, point)
            if after == hull[-1] or turn < 0:
                after = point
        if after == hull[0]:
            return hull
        hull.append(after)


def cross(a: list[int], b: list[int], c: list[int]) -> int:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def inside(polygon: list[list[int]], x: int, y: int) -> bool:
    centre = [x * GRAIN + GRAIN // 2, y * GRAIN + GRAIN // 2]
    return all(cross(a, b, centre) >= 0 for a, b in zip(polygon, [*polygon[1:], polygon[0]], strict=True))


def test_boxes_are_tight_around_the_pixels(scenes: list[Scene]) -> None:
    for scene, place in objects(scenes):
        ys, xs = scene.pixels()[place].nonzero().unbind(1)
        assert scene.boxes[place].tolist() == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


def test_masks_hold_the_cells_of_which_half_is_drawn(scenes: list[Scene]) -> None:
    for scene in scenes:
        share = torch.nn.functional.avg_pool2d(scene.pixels()[:, None].float(), MASK_STRIDE)[:, 0]
        assert torch.equal(scene.masks(), (share >= 0.5).to(torch.uint8))
        assert scene.masks().flatten(1).any(1).all()


def test_rotated_boxes_surround_the_shape_and_its_ends_touch_them(scenes: list[Scene]) -> None:
    for scene, place in objects(scenes):
        x, y, width, height, angle = scene.rotated[place].tolist()
        assert torch.tensor(-math.pi / 4) <= scene.rotated[place, 4] < torch.tensor(3 * math.pi / 4)
        assert width > height
        points = scene.pixels()[place].nonzero().flip(1) + 0.5 - torch.tensor([x, y])
        along = points @ torch.tensor([math.cos(angle), math.sin(angle)])
        across = points @ torch.tensor([-math.sin(angle), math.cos(angle)])
        assert along.abs().max() <= width / 2 + 1 / GRAIN
        assert across.abs().max() <= height / 2 + 1 / GRAIN
        front, back = scene.keypoints[place, :2, :2] - torch.tensor([x, y])
        ends = torch.stack([front, back]) @ torch.tensor([math.cos(angle), math.sin(angle)])
        assert ends.abs().tolist() == pytest.approx([width / 2] * 2, abs=1 / GRAIN)
        if within(scene, place):
            # Bars and ovals reach the long sides too, and so do the back corners of a wedge, whose tips hold no centre.
            assert across.abs().max() >= height / 2 - 1.5


def within(scene: Scene, place: int) -> bool:
    """Whether nothing of the shape is cut off by the frame."""
    x1, y1, x2, y2 = scene.boxes[place].tolist()
    height, width = scene.image.shape[1:]
    return x1 > 0 and y1 > 0 and x2 < width and y2 < height


def test_the_front_of_a_shape_is_dark_and_its_back_is_light(scenes: list[Scene]) -> None:
    for scene, place in objects(scenes):
        if not within(scene, place):
            continue
        front, back, _, _ = scene.keypoints[place, :, :2]
        dark, light = (colour(scene, torch.lerp(front, back, share)) for share in (0.2, 0.8))
        assert dark.max() < 24
        assert light.max() >= 190


def colour(scene: Scene, point: torch.Tensor) -> torch.Tensor:
    x, y = point.floor().int().tolist()
    return scene.image[:, y, x]


def test_side_keypoints_lie_on_the_outline_in_a_fixed_order(scenes: list[Scene]) -> None:
    for scene, place in objects(scenes):
        front, back, right, left = scene.keypoints[place, :, :2]
        middle, ahead = (front + back) / 2, front - back
        for side, sign in ((right, 1), (left, -1)):
            out = side - middle
            assert sign * (ahead[0] * out[1] - ahead[1] * out[0]) > 0
            if within(scene, place):
                # Just inside belongs to the object, just outside does not.
                pixels = scene.pixels()[place]
                (x, y), (u, v) = (
                    (middle + out * by).floor().int().tolist() for by in (1 - 1.5 / out.norm(), 1 + 1.5 / out.norm())
                )
                assert pixels[y, x]
                assert not pixels[v, u]


def test_keypoints_are_visible_where_they_are_inside_the_frame(scenes: list[Scene]) -> None:
    hidden = 0
    for scene, place in objects(scenes):
        height, width = scene.image.shape[1:]
        for x, y, visible in scene.keypoints[place].tolist():
            assert visible == (0 <= x < width and 0 <= y < height)
            hidden += not visible
        assert scene.keypoints[place, :, 2].any()
    assert hidden


def test_no_two_objects_touch(scenes: list[Scene]) -> None:
    for scene in scenes:
        for (x1, y1, x2, y2), (u1, v1, u2, v2) in itertools.combinations(scene.boxes.tolist(), 2):
            assert max(x1 - u2, u1 - x2, y1 - v2, v1 - y2) >= GAP - 1


def test_scenes_vary_in_what_the_tasks_need(scenes: list[Scene]) -> None:
    counts = [len(scene.classes) for scene in scenes]
    assert set(counts) == set(range(MOST + 1))
    assert 0.05 < counts.count(0) / len(counts) < 0.25
    classes = torch.cat([scene.classes for scene in scenes]).bincount()
    assert len(classes) == CLASSES
    assert classes.min() > classes.sum() / 5
    lengths = torch.cat([scene.rotated[:, 2] for scene in scenes])
    assert SHORTEST <= lengths.min() < SHORTEST + 3
    assert 50 < max(draw.rotated[:, 2].max() for draw in drawn_large() if len(draw.classes)) <= LONGEST
    angles = torch.cat([scene.rotated[:, 4] for scene in scenes])
    assert torch.histc(angles, 8, -math.pi / 4, 3 * math.pi / 4).min() > 0


def drawn_large() -> list[Scene]:
    return [draw_scene(5, index, 160, 160) for index in range(40)]


def test_shapes_stick_out_of_the_frame_by_a_few_pixels_at_most(scenes: list[Scene]) -> None:
    for scene, place in objects(scenes):
        height, width = scene.image.shape[1:]
        for x, y in scene.keypoints[place, :, :2].tolist():
            assert -OVERHANG <= x <= width + OVERHANG
            assert -OVERHANG <= y <= height + OVERHANG


@pytest.mark.parametrize("size", [(32, 32), (32, 64), (64, 32)])
def test_small_images_hold_small_shapes(size: tuple[int, int]) -> None:
    drawn = [draw_scene(1, index, *size) for index in range(40)]
    assert sum(len(scene.classes) for scene in drawn) >= 30
    assert all(scene.masks().flatten(1).any(1).all() for scene in drawn)


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_holds_the_scenes_in_padded_places(task: str) -> None:
    sizes = ((96, 96), (64, 96))
    data = SceneData(task, batch_size=5, sizes=sizes, train_scenes=1, val_scenes=13, seed=2)
    batches = list(data.val_dataloader())
    assert [tuple(batch.images.shape) for batch in batches] == [(5, 3, 96, 96), (5, 3, 64, 96), (3, 3, 96, 96)]
    for number, batch in enumerate(batches):
        drawn = [draw_scene(2, (1 << 31) + 5 * number + item, *sizes[number % 2]) for item in range(len(batch.images))]
        assert_holds(batch, drawn, task)


def assert_holds(batch: Batch, drawn: list[Scene], task: str) -> None:
    height, width = batch.images.shape[2:]
    points = KEYPOINTS if task == "pose" else 0
    grid = (height // MASK_STRIDE, width // MASK_STRIDE) if task == "segmentation" else (0, 0)
    shapes = {"present": (), "classes": (), "boxes": (4,), "keypoints": (points, 3), "rotated": (5,), "masks": grid}
    for name, shape in shapes.items():
        assert getattr(batch, name).shape == (len(drawn), MAX_OBJECTS, *shape)
    assert [batch.present.dtype, batch.classes.dtype, batch.masks.dtype] == [torch.bool, torch.int64, torch.uint8]
    for item, scene in enumerate(drawn):
        held = {
            "classes": scene.classes,
            "boxes": scene.boxes,
            "rotated": scene.rotated,
            "keypoints": scene.keypoints[:, :points],
            "masks": scene.masks() if task == "segmentation" else scene.masks()[:, :0, :0],
        }
        count = len(scene.classes)
        assert torch.equal(batch.images[item], scene.image * torch.tensor(1 / 255))
        assert batch.present[item].tolist() == [place < count for place in range(MAX_OBJECTS)]
        for name, value in held.items():
            assert torch.equal(getattr(batch, name)[item, :count], value)
            assert not getattr(batch, name)[item, count:].any()


def test_an_epoch_shows_every_scene_once_and_the_next_in_another_order() -> None:
    data = SceneData("detection", batch_size=4, sizes=((32, 32),), train_scenes=30, seed=1)
    loader = data.train_dataloader()
    orders = []
    for epoch in (0, 1, 1):
        loader.batch_sampler.sampler.set_epoch(epoch)  # as Lightning does
        orders.append([digest([image]) for batch in loader for image in batch.images])
    assert len(loader) == 8
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(set(orders[0])) == 30
    assert orders[0] != orders[1]
    assert orders[1] == orders[2]


def test_validation_shows_no_scene_of_the_training() -> None:
    data = SceneData("detection", sizes=((32, 32),), train_scenes=40, val_scenes=40)
    train, val = (
        {digest([image]) for batch in loader for image in batch.images}
        for loader in (data.train_dataloader(), data.val_dataloader())
    )
    assert len(train) == len(val) == 40
    assert not train & val


@pytest.mark.data
def test_workers_draw_the_same_batches() -> None:
    alone, shared = (
        SceneData("segmentation", batch_size=3, sizes=((64, 64), (32, 64)), train_scenes=16, seed=4, workers=workers)
        for workers in (0, 2)
    )
    loader = shared.train_dataloader()
    for _ in range(2):  # the workers live on
        for one, other in zip(alone.train_dataloader(), loader, strict=True):
            assert isinstance(other, Batch)
            assert digest(one) == digest(other)


class Seen(LightningModule):
    """Notes which images it was shown, epoch by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.epochs: list[list[str]] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        assert isinstance(batch, Batch)
        self.epochs[-1] += [digest([image]) for image in batch.images]
        return self.weight * batch.images.mean()

    def validation_step(self, batch: Batch, _: int) -> None:
        assert isinstance(batch, Batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fitted(tmp_path: Any) -> list[list[str]]:
    module = Seen()
    trainer = Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, datamodule=SceneData("pose", sizes=((32, 32),), train_scenes=20, val_scenes=4, seed=6))
    return module.epochs


@pytest.mark.data
def test_lightning_shuffles_each_epoch_anew_and_each_fit_alike(tmp_path: Any) -> None:
    first, second = fitted(tmp_path), fitted(tmp_path)
    assert first == second
    assert len({tuple(epoch) for epoch in first}) == 3
    assert len({tuple(sorted(epoch)) for epoch in first}) == 1


@pytest.mark.gpu
@pytest.mark.data
def test_batches_come_in_pinned_memory() -> None:
    data = SceneData("pose", train_scenes=8, workers=1)
    for batch in data.train_dataloader():
        assert isinstance(batch, Batch)
        assert all(tensor.is_pinned() for tensor in batch if tensor.numel())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": "boxes"}, "task='boxes' is unknown; use one of detection, pose, oriented, segmentation"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number of at least 1"),
        ({"batch_size": True}, "batch_size=True must be a whole number of at least 1"),
        ({"train_scenes": 0}, "train_scenes=0 must be a whole number of at least 1"),
        ({"val_scenes": -1}, "val_scenes=-1 must be a whole number of at least 0"),
        ({"workers": 1.5}, "workers=1.5 must be a whole number of at least 0"),
        ({"seed": "1"}, "seed='1' must be a whole number of at least 0"),
        ({"sizes": ()}, "sizes=() names no size; give at least one (height, width)"),
        ({"sizes": ((96, 100),)}, "sizes holds (96, 100); height and width must be multiples of 32"),
        ({"sizes": ((0, 96),)}, "sizes holds (0, 96); height and width must be multiples of 32"),
        ({"sizes": (96, 96)}, "sizes holds 96; give pairs (height, width)"),
        ({"sizes": ((96, 96, 3),)}, "sizes holds (96, 96, 3); give pairs (height, width)"),
        ({"sizes": ((96.0, 96),)}, "sizes holds (96.0, 96); height and width must be multiples of 32"),
        ({"sizes": 96}, "sizes=96 must be a sequence of pairs (height, width)"),
        ({"pin_memory": "yes"}, "pin_memory='yes' must be True, False or None"),
    ],
)
def test_wrong_options_are_refused_with_the_way_out(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as refusal:
        SceneData(**{"task": "pose", **options})
    assert str(refusal.value) == says


class InTwo(SingleDeviceStrategy):
    """Stands for a strategy of two processes, and starts none."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.world_size = 2


@pytest.mark.parametrize("own", [True, False], ids=["lightning-shares-out", "nobody-shares-out"])
def test_several_processes_are_refused_with_the_way_out(own: bool) -> None:
    """Each would be shown all scenes."""
    trainer = Trainer(
        strategy=InTwo(), use_distributed_sampler=own, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(OptionError, match=r"the Trainer runs 2; use Trainer\(devices=1\)"):
        trainer.fit(Seen(), SceneData("pose"))
