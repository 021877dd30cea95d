"""One scene: an image of a few marked shapes on a noisy ground, and all that is true of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from graphreplay.tasks.batch import CLASSES
from graphreplay.tasks.scenes import drawing
from graphreplay.tasks.scenes.shapes import COSINES, GRAIN, KEYPOINTS, OUTLINES, TURN, placed

# Objects of a scene that is not empty; one in `EMPTY_SHARE` is empty.
MOST = 4
EMPTY_SHARE = 8
# In pixels: how long shapes are, how far apart their surroundings, and how far those of a cut scene may stick out.
SHORTEST, LONGEST, GAP, OVERHANG = 20, 60, 2, 5
CUT_SHARE = 4
# Breadth in sixteenths of the length, by class. Corners alone tell a small bar from a small oval too faintly: one short
# fit of a network with 0.08 million weights came to a map50 of 0.56 with equal breadths, and of 0.84 with these.
BREADTHS = ((11, 14), (5, 7), (8, 11))
_TRIES = 12
_DRAWS = 2 + MOST * (7 + 2 * _TRIES)


class Scene(NamedTuple):
    """A drawn image and its N objects. No two shapes touch, so nothing is hidden but what the frame cuts off.

    Attributes:
        image: (3, height, width) uint8.
        classes: (N,) int64: 0 wedge, 1 bar, 2 oval.
        boxes: (N, 4) float32: x1, y1, x2, y2 around exactly the pixels drawn.
        keypoints: (N, 4, 3) float32: front, back, and both sides of the middle; visible where inside the frame.
        rotated: (N, 5) float32: the rectangle around the whole shape, as in `Batch`; the width is the longer side.
        rows: (N, 2, height) int64: each object's first and one past the last pixel in every row.
    """

    image: torch.Tensor
    classes: torch.Tensor
    boxes: torch.Tensor
    keypoints: torch.Tensor
    rotated: torch.Tensor
    rows: torch.Tensor

    def pixels(self) -> torch.Tensor:
        """The objects' own pixels: (N, height, width) bool."""
        return drawing.cover(self.rows, self.image.size(2))

    def masks(self) -> torch.Tensor:
        """Masks at a quarter of the resolution: (N, height / 4, width / 4) uint8, 1 where half a cell is covered."""
        return drawing.coarse(self.rows, self.image.size(2))


class _Shape(NamedTuple):
    """An object's place, in sixteenths of a pixel, and its looks."""

    kind: int
    step: int
    half_length: int
    half_breadth: int
    colours: tuple[tuple[int, ...], tuple[int, ...]]
    x: int = 0
    y: int = 0

    def reach(self) -> tuple[int, int]:
        """Half the sides of the upright box around the rectangle around it, rounded up."""
        cosine, sine = abs(COSINES[self.step]), abs(COSINES[self.step - TURN // 4])
        across = self.half_length * cosine + self.half_breadth * sine
        down = self.half_length * sine + self.half_breadth * cosine
        return -(-across // COSINES[0]), -(-down // COSINES[0])


def draw_scene(seed: int, index: int, height: int, width: int) -> Scene:
    """Scene `index` of `seed` at a size in pixels: the same tensors in every process and on every machine.

    Height and width are multiples of 32.
    """
    random = torch.Generator().manual_seed(stream(seed, index))
    draws = iter(torch.randint(0, 1 << 16, (_DRAWS,), generator=random).tolist())
    ground = torch.tensor([50 + next(draws) % 50 for _ in range(3)], dtype=torch.uint8)
    noise = torch.randint(0, 32, (1, height, width), generator=random, dtype=torch.uint8)
    shapes = _shapes(draws, height, width)
    return _drawn(ground[:, None, None] + noise, shapes)


def stream(seed: int, index: int) -> int:
    """The generator's seed for one index: 32 bits, since torch's CPU generator takes no more. Different for each index.

    The mixing is that of MurmurHash3's finalizer, which maps 32 bits one to one.
    """
    return _mixed(_mixed(seed) + index * 0x9E3779B1)


def _mixed(bits: int) -> int:
    bits &= 0xFFFFFFFF
    bits = (bits ^ bits >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    bits = (bits ^ bits >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return bits ^ bits >> 16


def _shapes(draws: Iterator[int], height: int, width: int) -> list[_Shape]:
    """As many shapes as were drawn and found room."""
    if next(draws) % EMPTY_SHARE == 0:
        return []
    overhang = 0 if next(draws) % CUT_SHARE else OVERHANG * GRAIN
    taken: list[_Shape] = []
    for _ in range(1 + next(draws) % MOST):
        shape = _shape(draws, min(height, width))
        spots = list(itertools.islice(draws, 2 * _TRIES))
        for x, y in zip(spots[::2], spots[1::2], strict=True):
            spot = _moved(shape, x, y, (width * GRAIN, height * GRAIN), overhang)
            if not any(_close(spot, other) for other in taken):
                taken.append(spot)
                break
    return taken


def _shape(draws: Iterator[int], side: int) -> _Shape:
    kind, step = next(draws) % CLASSES, next(draws) % TURN
    shortest, longest = min(SHORTEST, side // 2), min(LONGEST, side * 5 // 8)
    half_length = (shortest * GRAIN + next(draws) % ((longest - shortest) * GRAIN + 1)) // 2
    thinnest, thickest = BREADTHS[kind]
    half_breadth = half_length * (thinnest + next(draws) % (thickest - thinnest + 1)) // 16
    return _Shape(kind, step, half_length, half_breadth, _colours(*itertools.islice(draws, 3)))


def _colours(hue: int, strong: int, weak: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A light colour of the body and a dark one of the mark: neither says anything of the class."""
    lit = hue % 6 + 1
    body = [190 + strong % 64 if lit >> channel & 1 else 60 + weak % 64 for channel in range(3)]
    return tuple(body), (strong % 24, weak % 24, hue % 24)


def _moved(shape: _Shape, x: int, y: int, frame: tuple[int, int], overhang: int) -> _Shape:
    """The shape where two draws put it: inside the frame but for `overhang`."""
    at = []
    for draw, side, reach in zip((x, y), frame, shape.reach(), strict=True):
        low = reach - overhang
        at.append(low + draw % (side - 2 * low + 1))
    return shape._replace(x=at[0], y=at[1])


def _close(one: _Shape, other: _Shape) -> bool:
    apart = abs(one.x - other.x), abs(one.y - other.y)
    return all(
        gap < a + b + GAP * GRAIN for gap, a, b in zip(apart, one.reach(), other.reach(), strict=True)
    )  # fmt: skip


def _drawn(image: torch.Tensor, shapes: list[_Shape]) -> Scene:
    height, width = image.shape[1:]
    classes = torch.tensor([shape.kind for shape in shapes], dtype=torch.int64)
    places = torch.tensor(
        [(s.x, s.y, s.half_length, s.half_breadth, COSINES[s.step], COSINES[s.step - TURN // 4]) for s in shapes],
        dtype=torch.int64,
    ).reshape(-1, 6)
    rotated = [
        (s.x / GRAIN, s.y / GRAIN, 2 * s.half_length / GRAIN, 2 * s.half_breadth / GRAIN, _angle(s.step))
        for s in shapes
    ]
    rows = drawing.spans(placed(OUTLINES[classes], places), height, width)
    for (body, mark), shape in zip(drawing.cover(rows, width), shapes, strict=True):
        light, dark = torch.tensor(shape.colours, dtype=torch.uint8)[..., None, None]
        image = torch.where(body, torch.where(mark, dark, light), image)
    return Scene(
        image,
        classes,
        drawing.boxes(rows[:, 0]).float(),
        _keypoints(placed(KEYPOINTS[classes], places), height, width),
        torch.tensor(rotated).reshape(-1, 5),
        rows[:, 0],
    )


def _angle(step: int) -> float:
    """The direction modulo half a turn, in [-pi/4, 3 pi/4)."""
    return ((step + TURN // 8) % (TURN // 2) - TURN // 8) * (2 * math.pi / TURN)


def _keypoints(points: torch.Tensor, height: int, width: int) -> torch.Tensor:
    points = points.float() / GRAIN
    inside = (points >= 0) & (points < torch.tensor([width, height]))
    return torch.cat([points, inside.all(-1, keepdim=True)], -1)
