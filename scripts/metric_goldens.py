"""Writes `tests/library/metric_goldens.json`: what pycocotools and shapely say of the cases of the metrics' tests.

Run it from the repository's root, with `--check` to compare with the file instead of writing it:
    uv run --no-project --with pycocotools==2.0.11 --with shapely==2.2.0 --with numpy==2.4.6 scripts/metric_goldens.py
Boxes, masks and keypoints go through pycocotools as they are; of rotated boxes it gets the IoU from shapely's polygons.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np  # type: ignore[import-not-found, unused-ignore]
from pycocotools import mask as rle  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pycocotools.coco import COCO  # type: ignore[import-not-found, import-untyped, unused-ignore]
from pycocotools.cocoeval import COCOeval  # type: ignore[import-not-found, import-untyped, unused-ignore]
from shapely.geometry import Polygon  # type: ignore[import-not-found, import-untyped, unused-ignore]

TESTS = Path(__file__).resolve().parent.parent / "tests" / "library"
GOLDENS = TESTS / "metric_goldens.json"
COCO_KINDS = {"boxes": "bbox", "rotated": "bbox", "keypoints": "keypoints", "masks": "segm"}
# The area of an object with keypoints, as a share of its box; the library's metric takes the same.
BOX_SHARE = 0.53

sys.path.insert(0, str(TESTS))
made = importlib.import_module("metric_cases")


class Evaluation(COCOeval):  # type: ignore[misc, unused-ignore]
    """pycocotools' evaluation, with the IoU of polygons where the annotations have `rotated`."""

    def computeIoU(self, image: int, category: int) -> Any:  # noqa: N802 -- pycocotools' name
        true, found = self._gts[image, category], self._dts[image, category]
        if not (true and found and "rotated" in true[0]):
            return super().computeIoU(image, category)
        ranked = [found[place] for place in np.argsort([-one["score"] for one in found], kind="mergesort")]
        ranked = ranked[: self.params.maxDets[-1]]
        return np.array([[polygon_iou(one["rotated"], other["rotated"]) for other in true] for one in ranked])


def polygon_iou(one: list[float], other: list[float]) -> float:
    a, b = polygon(one), polygon(other)
    return float(a.intersection(b).area / a.union(b).area)


def polygon(box: list[float]) -> Any:
    x, y, wide, high, angle = box
    cosine, sine = math.cos(angle), math.sin(angle)
    corners = [(i * wide / 2, j * high / 2) for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    return Polygon([(x + u * cosine - v * sine, y + u * sine + v * cosine) for u, v in corners])


def annotation(number: int, image: int, one: Any, kind: str) -> dict[str, Any]:
    x1, y1, x2, y2 = one.box
    area = (x2 - x1) * (y2 - y1)
    fields: dict[str, Any] = {
        "id": number,
        "image_id": image,
        "category_id": one.kind,
        "score": one.score,
        "iscrowd": 0,
    }
    fields |= {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": area}
    if kind == "rotated":
        fields["rotated"] = one.rotated
    if kind == "keypoints":
        points = [value for point in one.keypoints for value in point]
        fields |= {
            "keypoints": points,
            "num_keypoints": sum(point[2] for point in one.keypoints),
            "area": area * BOX_SHARE,
        }
    if kind == "masks":
        fields["segmentation"] = rle.encode(np.asfortranarray(one.mask, dtype=np.uint8))
    return fields


def coco(things: list[list[Any]], kind: str) -> Any:
    """The things of each image as a data set of pycocotools. Numbers start at 1: it takes 0 for none."""
    flat = [(image, one) for image, ones in enumerate(things, 1) for one in ones]
    data = COCO()
    data.dataset = {
        "images": [{"id": image, "height": made.CELLS, "width": made.CELLS} for image in range(1, len(things) + 1)],
        "categories": [{"id": category} for category in range(3)],
        "annotations": [annotation(number, image, one, kind) for number, (image, one) in enumerate(flat, 1)],
    }
    data.createIndex()
    return data


def evaluation(true: list[list[Any]], found: list[list[Any]], kind: str, limit: int) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        done = Evaluation(coco(true, kind), coco(found, kind), COCO_KINDS[kind])
        done.params.maxDets = [limit]
        done.params.areaRng, done.params.areaRngLbl = [[0, 1e10]], ["all"]
        done.params.kpt_oks_sigmas = np.array(made.SIGMAS)
        done.evaluate()
        done.accumulate()
    return done


def precision(case: Any, kind: str) -> dict[str, float]:
    true, found = [picture.true for picture in case.pictures], [picture.found for picture in case.pictures]
    table = evaluation(true, found, kind, case.limit).eval["precision"][..., 0, 0]
    return {"map50": mean(table[0]), "map": mean(table)}


def mean(values: Any) -> float:
    """Over what is defined, as in pycocotools' summary."""
    there = values[values > -1]
    return float(there.mean()) if there.size else -1.0


def similarity(pairs: Any, kind: str) -> list[list[float]]:
    """Of each of the ones to each of the others, in their order."""
    ones = [one._replace(kind=0, score=1 - place / 64) for place, one in enumerate(pairs.ones)]
    others = [other._replace(kind=0) for other in pairs.others]
    values: list[list[float]] = np.asarray(evaluation([others], [ones], kind, 100).ious[1, 0]).tolist()
    return values


def goldens() -> dict[str, Any]:
    anything, rotated = made.pairs()
    return {
        "precision": {case.name: {kind: precision(case, kind) for kind in made.KINDS} for case in made.cases()},
        "similarity": {
            anything.name: {kind: similarity(anything, kind) for kind in made.KINDS},
            rotated.name: {"rotated": similarity(rotated, "rotated")},
        },
    }


def main() -> int:
    text = json.dumps(goldens(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        same = GOLDENS.read_text() == text
        print(f"{GOLDENS.name}: {'as computed' if same else 'differs from what was computed'}")
        return 0 if same else 1
    GOLDENS.write_text(text)
    print(f"wrote {GOLDENS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
