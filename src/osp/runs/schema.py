"""What the small files of a run must hold. Each is read through here: a file from elsewhere, or one that a disk has
damaged, is a sentence that names the field, and never a traceback somewhere else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    PlainValidator,
    RootModel,
    StrictBool,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from osp import files
from osp.errors import UserError, short

Number = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=-1e100, le=1e100)]
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[Whole, Field(ge=0, le=2**62)]


def _text(value: Any) -> str:
    """pydantic's own `str` refuses names of files that are no UTF-8, which Python has with lone surrogates."""
    if not isinstance(value, str):
        raise ValueError("it should be a valid string")
    return value


def _word(value: Any) -> str:
    text = _text(value)
    if len(text) > LONGEST_WORD:
        raise ValueError(f"it should have at most {LONGEST_WORD:,} characters")
    return text


LONGEST_WORD = 10_000
Text = Annotated[str, PlainValidator(_text)]
Word = Annotated[str, PlainValidator(_word)]


class Fields(BaseModel, extra="allow"):
    """A file of ours; fields of other versions may be there too."""


class Detection(BaseModel):
    """How well one score tells OOD images."""

    auroc: Number | None = None
    fpr95: Number | None = None
    scores: dict[Word, Detection] | None = None
    """By each score, where only the reported one's numbers stand above."""


def _optional(kind: Any, names: str) -> dict[str, Any]:
    """Fields of one kind, each of which may be missing or null."""
    return dict.fromkeys(names.split(), (kind | None, None))


_Plain: Any = create_model(
    "_Plain",
    __base__=Fields,
    **_optional(Word, "method dataset data_variant own_score score identity"),
    **_optional(Count, "labels_per_class seed steps images_seen test_images"),
    **_optional(Number, "ood_ratio seconds auroc msp_auroc own_auroc pool_auroc aupr_id aupr_ood fpr95 open_accuracy"),
    **_optional(Number, "calibration_error purity recall angle interclass_variance val_accuracy threshold"),
)


class Result(_Plain):
    """result.json of a training."""

    accuracy: Number | None
    class_names: list[Word] | None = None
    confusion: list[list[Count]] | None = None
    class_accuracy: list[Number | None] | None = None
    scores: dict[Word, Detection] | None = None
    other_ood: dict[Word, Detection] | None = None
    versions: dict[Word, Word] | None = None
    warnings: list[Word] | None = None

    @field_validator("confusion")
    @classmethod
    def _square(cls, rows: list[list[int]] | None) -> list[list[int]] | None:
        if any(len(row) != len(rows or ()) for row in rows or ()):
            raise ValueError("not a square of numbers")
        return rows


class DataKeys(RootModel[dict[Word, Word]]):
    """data.json: content keys of the images by set."""


# Of `osp fit`

Percent = Annotated[Number, Field(ge=-0.01, le=100.01)]
Share = Annotated[Number, Field(ge=0, le=1)]


class Held(Fields):
    """Figures of one answer on sorted photos that were held out, or on test photos."""

    images: Count
    correct: Count | None = None
    accuracy: Percent
    low: Percent
    high: Percent
    balanced_accuracy: Percent | None = None
    ece: Percent | None = None


class Tested(Held):
    foreign: Count = 0
    known_accepted: Percent | None = None
    foreign_accepted: Percent | None = None
    auroc: Percent | None = None

    @model_validator(mode="after")
    def _both_kinds(self) -> Tested:
        told = self.known_accepted is not None and self.foreign_accepted is not None
        if not (told if self.foreign else self.foreign_accepted is None and self.auroc is None):
            raise ValueError("figures of unknown test photos are missing, or too many")
        return self


@dataclass(frozen=True)
class LetIn:
    """Photos of a pile that are let in as one class."""

    let_in: Count
    right: Count
    """Probably; others show another class, or none."""
    strangers: Count
    """Probably: they show none of the classes."""

    @property
    def elsewhere(self) -> int:
        """Probably: they show another class."""
        return max(self.let_in - self.right - self.strangers, 0)


class PilePhotos(BaseModel):
    files: Count = 0
    counted: Count
    inside: Count = Field(alias="in")
    out: Count
    per_class: dict[Word, Count]
    share: Share | None = None
    share_low: Share | None = None
    share_high: Share | None = None
    strangers_low: Count | None = None
    strangers_high: Count | None = None
    classes: dict[Word, LetIn] | None = None

    @model_validator(mode="after")
    def _both_ends(self) -> PilePhotos:
        if (self.share_low is None) != (self.share_high is None) or (self.share_low is not None and self.share is None):
            raise ValueError("an interval has two ends, around a share")
        return self


@dataclass(frozen=True)
class Group:
    """Unknown photos of the pile that look alike."""

    name: Word
    photos: Count
    surest: list[Word]
    """Files, the surest first."""


class Asked(BaseModel):
    method: Word | None = None
    seed: Count | None = None
    test: Word | None = None
    earlier: Word | None = Field(None, alias="from")
    name: list[Word] | None = None
    labels: Word | None = None
    none: Word | None = None
    person: StrictBool | None = None


class FitResult(Fields):
    """result.json of a fit."""

    kind: Literal["photos"]
    version: Word | None = None
    sorted: Word | None = None
    sorted_before: list[Word] | None = None  # of earlier fits; None where they are not known
    pile: Word | None = None
    backbone: Word
    asked: Asked | None = None
    answer: Word | None = None
    kept: Word | None = None
    classes: dict[Word, Count] = Field(min_length=1)
    estimates: dict[Word, Held | None] = Field(min_length=1)
    test: dict[Word, Tested | None] | None = None
    pile_photos: PilePhotos
    groups: list[Group] | None = None
    grouped: list[Word] | None = None  # contents of photos that got their class with a whole group
    threshold: Number | None = None
    duplicates: Count | None = None
    seconds: Number

    @model_validator(mode="after")
    def _answered(self) -> FitResult:
        if all(name.endswith(LEARNED) for name in self.estimates):
            raise ValueError("there is no answer without training among the estimates")
        return self


LEARNED = " from there"
"""Ending of the names of answers for which training went on from the instant answer."""


class BackboneFacts(BaseModel):
    name: Word
    checksum: Word


class PhotoFacts(Fields):
    """photos.json: the numbers of a photo model."""

    class_names: list[Word] = Field(min_length=1)
    strength: Annotated[Number, Field(ge=0, le=1e9)]
    temperature: Annotated[Number, Field(ge=1e-3, le=1e3)]  # chosen from 0.02 to 50; below 0 it turns answers round
    smoothing: Annotated[Number, Field(ge=0, le=1)]
    neighbors: Count
    estimate: Held | None
    backbone: BackboneFacts
    cut: Number | None = None
    """The OOD threshold where a person has said what is unknown."""
    arrays: Word | None = None
    """Checksum of the file of arrays."""


class Map(Fields):
    """map.json: where the features of test images lie in the plane, and their classes, -1 for OOD images."""

    places: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] = Field(min_length=1, max_length=100_000)
    classes: list[Annotated[Whole, Field(ge=-1, le=2**31)]]

    @model_validator(mode="after")
    def _as_many(self) -> Map:
        if len(self.places) != len(self.classes):
            raise ValueError(f"{len(self.places)} places for {len(self.classes)} classes")
        return self


class Origin(Fields):
    """Where a run of a store comes from."""

    identity: Word | None = None
    versions: dict[Word, Word] = {}
    data: dict[Word, Word] = {}
    """Content keys of its images."""
    machine: dict[Word, Word | Whole | None] = {}


class Note(Origin):
    """run.json of a store: how the last attempt at a run ended, and on what machine."""

    status: Literal["finished", "failed"]
    failure: Text = ""


Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file of a run; ValueError with the reason where it holds none."""
    fields = files.read_json(path)
    if not isinstance(fields, dict):
        raise ValueError("it holds no fields")
    return fields


def read_rows(path: Path, width: int) -> list[list[str]]:
    """The rows of a JSON file that is a list of rows of words; ValueError where it is none."""
    rows = files.read_json(path)
    fits = isinstance(rows, list) and all(isinstance(row, list) and len(row) == width for row in rows)
    if not fits or not all(isinstance(word, str) for row in rows for word in row):
        raise ValueError(f"it is no list of rows of {width} words")
    return list(rows)


def check(fields: Mapping[str, Any], model: type[Model]) -> Model:
    """The fields as this model has them; ValueError that names the first that is invalid."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"][:4])
        if problem["type"] == "missing":
            raise ValueError(f"{place} is missing") from None
        reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        raise ValueError(f"{place} is {short(problem['input'])}: {reason}") from None


def read_checked(path: Path, model: type[BaseModel], advice: str) -> dict[str, Any]:
    """The fields of a JSON file that fits its model, or a UserError."""
    try:
        fields = read_json(path)
        check(fields, model)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged: {getattr(error, 'strerror', None) or error}. {advice}") from None
    return fields


def metrics_line(text: bytes) -> dict[str, Any] | None:
    """One line of metrics.jsonl: a step, words, and finite numbers; None where it is none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if is_metrics(line) else None


def is_metrics(line: Any) -> bool:
    """Whether these are the fields of a line of metrics.jsonl."""
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] <= 2**62:
        return False
    return all(
        isinstance(value, str) if key in ("kind", "stage") else type(value) in (int, float) and abs(value) <= 1e300
        for key, value in line.items()
    )
