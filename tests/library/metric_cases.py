"""Made-up predictions and truths for the metrics, in plain Python: the tests and the script that asks other evaluations
build the same cases from it. All positions are eighths, so that float32 holds them exactly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

KINDS = ("boxes", "rotated", "keypoints", "masks")
# Pixels of images, and cells of masks, along a side.
SIDE, CELLS = 96, 24
SIGMAS = (0.05, 0.1, 0.15, 0.025)
Numbers = list[float]


class Thing(NamedTuple):
    """An object, true or found. A true one's score means nothing."""

    kind: int
    score: float
    box: Numbers
    rotated: Numbers
    keypoints: list[Numbers]
    mask: list[list[int]]


class Picture(NamedTuple):
    found: list[Thing]
    true: list[Thing]


class Case(NamedTuple):
    name: str
    pictures: list[Picture]
    limit: int = 100


def cases() -> list[Case]:
    return [
        Case("mixed", pictures(1, 24)),
        Case("near", pictures(2, 24, jitter=3)),
        Case("far", pictures(3, 16, jitter=16)),
        Case("equal scores", pictures(4, 24, levels=2)),
        Case("doubled", pictures(5, 12, copies=3)),
        Case("three count", pictures(6, 12, copies=3, jitter=4), limit=3),
        Case("perfect", perfect(7)),
        Case("one class", pictures(8, 8, classes=1)),
        Case("class never found", pictures(9, 8, found_classes=2)),
        Case("class never there", pictures(10, 8, true_classes=2)),
        Case("nothing found", [Picture([], picture.true) for picture in pictures(11, 4)]),
        Case("nothing there", [Picture(picture.found, []) for picture in pictures(12, 4)]),
        Case("nothing at all", [Picture([], [])] * 3),
        Case("on the thresholds", on_the_thresholds()),
        Case("between two, the second needed", [between(0, 2)]),
        Case("between two, the first needed", [between(2, 0)]),
    ]


def pictures(
    seed: int,
    count: int,
    jitter: int = 8,
    copies: int = 1,
    levels: int = 64,
    classes: int = 3,
    true_classes: int | None = None,
    found_classes: int | None = None,
) -> list[Picture]:
    """Objects and what was found of them: some missed, some found up to `copies` times, some of the wrong class, and
    some that are not there. A share of the pictures is empty.

    Args:
        seed: Of all that is random.
        count: Pictures.
        jitter: How far from the truth the found are, in eighths of a pixel.
        copies: How often an object is found at most.
        levels: How many scores there are; few make equal ones.
        classes: How many there are.
        true_classes: How many of them are true.
        found_classes: How many of them are found.
    """
    draw = random.Random(seed)  # noqa: S311 -- cases, no secrets
    made = []
    for _ in range(count):
        true = [thing(draw, true_classes or classes) for _ in range(draw.choice((0, 1, 2, 3, 5)))]
        found = [thing(draw, found_classes or classes) for _ in range(draw.choice((0, 0, 1, 2)))]
        for one in true:
            for _ in range(draw.choice(range(copies + 1)) if draw.random() < 0.7 else 1):
                found.append(moved(draw, one, jitter, found_classes or classes))
        draw.shuffle(found)
        scored = [one._replace(score=draw.randrange(1, levels + 1) / 64) for one in found]
        made.append(Picture(scored, true))
    return made


def thing(draw: random.Random, classes: int) -> Thing:
    wide, high = draw.randrange(64, 320), draw.randrange(64, 320)
    x, y = draw.randrange(SIDE * 8 - wide), draw.randrange(SIDE * 8 - high)
    points = [[(x + draw.randrange(wide)) / 8, (y + draw.randrange(high)) / 8, draw.randrange(2)] for _ in SIGMAS]
    points[draw.randrange(len(points))][2] = 1
    box = [x / 8, y / 8, (x + wide) / 8, (y + high) / 8]
    turned = [x / 8 + wide / 16, y / 8 + high / 16, wide / 8, high / 8, draw.randrange(-50, 150) / 64]
    return Thing(draw.randrange(classes), 0.0, box, turned, points, mask(box))


def moved(draw: random.Random, one: Thing, jitter: int, classes: int) -> Thing:
    """A copy, off by some eighths of a pixel, and now and then of another class."""

    def near(values: Sequence[float]) -> Numbers:
        return [value + draw.randint(-jitter, jitter) / 8 for value in values]

    kind = one.kind if one.kind < classes and draw.random() < 0.9 else draw.randrange(classes)
    turned = [*near(one.rotated[:4]), one.rotated[4] + draw.randint(-jitter, jitter) / 64]
    points = [[*near(point[:2]), 1.0] for point in one.keypoints]
    box = near(one.box)
    return Thing(kind, 0.0, box, turned, points, mask(box))


def mask(box: Numbers) -> list[list[int]]:
    """An oval in the box, in cells."""
    share = CELLS / SIDE
    x1, y1, x2, y2 = (value * share for value in box)
    return [
        [
            int(((2 * x + 1 - x1 - x2) / (x2 - x1)) ** 2 + ((2 * y + 1 - y1 - y2) / (y2 - y1)) ** 2 <= 1)
            for x in range(CELLS)
        ]
        for y in range(CELLS)
    ]


def perfect(seed: int) -> list[Picture]:
    return [
        Picture(
            [one._replace(score=0.5, keypoints=[[*p[:2], 1.0] for p in one.keypoints]) for one in made.true], made.true
        )
        for made in pictures(seed, 10)
    ]


def on_the_thresholds() -> list[Picture]:
    """Objects of 20 by 4 found as 10 to 19 by 4: their IoU is 0.5, 0.55 and so on to 0.95."""
    made = []
    for cells in range(10, 20):
        whole, part = bar(20), bar(cells)
        made.append(Picture([part._replace(score=cells / 64)], [whole]))
    return made


def between(first: int, second: int) -> Picture:
    """The best found is as near to one object as to the other; the next best is the one that lies at 2."""
    found = [bar(12, 1)._replace(score=1.0), bar(12, 2)._replace(score=0.5)]
    return Picture(found, [bar(12, first), bar(12, second)])


def bar(cells: int, left: int = 0) -> Thing:
    rows = [[int(2 + left <= x < 2 + left + cells and 2 <= y < 6) for x in range(CELLS)] for y in range(CELLS)]
    points = [[8.0 + left, 8.0, 1.0], [16.0 + left, 8.0, 1.0], [8.0 + left, 24.0, 1.0], [16.0 + left, 24.0, 1.0]]
    box = [8.0 + left, 8.0, 8.0 + left + cells, 12.0]
    return Thing(0, 0.0, box, [8.0 + left + cells / 2, 10.0, cells, 4.0, 0.0], points, rows)


class Pairs(NamedTuple):
    """Objects of which each is compared with each of the others."""

    name: str
    ones: list[Thing]
    others: list[Thing]


def pairs() -> list[Pairs]:
    draw = random.Random(20)  # noqa: S311 -- cases, no secrets
    others = [thing(draw, 3) for _ in range(8)]
    near = [moved(draw, one, 24, 3) for one in others]
    return [Pairs("any", near, others), Pairs("special rotated boxes", special(), special())]


def special() -> list[Thing]:
    """Rotated boxes that are equal, contained, touching, crossed, sharing an edge, very thin, or turned by quarters."""
    quarter = 1.5707963705062866  # pi / 2 in float32
    return [
        bar(20)._replace(rotated=values)
        for values in (
            [40.0, 40.0, 16.0, 8.0, 0.0],
            [40.0, 40.0, 16.0, 8.0, quarter],
            [40.0, 40.0, 8.0, 16.0, quarter],
            [40.0, 40.0, 4.0, 2.0, 0.75],
            [56.0, 40.0, 16.0, 8.0, 0.0],
            [48.0, 40.0, 16.0, 8.0, 0.0],
            [40.0, 44.0, 16.0, 16.0, 0.0],
            [40.0, 40.0, 16.0, 8.0, 0.5],
            [44.0, 42.1875, 16.0, 8.0, 0.5],
            [40.0, 40.0, 64.0, 0.125, 1.0],
            [40.0, 40.0, 64.0, 0.125, -0.5],
            [40.0, 40.0, 64.0, 64.0, 0.25],
        )
    ]
