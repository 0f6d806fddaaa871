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
from osp.recipe.fields import TEXTS
from osp.recipe.reading import explain, read_fields

Preset = Literal["default", "paper", "v0.1"]
Scale = Literal["demo", "cpu", "paper"]
TRACKERS = ("tensorboard", "wandb", "mlflow")
ONLINE = ":online"
"""Behind the name of a tracker that may send numbers elsewhere."""
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


MOST = 2**62
"""Of any count: larger numbers do not fit into arrays."""


def _field(name: str, default: Any = None, **limits: Any) -> Any:
    return Field(default, description=TEXTS[name].meaning, **limits)


class Fields(BaseModel):
    """What a recipe and a plan have in common; what is None is open."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data: str | None = _field("data")
    data_dir: str | None = _field("data_dir")
    image_size: int | None = _field("image_size", ge=8, le=1024)
    ood_data: str | None = _field("ood_data")
    ood_dir: str | None = _field("ood_dir")
    id_classes: tuple[int | str, ...] | None = _field("id_classes")
    labels_per_class: int | None = _field("labels_per_class", ge=1, le=MOST)
    unlabeled: int | None = _field("unlabeled", ge=0, le=MOST)
    ood_ratio: float | None = _field("ood_ratio", ge=0, le=1)
    id_count: int | None = _field("id_count", ge=0, le=MOST)
    ood_count: int | None = _field("ood_count", ge=0, le=MOST)
    val_per_class: int | None = _field("val_per_class", ge=0, le=MOST)
    test_ood: tuple[str, ...] = _field("test_ood", default=())

    method: str | None = _field("method")
    options: dict[str, Any] = _field("options", default={})
    preset: Preset | None = _field("preset")
    scale: Scale | None = _field("scale")
    network: str | None = _field("network")
    steps: int | None = _field("steps", ge=1, le=MOST)
    eval_every: int | None = _field("eval_every", ge=1, le=MOST)
    log_every: int | None = _field("log_every", ge=1, le=MOST)
    save_every: int | None = _field("save_every", ge=1, le=MOST)
    save_seconds: float | None = _field("save_seconds", ge=0, le=1e9)
    bn_momentum: float | None = _field("bn_momentum", gt=0, le=1)
    seed: int | None = _field("seed", ge=0, le=MOST)

    device: str | None = _field("device")
    precision: Precision | None = _field("precision")
    channels_last: bool | None = _field("channels_last")
    group: int | None = _field("group", ge=0, le=MOST)
    compile: bool | None = _field("compile")
    threads: int | None = _field("threads", ge=1, le=MOST)
    tensorboard: bool | None = _field("tensorboard")
    tracker: tuple[str, ...] = _field("tracker", default=())

    @field_validator("id_classes", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(each, bool) for each in value):
            raise ValueError('put quotes around names like "no" and "yes", which YAML reads as false and true')
        return value

    @field_validator("ood_ratio", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        if isinstance(value, float) and value != value:
            raise ValueError("it should be a number from 0 to 1")
        return value

    @field_validator("device")
    @classmethod
    def _a_device(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError(
                "it should be 'auto', 'cpu', 'cuda' or 'cuda:1' (Apple's MPS lacks the float64 of OOD scores)"
            )
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


class Recipe(Fields):
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

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(explain(error, self.__class__, "recipe", _options_asked(values))) from None

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
        without_code(fields, f"The recipe {path}")
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
    return "\n".join(f"{name} : {TEXTS[name].meaning}; if not set: {TEXTS[name].unset}" for name in Recipe.model_fields)


Recipe.__doc__ = f"{cleandoc(Recipe.__doc__ or '')}\n\nFields\n------\n{_fields()}\n"
