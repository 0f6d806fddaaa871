"""`osp settings`: every field of a recipe and every option of a method, with default and meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from osp.cli.lists import options_of, value
from osp.cli.text import columns, console, plain, say

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

GROUPS = {
    "Data": ("data", "data_dir", "image_size", "ood_data", "ood_dir"),
    "Split": ("id_classes", "labels_per_class", "val_per_class", "unlabeled", "ood_ratio", "id_count", "ood_count"),
    "Test": ("test_ood",),
    "Method and network": ("method", "preset", "options", "network", "bn_momentum"),
    "Length": ("scale", "steps", "eval_every", "log_every", "tensorboard", "tracker"),
    "Machine": ("seed", "device", "precision", "threads", "channels_last", "group", "compile"),
}
"""Fields by what they are about; a field named here no longer, or not yet, does no harm: the rest comes last."""

UNSET = {
    "data": "digits",
    "data_dir": "OSP_DATA or cache",
    "image_size": "the set's own",
    "ood_data": "the set's other classes",
    "ood_dir": "data_dir",
    "id_classes": "the set's usual ones",
    "labels_per_class": "by the data set",
    "val_per_class": "by the data set",
    "unlabeled": "as many as fit",
    "ood_ratio": "by the data set",
    "ood_count": "by ood_ratio",
    "id_count": "what the total leaves",
    "test_ood": "none",
    "method": "osp",
    "preset": "default",
    "options": "the method's",
    "network": "by data and scale",
    "bn_momentum": "by the length",
    "scale": "cpu",
    "steps": "by data and scale",
    "eval_every": "a 20th of the run",
    "log_every": "a 100th of the run",
    "tensorboard": "false",
    "tracker": "none",
    "seed": "0",
    "device": "auto",
    "precision": "32-true",
    "threads": "torch's choice",
    "channels_last": "true",
    "group": "by the device",
    "compile": "false",
}
"""What holds where a field is left out."""

NOTES = {
    "device": "auto takes a CUDA GPU if there is one, then Apple's MPS, then the CPU; `--set device=cpu` forces one",
    "precision": "32-true is plain float32; bf16-mixed and 16-mixed are faster on GPUs and a little less exact",
    "tensorboard": "write curves into RUN/tensorboard as well; look at them with `tensorboard --logdir runs` "
    "(`pip install 'osp[tensorboard]'`)",
    "tracker": "also give every number to these: tensorboard,wandb,mlflow (extras of the same names). They write into "
    "the run's folder; `wandb:online` or `mlflow:online` sends them where that package is set up to",
    "threads": "CPU threads; results may differ in the last digits between numbers of threads",
    "compile": "torch.compile the encoder: a minute at the start, then faster steps on most GPUs",
    "options": "options of the method, by name: `osp settings METHOD` lists them",
    "preset": "values of the method's options: default (one harness), paper (as published) or v0.1 (earlier defaults)",
    "scale": "demo (seconds), cpu (minutes on two cores) or paper (the published network and steps)",
}
"""Where the recipe's own description is too short for somebody who meets the setting here first."""


def settings(
    method: Annotated[str | None, typer.Argument(help="Show the options of this method too.")] = None,
) -> None:
    """Show every setting of a run with its default and meaning, and with METHOD the method's options as well.

    Each can stand in a recipe file (`steps: 500`) or behind `--set` (`--set steps=500`).

    Examples:

    - `osp settings`

    - `osp settings fixmatch`
    """
    from osp.recipe import Recipe

    options = []
    if method is not None:
        from osp.methods import get

        options = options_of(get(method))
    fields = Recipe.model_fields
    placed = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "Other": tuple(name for name in fields if name not in placed)}
    tables = {
        title: [(name, _default(name, fields[name]), _meaning(name, fields[name])) for name in names if name in fields]
        for title, names in groups.items()
    }
    tables[f"Options of {method} (`osp methods {method} --preset paper`: as published)"] = options
    width = max(len(row[0]) for rows in tables.values() for row in rows)
    shown = console()
    for title, rows in tables.items():
        if rows:
            shown.print(plain(title, "bold"))
            shown.print(columns(*((name.ljust(width), *rest) for name, *rest in rows), padding=(0, 1)))
            say()
    if method is None:
        say("`osp settings METHOD` adds the options of a method: learning rate, batch size and so on.")
    say("Use any of them as `osp train --set steps=500 --set lr=0.01`, or as `steps: 500` in a recipe file (--recipe).")


def _default(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    return UNSET.get(name, "not set") if default is None or default in ({}, ()) else value(default)


def _meaning(name: str, field: FieldInfo) -> str:
    return NOTES.get(name) or field.description or ""
