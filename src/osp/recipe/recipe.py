"""Recipe: what is asked for. Every field may be left out; `make_plan` decides what was left open.

A run keeps its recipe as it was written, so that the same file starts the run again and a changed field, preset or
scale takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from osp.errors import UserError, short
from osp.plugins import trust
from osp.recipe.code import files_in, without_code
from osp.recipe.reading import explain, read_fields

Preset = Literal["default", "paper", "v0.1"]
Scale = Literal["demo", "cpu", "paper"]
TRACKERS = ("tensorboard", "wandb", "mlflow")
ONLINE = ":online"
"""Behind the name of a tracker that may send numbers elsewhere."""
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


MOST = 2**62
"""Of any count: larger numbers do not fit into arrays, and are nobody's wish."""


class Recipe(BaseModel):
    """What to train: data, split, method and its options, network, budget, precision, seed.

    Every field may be left out; what is None is decided by `osp.train` and kept as the run's `Plan`. A recipe does not
    change: `changed` gives another one. A field that does not exist, or a value that it cannot have, is a UserError.

    >>> recipe = Recipe(data="digits", method="fixmatch", options={"threshold": 0.9}, steps=100)
    >>> print(recipe.changed(seed=1).dump(), end="")
    data: digits
    method: fixmatch
    options:
      threshold: 0.9
    steps: 100
    seed: 1
    >>> Recipe(metod="fixmatch")
    Traceback (most recent call last):
    osp.errors.UserError: Unknown field 'metod' in the recipe. Did you mean 'method'?
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data: str | None = Field(None, description="data set; see `osp datasets`, or ./a_file.py; digits if not set")
    data_dir: str | None = Field(None, description="folder of the data; else OSP_DATA, else the user's cache folder")
    image_size: int | None = Field(None, ge=8, le=1024, description="resize images to this side")
    ood_data: str | None = Field(None, description="another data set whose images pollute the pool")
    ood_dir: str | None = Field(None, description="folder of `ood_data`, where it is not `data_dir`")
    id_classes: tuple[int | str, ...] | None = Field(None, description="classes to learn, by number or name")
    labels_per_class: int | None = Field(None, ge=1, le=MOST, description="labelled images per class")
    unlabeled: int | None = Field(None, ge=0, le=MOST, description="unlabelled images in all; if not set, what fits")
    ood_ratio: float | None = Field(None, ge=0, le=1, description="share of the unlabelled images that is OOD")
    id_count: int | None = Field(None, ge=0, le=MOST, description="number of unlabelled ID images, instead of a total")
    ood_count: int | None = Field(None, ge=0, le=MOST, description="number of OOD images, instead of a ratio")
    val_per_class: int | None = Field(None, ge=0, le=MOST, description="validation images per class")
    test_ood: tuple[str, ...] = Field((), description="other data sets that the trained model is tested on as OOD")

    method: str | None = Field(None, description="method; see `osp methods`, or ./a_file.py; osp if not set")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the method")
    preset: Preset | None = Field(
        None,
        description="the method's options: default (common harness), paper (as published) or v0.1 (earlier defaults)",
    )
    scale: Scale | None = Field(
        None,
        description="steps, network, batches, on colour images the optimiser: seconds, minutes, as published",
    )
    network: str | None = Field(None, description="cnn, fast, small, wrn-DEPTH-WIDTH, or ./a_file.py")
    steps: int | None = Field(None, ge=1, le=MOST, description="optimiser steps in all, over all stages")
    eval_every: int | None = Field(None, ge=1, le=MOST, description="steps between validations")
    log_every: int | None = Field(None, ge=1, le=MOST, description="steps between lines of metrics.jsonl")
    save_every: int | None = Field(None, ge=1, le=MOST, description="steps between checkpoints, beside those by time")
    save_seconds: float | None = Field(None, ge=0, le=1e9, description="seconds between checkpoints; 60 if not set")
    bn_momentum: float | None = Field(None, gt=0, le=1, description="batch-norm momentum; by the length if not set")
    seed: int | None = Field(None, ge=0, le=MOST, description="seed of everything random; 0 if not set")

    device: str | None = Field(None, description="auto takes CUDA, then MPS, then CPU")
    precision: Precision | None = Field(None, description="arithmetic; 32-true if not set")
    channels_last: bool | None = Field(None, description="memory layout; on if not set: faster on most devices")
    group: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="images per pass through the encoder; 0 = all; by the device if not set",
    )
    compile: bool | None = Field(None, description="torch.compile the encoder")
    threads: int | None = Field(None, ge=1, le=MOST, description="CPU threads; torch's choice if not set")
    tensorboard: bool | None = Field(None, description="also write TensorBoard events (extra `tensorboard`)")

    tracker: tuple[str, ...] = Field((), description="where numbers go besides metrics.jsonl: tensorboard,wandb,mlflow")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(explain(error, self.__class__, "recipe", _options_asked(values))) from None

    @field_validator("ood_ratio", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        if isinstance(value, float) and value != value:
            raise ValueError("it should be a number from 0 to 1")
        return value

    @field_validator("device")
    @classmethod
    def _a_device(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError("it should be 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'")
        return value

    @field_validator("tracker")
    @classmethod
    def _trackers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in (*TRACKERS, f"wandb{ONLINE}", f"mlflow{ONLINE}"):
                raise ValueError(
                    f"there is no tracker {short(name)}; choose from {', '.join(TRACKERS)}. wandb and mlflow stay in "
                    f"the run's folder; wandb{ONLINE} and mlflow{ONLINE} go where these packages are set up to"
                )
        return value

    @field_validator("test_ood", "tracker", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if isinstance(value, str):  # as on the command line
            value = [word.strip() for word in value.split(",") if word.strip()]
        return () if value is None else value

    def asked(self) -> dict[str, Any]:
        """The fields that say something."""
        values = self.model_dump(mode="json")
        empty = [key for key in ("options", "test_ood", "tracker") if not values[key]]
        return {key: value for key, value in values.items() if value is not None and key not in empty}

    def trust(self) -> None:
        """Whoever starts a run from this recipe has named the files of code in it."""
        trust(*files_in(self.asked()).values())

    def changed(self, **values: Any) -> Recipe:
        """This recipe with some fields replaced, validated again."""
        return Recipe(**{**self.model_dump(), **values})

    def dump(self) -> str:
        """What was asked, as YAML in the order of the fields."""
        return yaml.safe_dump(self.asked(), sort_keys=False, allow_unicode=True) if self.asked() else "{}\n"

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """From a YAML file, which never names code: files of code are given on the command line or in Python."""
        fields = read_fields(path)
        without_code(fields, path)
        return cls(**fields)


def _options_asked(values: Mapping[str, Any]) -> dict[str, str]:
    """Of fields that are none, those that are options of the method, and how they are given."""
    unknown = {key: value for key, value in values.items() if key not in Recipe.model_fields}
    if not unknown:
        return {}
    from osp.methods.registry import known_options

    known = known_options(str(values.get("method") or "osp"))
    how = " It is an option of the method: options={{{!r}: {}}}."
    return {key: how.format(key, short(value)) for key, value in unknown.items() if key in known}


def _fields() -> str:
    """The descriptions of all fields, for `help(osp.Recipe)`."""
    described = ((name, str(field.description)) for name, field in Recipe.model_fields.items())
    return "\n".join(f"{name} : {description}" for name, description in described)


Recipe.__doc__ = f"{cleandoc(Recipe.__doc__ or '')}\n\nFields\n------\n{_fields()}\n"
