"""A finished run, whoever made it: `osp.train`, `osp.fit`, or a store that keeps it. Read without torch or images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from osp import files
from osp.errors import UserError, printable
from osp.evaluate.predictions import Group, Predictions
from osp.recipe import Plan
from osp.runs.fitted import FitTables, is_fit, read_fit
from osp.runs.folder import RunFolder


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A finished run, as `osp.train` and `osp.fit` return it.

    Attributes
    ----------
    path : the run folder (docs/run-folder.md, docs/photos.md).
    result : the numbers of result.json: `accuracy`, `auroc`, `seconds`, ...; percent where not said otherwise.
    plan : all that was decided, with the recipe in it; a fit has none.
    model : the trained model, opened when first asked for; UserError where it is gone.

    >>> import osp, tempfile
    >>> from osp.engine.train import train  # osp.train without its picture
    >>> recipe = osp.Recipe(data="digits", method="supervised", scale="demo", steps=2)
    >>> folder = tempfile.TemporaryDirectory()
    >>> run = train(recipe, folder.name)
    >>> run.path.name in folder.name, run.plan.steps, 0 <= run.result["accuracy"] <= 100
    (True, 2, True)
    >>> run.model.class_names
    ('0', '1', '2', '3', '4', '5')
    >>> folder.cleanup()
    """

    folder: RunFolder
    result: dict[str, Any]
    decided: Plan | None = None
    open_model: Callable[[Run], Any] | None = None
    """Opens `model`: whoever makes the run knows what kind of model it has."""
    data: Any = None
    """The images it was trained on (`osp.engine.data.Data`), where this process has trained it."""
    in_hand: Predictions | FitTables | None = None
    """Its predictions or, of a fit, its tables, where this process has made or read them."""
    stale: str = ""
    """Of a store: why its numbers are not today's; empty where they are."""
    keys: dict[str, str] = field(default_factory=dict)
    """Of a store: content keys of its images."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Of a store: where it ran."""

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """The run or fit in a folder; UserError where there is none, or none that is finished."""
        folder = RunFolder(Path(path))
        if not folder.path.is_dir():
            raise UserError(f"There is no run folder {folder.path}.")
        if is_fit(folder.path):
            figures, tables = read_fit(folder.path)
            return cls(folder, figures, in_hand=tables)
        if not folder.begun():
            made = folder.recipe.exists() or folder.result.exists()
            raise UserError(f"{folder.path} {'was made with another version of osp' if made else 'is no run folder'}.")
        result = folder.read_result()
        if result is None:
            raise UserError(f"The run in {folder.path} is not finished; continue it with --resume.")
        return cls(folder, result, Plan.read(folder.plan))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Plan:
        if self.decided is None:
            raise UserError(f"The run in {self.path} is a fit, which has no plan.")
        return self.decided

    @cached_property
    def model(self) -> Any:
        if self.open_model is None:
            raise UserError(f"Open the model of this run with osp.load({str(self.path)!r}).")
        return self.open_model(self)

    # What it left

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.folder.read_metrics()

    @cached_property
    def predictions(self) -> Predictions | None:
        """None where the run was kept without them."""
        if isinstance(self.in_hand, Predictions):
            return self.in_hand
        return Predictions.load(self.folder.predictions) if self.folder.predictions.exists() else None

    @cached_property
    def tables(self) -> FitTables:
        """Of a fit: what it says of each photo."""
        return self.in_hand if isinstance(self.in_hand, FitTables) else read_fit(self.path)[1]

    @cached_property
    def truth(self) -> np.ndarray | None:
        """Which pool images are OOD, for pictures only; None where that is unknown (a pile) or all are of one kind."""
        if self.number("pool_auroc") is None:
            return None
        known = read_arrays(self.folder.split).get("unlabeled_is_ood")
        if known is not None and self.predictions is not None and known.shape != (len(self.predictions.pool),):
            raise UserError(
                f"{self.folder.split} is of another pool than {self.folder.predictions.name}: {known.size} and "
                f"{len(self.predictions.pool)} images."
            )
        return None if known is None else known.astype(bool)

    @cached_property
    def bank(self) -> dict[str, np.ndarray]:
        """OSP's bank of OOD features: `features`, `classes`, `ids` (rows of the pool); empty for other methods."""
        bank, pool = read_arrays(self.path / "bank.npz"), None if self.predictions is None else self.predictions.pool
        if not {"features", "classes", "ids"} <= bank.keys() or not bank["ids"].size or pool is None:
            return {}
        features, classes, ids = bank["features"], bank["classes"], bank["ids"]
        fits = (
            features.shape == (*ids.shape, pool.features.shape[1])
            and classes.shape == ids.shape
            and all(each.dtype.kind in "iu" and each.min() >= 0 for each in (classes, ids))
            and classes.max() < pool.logits.shape[1]
            and ids.max() < len(pool)
        )
        if not fits:
            raise UserError(f"{self.path / 'bank.npz'} is damaged: its features are not of this run's pool.")
        return bank

    def group(self, name: str) -> Group | None:
        return None if self.predictions is None else self.predictions.group(name)

    def number(self, key: str) -> float | None:
        """A number of the result, such as `accuracy` or `scores.softmax.auroc`; None where it was not measured."""
        if key == "own_auroc" and key not in self.result:  # of version 0.1, which reported each method's own score
            key = "auroc"
        value: Any = self.result
        for word in key.split("."):
            value = value.get(word) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    # What it is called

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
    def data_name(self) -> str:
        """`cifar10`, or `cifar10 with lsun`."""
        ood = self.plan.ood_data
        return printable(self.plan.data if ood is None else f"{self.plan.data} with {ood}")

    @property
    def versions(self) -> dict[str, str]:
        """Of osp, torch, harness and method, when it was run."""
        return dict(self.result.get("versions") or self.plan.versions)

    # What a plan asks of it

    def lacks(self, plan: Plan) -> list[str]:
        """Tests that a plan asks for and this run has not made."""
        return sorted(set(plan.test_ood) - set(self.result.get("other_ood") or {}))

    def answers(self, plan: Plan) -> bool:
        """Whether it is all that a plan asks for, by today's versions."""
        return not self.stale and not self.lacks(plan)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file; nothing where there is no such file, UserError where it is damaged."""
    try:
        return files.read_arrays(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
