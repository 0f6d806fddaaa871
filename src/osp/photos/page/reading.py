"""A run of `osp fit` as its page reads it: from the run folder alone, without torch and without photos."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from osp.errors import UserError, printable
from osp.runs.run import read_arrays
from osp.tables import read_table

MODEL, FACTS = "photos.safetensors", "photos.json"


class Said(NamedTuple):
    """What the model says of one photo."""

    file: str
    label: int
    """The class it was given."""
    probability: float
    score: float
    inside: bool
    truth: int = -1
    """Of a test photo: its class, -1 for none of them."""
    note: str = ""
    """Of a photo of the pile: whose copy it is."""


class Doubt(NamedTuple):
    """A label that looks wrong."""

    file: str
    label: str
    looks_like: str


@dataclass(frozen=True)
class FittedRun:
    """What a fit left."""

    path: Path
    result: dict[str, Any]
    names: tuple[str, ...]
    """Of the classes, as they are on the disk."""
    labeled_files: list[str]
    labels: np.ndarray
    labeled: np.ndarray
    """Centred features of length one of the labelled photos."""
    held_out: np.ndarray | None
    """Probabilities of the labelled photos, each from the others; rows of zeros where that cannot be; None where they
    were not kept."""
    known_scores: np.ndarray
    """OOD scores of labelled photos, each as if it had no label."""
    pile: list[Said]
    test: list[Said]
    doubts: list[Doubt]
    left_out: list[tuple[str, str]]
    sample: np.ndarray
    """Rows of the pile..."""
    sample_features: np.ndarray
    """... and their features, centred and of length one."""

    @property
    def shown_names(self) -> tuple[str, ...]:
        """Names of classes, fit to be shown."""
        return tuple(printable(name) for name in self.names)

    @property
    def threshold(self) -> float | None:
        """The OOD score above which a photo is called foreign; None where none is."""
        limit = self.result.get("threshold")
        return float(limit) if isinstance(limit, int | float) else None

    @property
    def counted(self) -> list[int]:
        """Rows of the pile, each photo once."""
        return [row for row, said in enumerate(self.pile) if not said.note]

    @property
    def answer(self) -> str:
        """The name under which the figures of the kept answer stand."""
        return kept_in(self.result)


def kept_in(result: dict[str, Any]) -> str:
    """The name under which the figures of the kept answer stand in the result of a fit."""
    names = list(result["estimates"])
    if result.get("kept") in names:
        return str(result["kept"])
    trained = result.get("answer") != "instant"  # of versions that kept labels and pile in any case
    return str(names[-1] if trained else [name for name in names if not name.endswith(" from there")][-1])


def is_fit(folder: Path) -> bool:
    """Whether a folder holds a run of `osp fit`."""
    return (folder / FACTS).is_file() and not (folder / "plan.yaml").exists()


def read_fit(folder: Path) -> FittedRun:
    """The run in a folder; UserError where it is none, or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        result = json.loads((folder / "result.json").read_text("utf-8"))
        names = tuple(str(name) for name in result["classes"])
        number = {name: place for place, name in enumerate(names)}
        arrays = load_file(folder / MODEL)
        taught = [(str(file), str(name)) for file, name, _ in json.loads((folder / "labels.json").read_text("utf-8"))]
        if len(taught) != len(arrays["labeled"]):
            raise ValueError(f"{len(taught)} labels, {len(arrays['labeled'])} features")
        kept = read_arrays(folder / "sample.npz")
        dim = arrays["labeled"].shape[1]
        rows, features = kept.get("rows", np.empty(0, np.int64)), kept.get("features", np.empty((0, dim)))
        run = FittedRun(
            path=folder,
            result=result,
            names=names,
            labeled_files=[file for file, _ in taught],
            labels=arrays["labels"],
            labeled=arrays["labeled"],
            held_out=arrays.get("held_out"),
            known_scores=arrays["id_scores"],
            pile=_said(folder / "pile.csv", number),
            test=_said(folder / "test.csv", number),
            doubts=_rows(folder / "doubts.csv", lambda row: Doubt(row["file"], row["class"], row["looks_like"])),
            left_out=_rows(folder / "left-out.csv", lambda row: (row["file"], row["reason"])),
            sample=rows,
            sample_features=_centered(features, arrays["mean"]),
        )
        counts = result["pile_photos"]
        if "files" in counts and len(run.pile) != counts["files"]:
            raise ValueError(f"pile.csv has {len(run.pile)} readable photos, result.json says {counts['files']}")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(run.pile):
            raise ValueError("sample.npz is of another pile")
        _ = run.answer, counts["counted"]
    except FileNotFoundError as error:
        raise UserError(f"{folder} is no whole run of osp fit: {Path(error.filename).name} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError, csv.Error) as error:
        raise UserError(f"The run in {folder} is damaged or of another version ({error}). Run the fit again.") from None
    return run


def _centered(features: np.ndarray, mean: np.ndarray) -> np.ndarray:
    rows: np.ndarray = features.astype(np.float32) - mean
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows


def _rows(path: Path, make: Callable[[dict[str, str]], Any]) -> list[Any]:
    if not path.exists():
        return []
    try:
        return [made for row in read_table(path) if (made := make(row)) is not None]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{path.name}: {error}") from None


def _said(path: Path, number: dict[str, int]) -> list[Said]:
    """The rows of a table of photos; those that could not be read stand at its end and are passed over."""

    def made(row: dict[str, str]) -> Said | None:
        if row["decision"] not in ("in", "out"):
            return None
        truth = number.get(row.get("truth", ""), -1)
        chance, score = float(row["probability"]), float(row["ood_score"])
        label = number[row["class"]]
        return Said(row["file"], label, chance, score, row["decision"] == "in", truth, row.get("note", ""))

    return _rows(path, made)
