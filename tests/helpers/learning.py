"""Whether a method learns, over several seeds.

Processors round differently and training amplifies that as another seed does, so that one run proves nothing elsewhere.
A learning test therefore takes the mean over seeds and demands what lies far from all that was ever seen; it says how
far. "Roundings" there are those of the processor at hand and of MKL_CBWR=COMPATIBLE, ATEN_CPU_CAPABILITY=default
and ONEDNN_MAX_CPU_ISA=SSE41, which round as other processors do; runs here have one thread, as two round differently.
Six of the ten digits are the classes: chance is 17 % accuracy and 50 % AUROC.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from helpers.runs import run
from osp import Recipe
from osp.runs.folder import RunFolder

SEEDS = (0, 1)


class Runs:
    """Runs of one recipe, one for each seed."""

    def __init__(self, recipe: Recipe, folder: Path, seeds: tuple[int, ...] = SEEDS) -> None:
        self.paths = [folder / f"{recipe.method}-{seed}" for seed in seeds]
        several = zip(seeds, self.paths, strict=True)
        self.results = [run(recipe.changed(seed=seed, threads=1), path).result for seed, path in several]

    def mean(self, name: str) -> float:
        """Of a number in the results."""
        return mean(float(result[name]) for result in self.results)

    def logs(self, name: str) -> list[list[float]]:
        """What each run logged under a name, in order."""
        return [[line[name] for line in RunFolder(path).read_metrics() if name in line] for path in self.paths]

    def late(self, name: str) -> float:
        """The mean of what was logged under a name in the last third of the runs."""
        return mean(value for values in self.logs(name) for value in values[2 * len(values) // 3 :])

    @property
    def warnings(self) -> list[str]:
        """Of all runs; a method whose mechanism was idle is warned of."""
        return [warning for result in self.results for warning in result["warnings"]]


def on_digits(method: str, folder: Path, steps: int = 300, seeds: tuple[int, ...] = SEEDS, **options: Any) -> Runs:
    """With ten labels per class and a pool of which 60 % are OOD."""
    recipe = Recipe(method=method, scale="demo", steps=steps, eval_every=steps, ood_ratio=0.6, labels_per_class=10)
    return Runs(recipe.changed(options=options), folder, seeds)


IDLE = 1e-3
"""A thousandth of the pool's weight is as good as none, and yet what the pool's loss would be stands in the log."""


def with_and_without_pool(
    method: str, folder: Path, weight: float, seeds: tuple[int, ...] = SEEDS, **options: Any
) -> tuple[Runs, Runs]:
    """With four labels per class, learning from the pool and (nearly) from the labels alone."""
    fields = {"scale": "demo", "steps": 150, "eval_every": 150, "log_every": 5}
    recipe = Recipe(method=method, ood_ratio=0.3, labels_per_class=4, **fields)
    chosen = {"batch": 16, "mu": 3, **options}
    full, idle = (
        Runs(recipe.changed(options={**chosen, "unlabeled_weight": factor * weight}), folder / name, seeds)
        for name, factor in (("with", 1.0), ("without", IDLE))
    )
    return full, idle
