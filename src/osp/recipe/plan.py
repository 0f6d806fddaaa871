"""Plan: what was decided. Made once from a recipe (`osp.recipe.deciding`), stored with the run, never changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from osp.errors import UserError
from osp.plugins import is_file
from osp.recipe.code import OPTIONS, as_fields, same_files
from osp.recipe.reading import explain, read_fields
from osp.recipe.recipe import Fields, Precision, Preset, Recipe, Scale

SPLIT_FIELDS = ("id_classes", "labels_per_class", "unlabeled", "ood_ratio", "id_count", "ood_count", "val_per_class")

IDENTITY = (
    "data",
    "ood_data",
    *SPLIT_FIELDS,
    "method",
    "options",
    "network",
    "steps",
    "bn_momentum",
    "group",
    "precision",
    "image_size",
    "seed",
)
"""Fields that affect the result; the views follow from the method and its options. Folders, device, threads, layout,
intervals and the words `preset` and `scale` say where and how it runs, or have become numbers."""

MOST_THREADS = 1024
"""More than the cores may be asked for: a run goes on with the threads it began with."""

FREE = ("device", "threads", "data_dir", "ood_dir", "tensorboard", "tracker", "test_ood", "save_every", "save_seconds")
"""What may differ when a run goes on."""

CUSTOM = "custom"
"""The network of a run that was given a module: it has no name, and the run no identity."""

CPU_GROUP = 128
"""Images per pass on a CPU: larger ones leave its caches."""

FILE = "./"
"""Stands for the path of a file of code in the identity, which has its content."""


class Plan(Fields):
    """Every field decided: those named here are never open, and None in another means none.

    Written as plan.yaml before a run begins, read when it goes on.
    """

    data: str
    labels_per_class: int = Field(ge=1)
    val_per_class: int = Field(ge=0)
    method: str
    method_content: str | None = None
    """Hash of a method file's content."""
    contents: dict[str, str] = Field(default_factory=dict)
    """Hashes of other code from outside the package, by what it is: network, score, data, an installed method."""
    options: dict[str, Any]
    preset: Preset
    scale: Scale
    network: str
    steps: int = Field(ge=1)
    eval_every: int = Field(ge=1)
    log_every: int = Field(ge=1)
    bn_momentum: float = Field(gt=0, le=1)
    seed: int = Field(ge=0)
    device: str = "auto"
    precision: Precision = "32-true"
    channels_last: bool = True
    group: int = Field(ge=0)
    compile: bool = False
    threads: int | None = Field(None, ge=1, le=MOST_THREADS)
    tensorboard: bool = False
    versions: dict[str, str] = Field(default_factory=dict)
    recipe: dict[str, Any] = Field(default_factory=dict)
    """What was asked."""

    def identity(self) -> str | None:
        """A hash of all that affects the result, None for a module of the user's own.

        Options that came later are left out where they say what the method did before; those that were taken away are
        put back as they last were.
        """
        from osp.methods.registry import options_before, options_removed, same

        if self.network == CUSTOM:
            return None
        values = {key: value for key, value in self.model_dump(mode="json").items() if key in IDENTITY}
        if self.method_content is not None:
            values["method"] = self.method_content
        if self.contents:
            values["contents"] = self.contents
            for key in ("data", "ood_data", "network"):
                values[key] = FILE if is_file(values[key]) else values[key]
            files = {key: FILE for key in OPTIONS if is_file(values["options"].get(key))}
            values["options"] = {**values["options"], **files}
        values["options"] = {**options_removed(self.method), **values["options"]}
        for key, value in options_before(self.method).items():
            if same(self.options.get(key, value), value):
                values["options"].pop(key, None)
        text = json.dumps(values, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    @property
    def method_name(self) -> str:
        """`fixmatch`, or `mine` for ./mine.py."""
        return Path(self.method).stem

    def changed(self, **values: Any) -> Plan:
        return Plan(**{**self.model_dump(), **values})

    def dump(self) -> str:
        """As YAML, in the order of the fields."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    @classmethod
    def read(cls, path: Path) -> Plan:
        return cls.of(read_fields(path, "plan", kept=True), path)

    @classmethod
    def of(cls, fields: dict[str, Any], where: object) -> Plan:
        """The plan of these fields; UserError that says where they are from if they are none."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise UserError(
                f"The plan {where} is of another version or damaged: {explain(error, cls, 'plan')}"
            ) from None

    def differences(self, recipe: Recipe) -> list[str]:
        """What a recipe asks for that this plan decided otherwise, by name; what may change is left out."""
        from osp.methods.registry import options_before, options_removed, same

        mine, found = self.model_dump(mode="json"), []
        mine["options"] = {**options_removed(self.method), **options_before(self.method), **mine["options"]}
        asked = recipe.asked()
        equal = same_files(self, recipe)
        for key, value in asked.items():
            if key == "options":
                found += [
                    f"{name} is {mine['options'].get(name)!r} there, {given!r} here"
                    for name, given in value.items()
                    if not same(mine["options"].get(name), given) and name not in equal
                ]
            elif key not in (*FREE, *equal) and not same(mine[key], value):
                found.append(f"{key} is {mine[key]!r} there, {value!r} here")
        return found

    def moved(self, recipe: Recipe) -> Plan:
        """This plan with the recipe's say on where and how it runs."""
        given = {key: value for key, value in recipe.asked().items() if key in FREE}
        return self.changed(**given, **as_fields(same_files(self, recipe), self.options))
