"""Recipe: one validated description of a run.

Fields left at None are filled by `resolved()` from, in rising order of precedence: the method's defaults, the preset,
the scale, and what the user set. A run stores its resolved recipe, and the same file starts the run again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from osp.errors import UserError, suggest

Preset = Literal["default", "paper"]
Scale = Literal["demo", "cpu", "paper"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


class Recipe(BaseModel):
    """Data, split, method and its options, network, budget, precision, seed."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data: str = Field("digits", description="data set; see `osp datasets`")
    data_dir: str | None = Field(None, description="folder of the data; else OSP_DATA, else the user's cache folder")
    image_size: int | None = Field(None, ge=8, le=1024, description="resize images to this side")
    ood_data: str | None = Field(None, description="another data set whose images pollute the pool")
    ood_dir: str | None = Field(None, description="folder of `ood_data`, where it is not `data_dir`")
    id_classes: tuple[int | str, ...] | None = Field(None, description="classes to learn, by number or name")
    labels_per_class: int | None = Field(None, ge=1, description="labelled images a class")
    unlabeled: int | None = Field(None, ge=0, description="unlabelled images in all; as many as fit if not set")
    ood_ratio: float | None = Field(None, ge=0, le=1, description="share of the unlabelled images that is OOD")
    ood_count: int | None = Field(None, ge=0, description="number of OOD images, instead of a ratio")
    val_per_class: int | None = Field(None, ge=0, description="validation images a class")

    method: str = Field("osp", description="method; see `osp methods`, or ./a_file.py")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the method")
    preset: Preset = Field("default", description="the method's options: common harness or as published")
    scale: Scale = Field("cpu", description="steps, network, evaluations: seconds, minutes or as published")
    network: str | None = Field(None, description="cnn, small or wrn-DEPTH-WIDTH")
    steps: int | None = Field(None, ge=1, description="optimiser steps in all, over all stages")
    eval_every: int | None = Field(None, ge=1, description="steps between validations")
    log_every: int | None = Field(None, ge=1, description="steps between lines of metrics.jsonl")
    bn_momentum: float | None = Field(None, gt=0, le=1, description="batch-norm momentum; by the length if not set")
    seed: int = Field(0, ge=0, description="seed of everything random")

    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto takes CUDA, then MPS, then CPU")
    precision: Precision = Field("32-true", description="arithmetic")
    channels_last: bool = Field(True, description="memory layout; faster convolutions on most devices")
    group: int | None = Field(
        None, ge=0, description="images a pass through the encoder in training; 0 = all; by the device if not set"
    )
    compile: bool = Field(False, description="torch.compile the encoder")
    threads: int | None = Field(None, ge=1, description="CPU threads; torch's choice if not set")
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra `tensorboard`)")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UserError(explain(error, self.__class__, "recipe")) from None

    @field_validator("ood_ratio", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        if isinstance(value, float) and value != value:
            raise ValueError("it should be a number from 0 to 1")
        return value

    def changed(self, **values: Any) -> Recipe:
        """This recipe with some fields replaced, validated again."""
        return Recipe(**{**self.model_dump(), **values})

    def resolved(self) -> Recipe:
        """This recipe with every open field decided; raises UserError where something is unknown or impossible."""
        from osp.data import available as data_sets
        from osp.data.split import spec_for
        from osp.methods.base import published_options
        from osp.methods.registry import get

        for name in (self.data, self.ood_data):
            if name is not None and name not in data_sets():
                raise UserError(f"Unknown data set {name!r}.{suggest(name, data_sets())} `osp datasets` shows them.")
        method = get(self.method)
        published: dict[str, Any] = {}
        if self.preset == "paper":
            published = published_options(method, self.data)
        scaled = SCALE_OPTIONS.get(self.scale, {})
        known = method.Options.model_fields
        for key in self.options:
            if key not in known:
                hint = suggest(str(key), [*known, *Recipe.model_fields])
                hint = hint if "mean" in hint else suggest(str(key), known)
                raise UserError(f"Method {method.name!r} has no option {key!r}, nor has the recipe.{hint}")
        try:
            options = method.Options(**{**published, **scaled, **self.options})
        except ValidationError as error:
            raise UserError(explain(error, method.Options, f"options of {method.name}")) from None

        given = {key: getattr(self, key) for key in SPLIT_FIELDS}
        spec = spec_for(self.data, self.ood_data, seed=self.seed, **given)
        filled: dict[str, Any] = {"options": options.model_dump(), **{key: getattr(spec, key) for key in SPLIT_FIELDS}}
        if self.network is None:
            filled["network"] = default_network(self.data, self.scale)
        steps = self.steps or (method.paper_steps if self.scale == "paper" else default_steps(self.data, self.scale))
        filled["steps"] = steps
        if self.threads is None and self.scale == "demo":
            filled["threads"] = 1  # such small batches gain nothing from more, and lose much on a busy machine
        filled["eval_every"] = self.eval_every or max(
            min(steps, 10), round(steps / (10 if self.scale == "demo" else 20))
        )
        filled["log_every"] = self.log_every or max(1, min(100, round(steps / 100)))
        return self.changed(**filled)

    def dump(self) -> str:
        """As YAML, in the order of the fields."""
        values = self.model_dump(mode="json")
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """From a YAML file."""
        return cls(**read_fields(path))


SPLIT_FIELDS = ("id_classes", "labels_per_class", "unlabeled", "ood_ratio", "ood_count", "val_per_class")

SCALE_OPTIONS: dict[str, dict[str, Any]] = {"demo": {"batch": 32}}
"""Options that a scale sets: the demo has few labels and wants to end in seconds."""

GREY = {"digits", "mnist"}


def default_network(data: str, scale: Scale) -> str:
    """The paper's networks at scale `paper`; below it the small one where the paper has WRN-28-2."""
    if data in GREY:
        return "cnn"
    return "wrn-28-2" if scale == "paper" else "small"


def default_steps(data: str, scale: Scale) -> int:
    """Steps that take seconds (`demo`) or minutes on two cores (`cpu`)."""
    if scale == "demo":
        return 400
    return 1_500 if data in GREY else 3_000


def read_fields(path: str | Path) -> dict[str, Any]:
    """The fields of a recipe file, not yet validated."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Cannot read the recipe {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"The recipe {path} is not a text file.") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "it holds characters that are not text"
        raise UserError(f"The recipe {path} is not valid YAML{where}: {reason}.") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"The recipe {path} must consist of `field: value` lines, such as `method: fixmatch`.")
    return values


def explain(error: ValidationError, model: type[BaseModel], what: str) -> str:
    """A pydantic error as sentences: the field, the value, what would do."""
    sentences = []
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else what
        if problem["type"] == "extra_forbidden":
            sentences.append(f"Unknown field {field!r} in the {what}.{suggest(field, model.model_fields)}")
            continue
        described = model.model_fields.get(field)
        meaning = f" ({described.description})" if described and described.description else ""
        reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        sentences.append(f"{field}: {problem['input']!r} will not do{meaning}: {reason}.")
    return "\n".join(dict.fromkeys(sentences))


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` of --set; the value is read as YAML, so 0.5, true, null and [1, 2] mean what they look like.

    >>> parse_assignment("alpha=0.5"), parse_assignment("id_classes=[cat, dog]")
    (('alpha', 0.5), ('id_classes', ['cat', 'dog']))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text!r}: write key=value, for example --set lr=0.01")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"--set {text!r}: the value cannot be read.") from None
    if isinstance(parsed, str):  # YAML 1.1 reads 1e-3 as text
        with contextlib.suppress(ValueError):
            parsed = float(parsed)
    return key.strip(), parsed


def apply_assignments(fields: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Recipe fields with --set applied: a field of the recipe by its name, anything else an option of the method."""
    options = fields.get("options") or {}
    if not isinstance(options, dict):
        raise UserError(f"options: {options!r} will not do; write `name: value` lines.")
    result = {**fields, "options": dict(options)}
    for text in assignments:
        key, value = parse_assignment(text)
        if key in Recipe.model_fields and key != "options":
            result[key] = value
        else:
            result["options"][key.removeprefix("options.")] = value
    return result
