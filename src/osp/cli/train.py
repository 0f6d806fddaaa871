"""`osp train` and `osp demo`."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osp.cli.lists import check_environment
from osp.cli.text import columns, complain, console, plain, say
from osp.errors import UserError, user_path
from osp.recipe.fields import TEXTS

if TYPE_CHECKING:
    from osp.recipe import Recipe

DEMO_METHOD = "osp"
DEMO_LABELS = 5
DEMO_NUMBERS = ("val_accuracy",)
AFTER_YOU = 30.0
"""Seconds that a process which lost another stays, unless the launcher ends it: that takes the first that has ended for
the reason, and on a busy machine it looks late."""

SET_HELP = "Any other setting (`osp settings` lists them), e.g. `--set lr=0.01`; repeatable."


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs; one that is in use is left alone.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Train on embedded digits, without and with unlabeled images: 30 labels, and a pool of which 60 % shows none of
    the six classes. Takes about a minute and needs no data.

    Example: `osp demo --out runs/first`
    """
    from osp.recipe import Recipe

    common: dict[str, Any] = {"data": "digits", "scale": "demo", "labels_per_class": DEMO_LABELS, "seed": seed}
    recipes = [Recipe(method=name, **common) for name in ("supervised", DEMO_METHOD)]
    home = user_path(out)
    home = home if home.name else home / "demo"
    number, free = 1, home
    while free.is_dir() and any(free.iterdir()):
        number += 1
        free = home.with_name(f"{home.name}-{number}")
    say(f"Digits 0 to 5, {DEMO_LABELS} labeled images each; a pool of unlabeled digits, 60 % of which are 6 to 9.")
    results = []
    for part, recipe in enumerate(recipes, start=1):
        say(f"\n{part} of {len(recipes)}: {recipe.method}")
        results.append(run_shown(recipe, free / str(recipe.method), resume=False, only=DEMO_NUMBERS))
    baseline, run = results
    before, after = baseline.result, run.result
    say(f"\nTest accuracy: {before['accuracy']:.1f} % from the labels alone, ", end="")
    say(f"{after['accuracy']:.1f} % by {DEMO_METHOD} with the unlabeled pool.")
    say(f"Telling digits 6 to 9 from 0 to 5 (AUROC): {before['auroc']:.1f} and {after['auroc']:.1f}.")
    say(f"Look at the picture: {run.path / 'result.png'}")
    say("Next: `osp datasets`, `osp methods`, `osp train --help`.")


def with_recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of the recipe that has one; those that are set come as `given`."""
    signature = inspect.signature(command, eval_str=True)
    first, _, *others = signature.parameters.values()
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[text.kind | None, typer.Option(help=text.option)],
        )
        for name, text in TEXTS.items()
        if text.option
    ]

    @wraps(command)
    def with_options(**values: Any) -> None:
        asked = {option.name: values.pop(option.name) for option in options}
        command(given={name: value for name, value in asked.items() if value is not None}, **values)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (first, *options, *others)]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


@with_recipe_options
def train(
    recipe_file: Annotated[
        Path | None, typer.Option("--recipe", help="A recipe file (YAML); options given here win over it.")
    ] = None,
    given: Mapping[str, Any] = MappingProxyType({}),
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/DATA-METHOD-...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    devices: Annotated[
        int | None, typer.Option(min=1, help="GPUs of this machine (without any: processes) that share the run.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Machines that share it: start this on each, MASTER_ADDR naming one.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)] = None,
) -> None:
    """Train a classifier from a few labeled images and a pool of unlabeled ones, and test it.

    The run's folder then holds the model, its settings, its metrics, result.json and a picture. An interrupted run
    goes on with --resume.

    Examples:

    - `osp train --data mnist --data-dir DIR --method fixmatch --ood-ratio 0.6`

    - `osp train --data folder --data-dir photos --labels-per-class 20`

    - `osp train --recipe recipe.yaml --seed 3 --out runs/third`

    - `osp train --out runs/third --resume`
    """
    from osp.recipe import Recipe, apply_assignments, read_fields
    from osp.recipe.code import files_in, without_code

    fields: dict[str, Any] = {}
    for name in ("data_dir", "ood_dir"):
        user_path(given.get(name, ""))  # refused here where it cannot be one
    folder = None if out is None else user_path(out)
    source = None if recipe_file is None else user_path(recipe_file)
    if source is not None:
        fields = read_fields(source)
    asked = apply_assignments(given, settings or [])
    fields = apply_assignments({**fields, **given}, settings or [])
    if source is not None:
        without_code(fields, f"The recipe {source}", files_in(asked).values())
    recipe = Recipe(**fields)
    start_processes(recipe, folder, devices, nodes)
    run = run_shown(recipe, folder, resume)
    from osp.distributed import started_rank

    if started_rank() == 0:
        print_result(run.result)
        picture = f"   picture: {run.folder.picture}" if run.folder.picture.exists() else ""
        say(f"Run: {run.path}{picture}")


def start_processes(recipe: Recipe, out: Path | None, devices: int | None, nodes: int | None) -> None:
    """Where several devices are asked for and no launcher has started us: start the processes, and end as they do."""
    if devices is None and nodes is None:
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings come with stacks; we say it in a sentence
    from osp.distributed import started
    from osp.engine.launch import launch
    from osp.engine.train import folder_for

    asked = (devices or 1) * (nodes or 1)
    if started() > 1:
        if asked != started():
            raise UserError(f"--devices and --nodes ask for {asked} processes, but {started()} were started.")
    elif asked > 1:
        again = command_again(folder_for(recipe, out), devices, nodes)
        raise typer.Exit(launch(devices or 1, nodes or 1, sys.argv[1:], again))


def command_again(folder: Path, devices: int | None = None, nodes: int | None = None) -> str:
    """The command that goes on with a run."""
    several = f" --devices {devices}" if devices is not None else ""
    several += f" --nodes {nodes}" if nodes is not None else ""
    return f"osp train --out {shlex.quote(str(folder))} --resume{several}"


def run_shown(recipe: Recipe, out: Path | None, resume: bool, only: Collection[str] | None = None) -> Any:
    """Train with progress on the terminal; interruptions say how to continue.

    Of several processes the first one speaks for all, the others for themselves alone.
    """
    check_environment()
    from osp.api import train as start
    from osp.distributed import Everywhere, LostRank, started_here, started_nodes, started_rank
    from osp.engine.devices import keep_freed_memory
    from osp.engine.launch import LOST
    from osp.engine.progress import shown
    from osp.engine.signals import Interrupted
    from osp.engine.train import folder_for

    keep_freed_memory()
    folder = folder_for(recipe, out)
    again, rank = command_again(folder, started_here(), started_nodes()), started_rank()
    try:
        with shown(rank == 0, only) as display:
            return start(recipe, folder, resume=resume, display=display)
    except Interrupted:
        if rank == 0:
            complain(f"Stopped; everything is saved. Continue with: {again}")
    except KeyboardInterrupt:
        if rank == 0:
            begun = (folder / "plan.yaml").exists()
            end = f"Continue from the last save with: {again}" if begun else "Nothing was begun."
            complain(f"Stopped at once. {end}")
    except LostRank as error:
        complain(f"Rank {rank}: {error}")
        time.sleep(AFTER_YOU)
        raise typer.Exit(LOST) from None
    except Everywhere:
        if rank == 0:
            raise
        raise typer.Exit(2) from None
    except UserError as error:
        raise UserError(f"Rank {rank}: {error}" if rank else str(error)) from None
    raise typer.Exit(130)


SHOWN = {
    "accuracy": "test accuracy (%)",
    "auroc": "AUROC, ID against OOD test images",
    "pool_auroc": "AUROC in the unlabeled pool",
    "purity": "ID among the kept images (%)",
    "angle": "angle between ID and OOD features (degrees)",
    "seconds": "seconds",
}


def print_result(result: dict[str, Any]) -> None:
    found = [(meaning, result.get(key)) for key, meaning in SHOWN.items()]
    rows = [(meaning, f"{number:.1f}") for meaning, number in found if isinstance(number, int | float)]
    shown = console()
    shown.print(columns(*rows))
    for warning in result.get("warnings") or []:
        shown.print(plain(f"Warning: {warning}", "yellow"), soft_wrap=True)
