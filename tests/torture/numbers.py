"""Odd numbers for every method: a thousand classes, constant images, odd shares of OOD, oblong images, no pool.

Each ends with a result without NaN; only where a method cannot do its work at all is it refused, with a sentence."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import osp
from osp.engine.train import train
from osp.recipe import Recipe
from torture.trial import trial

CLASSES = 1_000
SITUATIONS: dict[str, dict[str, Any]] = {
    "ratio 0": {"data": "digits", "ood_ratio": 0.0},
    "ratio 1": {"data": "digits", "ood_ratio": 1.0},
    "ratio 1/3": {"data": "digits", "ood_ratio": 1 / 3},
    "one OOD image": {"data": "digits", "id_count": 50, "ood_count": 1},
    "no pool": {"data": "digits", "unlabeled": 0},
    "one in the pool": {"data": "digits", "id_count": 1, "ood_count": 0},
    "constant": {"data": "mnist", "data_dir": "constant", "unlabeled": 100},
    "a thousand classes": {"data": "folder", "data_dir": "thousand", "image_size": 8, "labels_per_class": 1},
    "oblong": {"data": "mnist", "data_dir": "oblong", "unlabeled": 100},
}
"""Fields of the recipe; a folder is one of those that `make` makes."""

MAY_BE_REFUSED = {"no pool": "the split has none", "oblong": "needs square ones"}
"""Situations in which a method may say that it cannot work, and its words; any other refusal would test nothing."""


def make(base: Path, classes: int = CLASSES) -> None:
    """The folders of images that the situations name."""
    draws = np.random.default_rng(0)
    for number in range(classes):
        place = base / "thousand" / f"c{number:04}"
        place.mkdir(parents=True)
        for copy in range(5):
            Image.fromarray(draws.integers(0, 256, (8, 8), dtype=np.uint8)).save(place / f"{copy}.png")
    for name, height in (("constant", 28), ("oblong", 20)):
        raw = base / name / "MNIST/raw"
        raw.mkdir(parents=True)
        for part, count in (("train", 900), ("t10k", 60)):
            shape = (count, height, 28)
            pixels = np.full(shape, 128, np.uint8) if name == "constant" else draws.integers(0, 256, shape, np.uint8)
            header = struct.pack(">BBBBIII", 0, 0, 8, 3, *shape)
            (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
            labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, count) + labels)


def asked(base: Path, method: str, situation: str) -> Recipe:
    fields = dict(SITUATIONS[situation])
    if "data_dir" in fields:
        fields["data_dir"] = str(base / fields["data_dir"])
    fields["options"] = {"batch": 4, **({} if method == "supervised" else {"mu": 2})}
    return Recipe(**{"method": method, "scale": "demo", "steps": 6, "threads": 1, "eval_every": 6, **fields})


def odd(base: Path, method: str, situation: str) -> str:
    """The fault of one method in one situation."""
    out = base / f"run-{method}-{situation.replace(' ', '-').replace('/', '-')}"
    recipe = asked(base, method, situation)

    def go() -> str:
        result = train(recipe, out).result
        json.dumps(result, allow_nan=False)
        return str(result["accuracy"])

    outcome = trial(go, seconds=300)
    if not outcome.good:
        return str(outcome)
    if outcome.kind == "refused" and MAY_BE_REFUSED.get(situation, outcome.text + "!") not in outcome.text:
        return f"refused: {outcome.text}"
    left = sorted(path.name for path in out.rglob("*")) if outcome.kind == "refused" and out.exists() else []
    return f"refused ({outcome.text}), and {left} are left" if left else ""


def cases(base: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    base.mkdir(parents=True)
    make(base)
    for method in osp.methods.available():
        for situation in SITUATIONS:
            yield f"{method}, {situation}", lambda m=method, s=situation: odd(base, m, s)  # type: ignore[misc]
