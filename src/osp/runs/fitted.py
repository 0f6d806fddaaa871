"""The tables in the folder of a fit (`osp.photos.folder` writes them), read without torch and without photos."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from osp import files
from osp.errors import UserError, short
from osp.evaluate.metrics import unit_rows
from osp.evaluate.predictions import NONE, Judged
from osp.files import check_writable
from osp.runs.schema import LEARNED, FitResult, Group, LetIn, PhotoFacts, check, read_checked, read_json, read_rows
from osp.tables import read_table

ARRAYS, FACTS, RESULT = "photos.safetensors", "photos.json", "result.json"
PILE, LABELS, NONES, DOUBTS = "pile.csv", "labels.json", "none.json", "doubts.csv"
TWINS, LEFT_OUT, TEST, SAMPLE = "duplicates.csv", "left-out.csv", "test.csv", "sample.npz"
FORMATS = (2, 3, 4)
TOO_WIDE = 0.8
"""An interval of the share of a pile that says nothing."""
"""Of photo models that are read: 3 has a mean of the head's own, 4 perhaps scores that ask the pile."""
LARGEST, LARGEST_FEATURE, LARGEST_MODEL = 1e9, 1e30, 8 << 30
"""Centred features have length one, and what is computed from them stays far below the first. Bytes of all arrays."""
ASKED = "asked."
"""Before the names of the arrays that ask the pile: those of the score `pool`."""
_ALWAYS = """mean D, weight KD, bias K, labels N, labeled ND, references RD, reference_scores R, pile_scores R,
    id_scores H, id_weights H"""
_PERHAPS = """held_out NK, head_mean D, adapter_down AD, adapter_bias A, adapter_up DA, asked.clusters.mean D,
    asked.clusters.basis DW, asked.clusters.known SKW, asked.clusters.free SFW, asked.neighbors.basis DV,
    asked.neighbors.nodes MV, asked.neighbors.values M, asked.middle 3, asked.spread 3, groups F"""
ALWAYS, PERHAPS = (dict(each.split() for each in text.split(",")) for text in (_ALWAYS, _PERHAPS))
"""The arrays of every photo model and of some, with their sizes: the same letter is the same size, K the classes."""


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


def check_free(folder: Path, labeling: bool = False) -> None:
    """Refuse a folder that is in use or cannot be made, before any work is done; one in which somebody is `labeling`
    may hold the labels and an earlier fit."""
    check_writable(folder)
    if folder.is_symlink():
        raise UserError(f"--out {folder} is a link; name a new folder.")
    if folder.is_dir() and any(folder.iterdir()) and not labeling:
        fitted = f" It holds a fit; to go on from it, add --from {folder}." if (folder / FACTS).exists() else ""
        raise UserError(f"The folder {folder} is not empty; name a new one with --out.{fitted}")


def answer_of(result: dict[str, Any]) -> str:
    """The name under which the figures of the answer that a fit has chosen stand in its result."""
    names = list(result["estimates"])
    if result.get("kept") in names:
        return str(result["kept"])
    trained = result.get("answer") != "instant"  # of versions that used labels and pile in any case
    return str(names[-1] if trained else [name for name in names if not name.endswith(LEARNED)][-1])


def suspected(pile: Mapping[str, Any]) -> bool:
    """Whether anything shows that a pile holds unknown photos."""
    return bool(pile.get("share_high") != 1)


def strangers_of(result: dict[str, Any]) -> dict[str, LetIn] | None:
    """What is let in as each class, and what of that is probably right; None where it is not known, or nothing shows
    that there are strangers."""
    found = result["pile_photos"].get("classes") if suspected(result["pile_photos"]) else None
    return found and {name: LetIn(each["let_in"], each["right"], each["strangers"]) for name, each in found.items()}


def belongs_in_words(pile: Mapping[str, Any]) -> str:
    """The estimated share of the pile that belongs.

    >>> print(belongs_in_words({"share": 0.39, "share_low": 0.2, "share_high": 0.61}))
    About 39 % (20 to 61) of the pile belongs to them.
    >>> print(belongs_in_words({"share": 0.97, "share_low": 0.7, "share_high": 1.0}))
    About 97 % (70 to 100) of the pile belongs to them; nothing shows clearly that it holds strangers.
    >>> print(belongs_in_words({"share": 0.5, "share_low": 0.05, "share_high": 0.95}))
    How much of the pile belongs to them (5 to 95 %) cannot be told from so few sorted photos.
    """
    share = f"{100 * pile['share']:.0f}"
    if pile.get("share_low") is None:
        return f"About {share} % of the pile belongs to them."
    ends = f"{100 * pile['share_low']:.0f} to {100 * pile['share_high']:.0f}"
    if not suspected(pile):
        much = f"Nearly all ({ends} %)" if share == "100" else f"About {share} % ({ends})"
        return f"{much} of the pile belongs to them; nothing shows clearly that it holds strangers."
    if pile["share_high"] - pile["share_low"] > TOO_WIDE:
        return f"How much of the pile belongs to them ({ends} %) cannot be told from so few sorted photos."
    return f"About {share} % ({ends}) of the pile belongs to them."


def strangers_in_words(classes: Mapping[str, LetIn], pile: Mapping[str, Any] | None = None) -> str:
    """How many of the photos that are let in are probably unknown, from how many to how many where a fit says so.

    >>> print(strangers_in_words({"elephant": LetIn(73, 36, 29), "crab": LetIn(20, 20, 0)}))
    About 29 of these 93 are probably strangers: they show none of your classes, but closely resemble one.
    >>> print(strangers_in_words({"crab": LetIn(20, 19, 1)}, {"strangers_low": 0, "strangers_high": 6}))
    About 1 (0 to 6) of these 20 is probably a stranger: it shows none of your classes, but closely resembles one.
    """
    inside, strangers = (
        sum(column) for column in zip(*((c.let_in, c.strangers) for c in classes.values()), strict=True)
    )
    if not strangers:
        return f"Hardly any of these {inside:,} should be strangers." if inside else ""
    least, most = ((pile or {}).get(end) for end in ("strangers_low", "strangers_high"))
    ends = f"({least:,} to {most:,}) " if least is not None and most is not None else ""
    what = (
        "is probably a stranger: it shows none of your classes, but closely resembles one."
        if strangers == 1
        else "are probably strangers: they show none of your classes, but closely resemble one."
    )
    return f"About {strangers:,} {ends}of these {inside:,} {what}"


def groups_of(result: dict[str, Any]) -> list[Group]:
    """The groups of unknown photos of a fit, the largest first; of earlier versions none."""
    return [Group(each["name"], each["photos"], each["surest"]) for each in result.get("groups") or []]


def result_of(run: Path) -> dict[str, Any]:
    if not (run / RESULT).exists():
        raise UserError(f"{run} is no folder of a fit: {RESULT} is missing.")
    return read_checked(run / RESULT, FitResult, "Run the fit again.")


def read_model_files(folder: Path) -> tuple[PhotoFacts, dict[str, np.ndarray]]:
    """Names and numbers, and the arrays, of the photo model in a folder: of the shapes and types that fit together,
    and finite. UserError where that is not so."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        fields = read_json(folder / FACTS)
        if fields.get("format") not in FORMATS:
            raise UserError(
                f"The model in {folder} has format {short(fields.get('format'))}; this version reads "
                f"{FORMATS[0]} to {FORMATS[-1]}. Run the fit again."
            )
        facts = check(fields, PhotoFacts)
        with files.open_plain(folder / ARRAYS, LARGEST_MODEL) as file:
            made = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        if facts.arrays not in (None, made):
            raise ValueError(f"{ARRAYS} has another checksum than {FACTS} says")
        arrays = load_file(folder / ARRAYS)
        _check_arrays(facts, arrays)
    except FileNotFoundError as error:
        missing = Path(error.filename or ARRAYS).name
        raise UserError(f"{folder} holds no photo model: {missing} is missing. Run the fit again.") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"The model in {folder} is damaged ({why}). Run the fit again.") from None
    return facts, arrays


def _check_arrays(facts: PhotoFacts, arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays whose sizes do not fit together, and what cannot be asked."""
    asked = {name for name in arrays if name.startswith(ASKED)}
    if asked and (odd := asked ^ {name for name in PERHAPS if name.startswith(ASKED)}):
        raise ValueError(f"of the arrays {ASKED}* {', '.join(sorted(odd))} are missing or too many")
    sizes = {"K": len(facts.class_names), "3": 3} | ({} if asked else {"F": 0})
    for name, letters in (ALWAYS | PERHAPS).items():
        if name in ALWAYS or name in arrays:
            for letter, size in zip(letters, (*arrays[name].shape, 0, 0, 0), strict=False):
                sizes.setdefault(letter, size)
            shape = tuple(sizes[letter] for letter in letters)
            check_array(name, arrays[name], shape, "iu" if name in ("labels", "groups") else "f")
    for name, most in (("labels", sizes["K"] - 1), ("groups", sizes["F"])):
        numbers = arrays.get(name, np.zeros(1, np.int64))
        if numbers.size and not 0 <= numbers.min() <= numbers.max() <= most:
            raise ValueError(f"{name} holds a number that is not between 0 and {most}")
    if not sizes["N"] or facts.neighbors > sizes["R"]:
        raise ValueError(f"{facts.neighbors} neighbors among {sizes['R']}, {sizes['N']} labels")
    if asked and not (sizes["S"] and sizes["M"] and (arrays[f"{ASKED}spread"] > 0).all()):
        raise ValueError(f"the arrays {ASKED}* hold nothing that can be asked")


def check_array(name: str, array: np.ndarray, shape: tuple[int, ...], kinds: str = "f") -> None:
    """Refuse an array of another shape or type, and numbers with which no probability can be computed."""
    if array.shape != shape:
        raise ValueError(f"{name} is {array.shape}, not {shape}")
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name} holds {array.dtype}")
    most = LARGEST_FEATURE if name.endswith("mean") else LARGEST
    if array.dtype.kind == "f" and not float(np.abs(array).max(initial=0)) <= most:  # also where one is no number
        raise ValueError(f"{name} holds a number that is infinite, far too large, or none")


def read_fit(folder: Path) -> tuple[dict[str, Any], FitTables]:
    """The result and the tables in a folder; UserError where it is no fit, or damaged."""
    try:
        result = result_of(folder)
        names = tuple(result["classes"])
        number = {name: place for place, name in enumerate(names)}
        facts, arrays = read_model_files(folder)
        if tuple(facts.class_names) != names:
            raise ValueError(f"{RESULT} and {FACTS} have other classes")
        taught = read_rows(folder / LABELS, 3)
        if len(taught) != len(arrays["labeled"]):
            raise ValueError(f"{len(taught)} labels, {len(arrays['labeled'])} features")
        sampled = files.read_arrays(folder / SAMPLE) if (folder / SAMPLE).exists() else {}
        dim = arrays["labeled"].shape[1]
        rows, features = sampled.get("rows", np.empty(0, np.int64)), sampled.get("features", np.empty((0, dim)))
        check_array("rows of sample.npz", rows, (len(features),), "iu")
        check_array("features of sample.npz", features, (len(rows), dim))
        pile, copies = _photos(folder / PILE, number)
        tables = FitTables(
            names=names,
            labeled_files=[file for file, *_ in taught],
            labels=arrays["labels"],
            labeled=arrays["labeled"],
            held_out=arrays.get("held_out"),
            known_scores=arrays["id_scores"],
            pile=pile,
            counted=np.flatnonzero(~copies),
            test=_photos(folder / TEST, number)[0],
            doubts=_rows(folder / DOUBTS, lambda row: Doubt(row["file"], row["class"], row["looks_like"])),
            left_out=_rows(folder / LEFT_OUT, lambda row: (row["file"], row["reason"])),
            sample=rows,
            sample_features=unit_rows(features.astype(np.float32) - arrays["mean"]),
        )
        counts = result["pile_photos"]
        if "files" in counts and len(pile) != counts["files"]:
            raise ValueError(f"pile.csv has {len(pile)} readable photos, result.json says {counts['files']}")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(pile):
            raise ValueError("sample.npz is of another pile")
    except FileNotFoundError as error:
        raise UserError(f"{folder} is an incomplete run of osp fit: {Path(error.filename).name} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"The run in {folder} is damaged or of another version ({why}). Run the fit again.") from None
    return result, tables


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
        chance, score = float(row.get("sure") or row["probability"]), float(row["ood_score"])
        if not (math.isfinite(chance) and math.isfinite(score)):
            raise ValueError(f"{row['probability']!r} and {row['ood_score']!r} are no numbers")
        return row["file"], number[row["class"]], chance, score, row["decision"] == "out", truth, copy

    where, *columns = list(zip(*_rows(path, made), strict=True)) or [()] * 7
    kinds = (np.int64, np.float64, np.float64, bool, np.int64, bool)
    *known, copies = (np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))
    return Judged(list(where), *known), copies
