"""The tables in the folder of a fit (`osp.photos.folder` writes them), read without torch and without photos."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from osp import files
from osp.errors import UserError
from osp.evaluate.predictions import NONE, Judged
from osp.tables import read_table

MODEL, FACTS = "photos.safetensors", "photos.json"


class Doubt(NamedTuple):
    """A label that looks wrong."""

    file: str
    label: str
    looks_like: str


@dataclass(frozen=True)
class FitTables:
    """What a fit left beside its result."""

    names: tuple[str, ...]
    """Of the classes, as they are on the disk."""
    labeled_files: list[str]
    labels: np.ndarray
    labeled: np.ndarray
    """Centered features of length one of the labeled photos."""
    held_out: np.ndarray | None
    """Probabilities of the labeled photos, each from the others; rows of zeros where that cannot be; None where they
    were not stored."""
    known_scores: np.ndarray
    """OOD scores of labeled photos, each as if it had no label."""
    pile: Judged
    counted: np.ndarray
    """Rows of the pile, each photo once."""
    test: Judged
    doubts: list[Doubt]
    left_out: list[tuple[str, str]]
    sample: np.ndarray
    """Rows of the pile..."""
    sample_features: np.ndarray
    """... and their features, centered and of length one."""


def is_fit(folder: Path) -> bool:
    """Whether a folder holds a run of `osp fit`."""
    return (folder / FACTS).is_file() and not (folder / "plan.yaml").exists()


def answer_of(result: dict[str, Any]) -> str:
    """The name under which the figures of the answer that a fit has chosen stand in its result."""
    names = list(result["estimates"])
    if result.get("kept") in names:
        return str(result["kept"])
    trained = result.get("answer") != "instant"  # of versions that used labels and pile in any case
    return str(names[-1] if trained else [name for name in names if not name.endswith(" from there")][-1])


def read_fit(folder: Path) -> tuple[dict[str, Any], FitTables]:
    """The result and the tables in a folder; UserError where it is no fit, or damaged."""
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
        sampled = files.read_arrays(folder / "sample.npz") if (folder / "sample.npz").exists() else {}
        dim = arrays["labeled"].shape[1]
        rows, features = sampled.get("rows", np.empty(0, np.int64)), sampled.get("features", np.empty((0, dim)))
        pile, copies = _photos(folder / "pile.csv", number)
        tables = FitTables(
            names=names,
            labeled_files=[file for file, _ in taught],
            labels=arrays["labels"],
            labeled=arrays["labeled"],
            held_out=arrays.get("held_out"),
            known_scores=arrays["id_scores"],
            pile=pile,
            counted=np.flatnonzero(~copies),
            test=_photos(folder / "test.csv", number)[0],
            doubts=_rows(folder / "doubts.csv", lambda row: Doubt(row["file"], row["class"], row["looks_like"])),
            left_out=_rows(folder / "left-out.csv", lambda row: (row["file"], row["reason"])),
            sample=rows,
            sample_features=_centered(features, arrays["mean"]),
        )
        counts = result["pile_photos"]
        if "files" in counts and len(pile) != counts["files"]:
            raise ValueError(f"pile.csv has {len(pile)} readable photos, result.json says {counts['files']}")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(pile):
            raise ValueError("sample.npz is of another pile")
        _ = answer_of(result), counts["counted"]
    except FileNotFoundError as error:
        raise UserError(f"{folder} is an incomplete run of osp fit: {Path(error.filename).name} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError, csv.Error) as error:
        raise UserError(f"The run in {folder} is damaged or of another version ({error}). Run the fit again.") from None
    return result, tables


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


def _photos(path: Path, number: dict[str, int]) -> tuple[Judged, np.ndarray]:
    """The photos of a table, without those at its end that could not be read, and which are copies of others."""

    def made(row: dict[str, str]) -> tuple[Any, ...] | None:
        if row["decision"] not in ("in", "out"):
            return None
        truth, copy = number.get(row.get("truth", ""), NONE), bool(row.get("note", ""))
        chance, score = float(row["probability"]), float(row["ood_score"])
        return row["file"], number[row["class"]], chance, score, row["decision"] == "out", truth, copy

    where, *columns = list(zip(*_rows(path, made), strict=True)) or [()] * 7
    kinds = (np.int64, np.float64, np.float64, bool, np.int64, bool)
    *known, copies = (np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))
    return Judged(list(where), *known), copies
