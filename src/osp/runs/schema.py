"""What the small files of a run must hold. Each is read through here: a file from elsewhere, or one that a disk has
damaged, is a sentence that names the field, and never a traceback somewhere else."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from osp.errors import UserError, short

LARGEST = 64 << 20
"""Bytes of a JSON file that is read; ours have a few thousand, a result of 1,000 classes 8 million."""


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("it should be a number")
    return value


Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**62, strict=True)]
Word = Annotated[str, Field(max_length=10_000)]


class Detection(BaseModel):
    """How well one score tells OOD images."""

    auroc: Number | None = None
    fpr95: Number | None = None
    scores: dict[str, Detection] | None = None
    """By each score, where only the reported one's numbers stand above."""


class Result(BaseModel):
    """result.json of a training; fields of other versions may be there too."""

    model_config = ConfigDict(extra="allow", strict=True)

    method: Word | None = None
    dataset: Word | None = None
    data_variant: Word | None = None
    ood_ratio: Number | None = None
    labels_per_class: Count | None = None
    class_names: list[Word] | None = None
    seed: Count | None = None
    steps: Count | None = None
    images_seen: Count | None = None
    seconds: Number | None = None
    accuracy: Number | None = None
    auroc: Number | None = None
    msp_auroc: Number | None = None
    own_score: Word | None = None
    own_auroc: Number | None = None
    pool_auroc: Number | None = None
    aupr_id: Number | None = None
    aupr_ood: Number | None = None
    fpr95: Number | None = None
    open_accuracy: Number | None = None
    calibration_error: Number | None = None
    purity: Number | None = None
    recall: Number | None = None
    angle: Number | None = None
    interclass_variance: Number | None = None
    val_accuracy: Number | None = None
    threshold: Number | None = None
    test_images: Count | None = None
    confusion: list[list[Count]] | None = None
    class_accuracy: list[Number | None] | None = None
    score: Word | None = None
    scores: dict[str, Detection] | None = None
    other_ood: dict[str, Detection] | None = None
    versions: dict[str, Word] | None = None
    identity: Word | None = None
    warnings: list[Word] | None = None


class DataKeys(BaseModel):
    """data.json: content keys of the images by set."""

    keys: dict[str, Word]


class Map(BaseModel):
    """map.json: where the features of test images lie in the plane, and their classes, -1 for OOD images."""

    model_config = ConfigDict(strict=True)

    places: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] = Field(min_length=1, max_length=100_000)
    classes: list[Annotated[int, Field(ge=-1, le=2**31)]]

    @model_validator(mode="after")
    def _as_many(self) -> Map:
        if len(self.places) != len(self.classes):
            raise ValueError(f"{len(self.places)} places for {len(self.classes)} classes")
        return self


class Note(BaseModel):
    """run.json of a store: how the last attempt at a run ended, and on what machine."""

    model_config = ConfigDict(extra="allow", strict=True)

    status: Literal["finished", "failed"]
    failure: str = ""
    identity: Word | None = None
    versions: dict[str, Word] = Field(default_factory=dict)
    data: dict[str, Word] = Field(default_factory=dict)
    machine: dict[str, Word | int | None] = Field(default_factory=dict)


Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file; ValueError with the reason where it holds none."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise ValueError(f"it is longer than {LARGEST >> 20} MB")
        content = file.read()
    try:
        fields = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("it holds no fields")
    return fields


def check(fields: Mapping[str, Any], model: type[Model]) -> Model:
    """The fields as this model has them; ValueError that names the first that is invalid."""
    try:
        return model(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"][:4])
        reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        raise ValueError(f"{place} is {short(problem['input'])}: {reason}") from None


def read_checked(path: Path, model: type[Model], advice: str) -> dict[str, Any]:
    """The fields of a JSON file that fits its model, or a UserError."""
    try:
        fields = read_json(path)
        check({"keys": fields} if model is DataKeys else fields, model)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged: {getattr(error, 'strerror', None) or error}. {advice}") from None
    return fields


def metrics_line(text: str) -> dict[str, Any] | None:
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
    for key, value in line.items():
        if key in ("kind", "stage"):
            fits = isinstance(value, str)
        else:
            fits = type(value) in (int, float) and abs(value) <= 1e300 and math.isfinite(value)
        if not fits:
            return False
    return True
