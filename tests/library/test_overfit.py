"""The four tasks learn: trained on the CPU from one seed, without replay, they find objects in scenes not seen before.

What they reach is frozen in `overfit_goldens.json`, with the torch it was seen with. Other versions and processors
round otherwise, and a fit amplifies that: hence its tolerance. Run as a program, this file writes it anew, for all
tasks or those that are named.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from task_cases import MODULES

from graphreplay.tasks.scenes import SceneData

pytestmark = [pytest.mark.overfit, pytest.mark.long]

GOLDENS = Path(__file__).with_name("overfit_goldens.json")
LEAST, FACTOR = 0.5, 5.0
# Some hundreds of steps of 8 scenes, a minute or two. Keypoints take the longest.
EPOCHS = {"detection": 24, "pose": 40, "oriented": 24, "segmentation": 24}
TOLERANCE = 0.1


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums do not depend on how many processors there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def precisions(task: str) -> dict[str, float]:
    """Mean average precision at 0.5, untrained and trained, on 64 scenes beside the 256 for training."""
    seed_everything(0, verbose=False)
    module = MODULES[task]()
    data = SceneData(task, sizes=((96, 96), (96, 128), (128, 96)), train_scenes=256, val_scenes=64)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS[task],
        check_val_every_n_epoch=EPOCHS[task],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    untrained = trainer.validate(module, data, verbose=False)[0]["val/map50"]
    trainer.fit(module, data)
    return {"untrained": untrained, "trained": trainer.callback_metrics["val/map50"].item()}


@pytest.mark.parametrize("task", MODULES)
def test_task_learns_as_it_did(task: str, one_thread: None) -> None:
    goldens = json.loads(GOLDENS.read_text(encoding="utf-8"))
    seen = precisions(task)
    assert seen["trained"] >= LEAST
    assert seen["trained"] >= FACTOR * seen["untrained"]
    assert seen["trained"] == pytest.approx(goldens["map50"][task]["trained"], abs=goldens["tolerance"])


def freeze(tasks: Iterable[str]) -> None:
    """Write what this torch reaches on this processor."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    held = json.loads(GOLDENS.read_text(encoding="utf-8"))["map50"] if GOLDENS.exists() else {}
    reached = {**held, **{task: precisions(task) for task in tasks}}
    goldens = {"torch": torch.__version__, "tolerance": TOLERANCE, "map50": reached}
    GOLDENS.write_text(json.dumps(goldens, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    freeze(sys.argv[1:] or MODULES)
