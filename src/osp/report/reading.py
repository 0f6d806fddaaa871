"""A finished run as figures and pages read it: from its folder alone, without torch and without images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from osp import files
from osp.errors import UserError, printable
from osp.evaluate.predictions import Group, Predictions
from osp.recipe import Plan
from osp.runs.folder import RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """What a run left. Of a run kept without its arrays, only result and evaluations are there."""

    folder: RunFolder
    plan: Plan
    result: dict[str, Any]

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.folder.read_metrics()

    @cached_property
    def predictions(self) -> Predictions | None:
        """None where the run was kept without them."""
        return Predictions.load(self.folder.predictions) if self.folder.predictions.exists() else None

    @cached_property
    def truth(self) -> np.ndarray | None:
        """Which pool images are OOD, for pictures only; None where nobody knows (a pile) or all are of one kind."""
        if self.number("pool_auroc") is None:
            return None
        known = read_arrays(self.folder.split).get("unlabeled_is_ood")
        return None if known is None else known.astype(bool)

    @cached_property
    def bank(self) -> dict[str, np.ndarray]:
        """OSP's bank of OOD features: `features`, `classes`, `ids` (rows of the pool); empty for other methods."""
        bank = read_arrays(self.folder.path / "bank.npz")
        return bank if {"features", "classes", "ids"} <= bank.keys() and len(bank["ids"]) else {}

    @property
    def class_names(self) -> tuple[str, ...]:
        """Fit to be shown; numbers where the run does not say."""
        names = self.result.get("class_names")
        count = len(self.result.get("class_accuracy") or ())
        if self.predictions is not None:
            count = self.predictions.pool.logits.shape[1]
        if not isinstance(names, list) or (count and len(names) != count):
            names = [f"class {number}" for number in range(count)]
        return tuple(printable(name) for name in names)

    @property
    def method(self) -> str:
        return printable(self.result.get("method", self.plan.method_name))

    @property
    def data(self) -> str:
        """`cifar10`, or `cifar10 with lsun`."""
        ood = self.plan.ood_data
        return printable(self.plan.data if ood is None else f"{self.plan.data} with {ood}")

    def group(self, name: str) -> Group | None:
        """A group of images of the predictions that has any."""
        if self.predictions is None:
            return None
        group = self.predictions.groups.get(name)
        return group if group is not None and len(group) else None

    def number(self, key: str) -> float | None:
        """A number of the result; None where it was not measured."""
        value = self.result.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_run(path: str | Path) -> FinishedRun:
    """The run in a folder; UserError where there is none, or none that is finished."""
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise UserError(f"There is no run folder {folder.path}.")
    if not folder.begun():
        made = folder.recipe.exists() or folder.result.exists()
        raise UserError(f"{folder.path} {'was made with another version of osp' if made else 'is no run folder'}.")
    result = folder.read_result()
    if result is None:
        raise UserError(f"The run in {folder.path} is not finished; continue it with --resume.")
    return FinishedRun(folder, Plan.read(folder.plan), result)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file; nothing where there is no such file, UserError where it is damaged."""
    try:
        return files.read_arrays(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
