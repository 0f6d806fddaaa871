"""The command `osp`. Only light imports here: help and errors must come at once."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osp.errors import UserError, suggest
from osp.version import __version__

if TYPE_CHECKING:
    from osp.recipe import Recipe

app = typer.Typer(
    name="osp",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Any mistake on the command line, in whichever click typer brings along."""


def main() -> None:
    """Run the command; a user's mistake is one message and exit code 2, never a traceback."""
    warnings.showwarning = _show_warning
    try:
        sys.exit(app(prog_name="osp", standalone_mode=False))
    except UserError as error:
        print(f"osp: {error}", file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        print(f"osp: {_explain(error)}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("osp: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _explain(error: Any) -> str:
    """A mistake on the command line as one sentence, with the nearest option where one is misspelt."""
    command = error.ctx.command_path if error.ctx is not None else "osp"
    misspelt = getattr(error, "option_name", None)
    if misspelt is None or error.ctx is None:
        message = error.format_message().strip()
        return f"{message}{'' if message.endswith(('.', '?')) else '.'} `{command} --help` shows what there is."
    options = [name for parameter in error.ctx.command.params for name in parameter.opts if name.startswith("--")]
    return f"No such option: {misspelt}.{suggest(misspelt, options)} `{command} --help` shows them."


def _show_warning(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
    """Our own warnings as plain sentences; those of other packages are for programmers and stay quiet."""
    if Path(filename).is_relative_to(Path(__file__).parent):
        print(f"osp: warning: {message}", file=sys.stderr)


def _version(value: bool) -> None:
    if value:
        print(f"osp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train image classifiers from a few labelled images and a messy unlabelled pool.

    Examples:

    - `osp demo`

    - `osp train --data mnist --method fixmatch`

    - `osp train --data folder --data-dir photos`
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs; one that is in use is left alone.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Train on embedded digits in seconds: 30 labels, a pool of which 60 % is none of the six classes.

    Example: `osp demo --out runs/first`
    """
    from osp.recipe import Recipe

    common: dict[str, Any] = {"data": "digits", "scale": "demo", "labels_per_class": DEMO_LABELS, "seed": seed}
    recipes = [Recipe(method=name, **common) for name in ("supervised", DEMO_METHOD)]
    number, free = 1, out
    while free.is_dir() and any(free.iterdir()):
        number += 1
        free = out.with_name(f"{out.name}-{number}")
    print(f"Digits 0 to 5, {DEMO_LABELS} labelled images each; a pool of unlabelled digits, 60 % of which are 6 to 9.")
    results = []
    for part, recipe in enumerate(recipes, start=1):
        print(f"\n{part} of {len(recipes)}: {recipe.method}", flush=True)
        results.append(_run(recipe, free / str(recipe.method), resume=False))
    baseline, run = results
    before, after = baseline.result, run.result
    print(f"\nTest accuracy: {before['accuracy']:.1f} % from the labels alone, ", end="")
    print(f"{after['accuracy']:.1f} % by {DEMO_METHOD} with the unlabelled pool.")
    print(f"Telling digits 6 to 9 from 0 to 5 (AUROC): {before['auroc']:.1f} and {after['auroc']:.1f}.")
    print(f"Look at the picture: {run.path / 'result.png'}")
    print("Next: `osp datasets`, `osp methods`, `osp train --help`.")


DEMO_METHOD = "osp"
DEMO_LABELS = 5

SET_HELP = "Any other field of the recipe or option of the method, e.g. `--set lr=0.01`; repeatable."


@app.command()
def train(
    recipe_file: Annotated[
        Path | None, typer.Option("--recipe", help="A recipe file (YAML); options given here win over it.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data set; `osp datasets` lists them.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the data; else OSP_DATA, else your cache folder.")
    ] = None,
    ood_data: Annotated[
        str | None, typer.Option(help="Another data set in the pool; `pile` for your own unsorted images.")
    ] = None,
    ood_dir: Annotated[str | None, typer.Option(help="Folder of --ood-data, if it is not --data-dir.")] = None,
    method: Annotated[str | None, typer.Option(help="Method; `osp methods` lists them. Or a file: ./mine.py")] = None,
    preset: Annotated[str | None, typer.Option(help="Method options: default (common harness) or paper.")] = None,
    scale: Annotated[str | None, typer.Option(help="demo (seconds), cpu (minutes) or paper (as published).")] = None,
    ood_ratio: Annotated[float | None, typer.Option(help="Share of OOD images in the pool, 0 to 1.")] = None,
    labels_per_class: Annotated[int | None, typer.Option(help="Labelled images a class.")] = None,
    unlabeled: Annotated[int | None, typer.Option(help="Unlabelled images in all.")] = None,
    network: Annotated[str | None, typer.Option(help="cnn, small, or wrn-DEPTH-WIDTH such as wrn-28-2.")] = None,
    steps: Annotated[int | None, typer.Option(help="Make the run this long; all shares are kept.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/DATA-METHOD-...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP)] = None,
) -> None:
    """Train a classifier and test it.

    Examples:

    - `osp train --data mnist --data-dir DIR --method fixmatch --ood-ratio 0.6`

    - `osp train --data folder --data-dir photos --labels-per-class 20`

    - `osp train --recipe recipe.yaml --seed 3 --out runs/third`

    - `osp train --out runs/third --resume`
    """
    from osp.methods.registry import is_file
    from osp.recipe import Recipe, apply_assignments, read_fields

    given: dict[str, Any] = {
        "data": data,
        "data_dir": data_dir,
        "ood_data": ood_data,
        "ood_dir": ood_dir,
        "method": method,
        "preset": preset,
        "scale": scale,
        "ood_ratio": ood_ratio,
        "labels_per_class": labels_per_class,
        "unlabeled": unlabeled,
        "network": network,
        "steps": steps,
        "seed": seed,
    }
    given = {key: value for key, value in given.items() if value is not None}
    fields: dict[str, Any] = {}
    if recipe_file is not None:
        fields = read_fields(recipe_file)
    elif resume and out is not None and (out / "recipe.yaml").exists():
        fields = read_fields(out / "recipe.yaml")
        stored = str(fields.get("method", ""))
        if is_file(stored) and method is None:
            raise UserError(
                f"This run was trained by the method file {stored}. If you trust it, add --method {stored}."
            )
    fields = apply_assignments({**fields, **given}, settings or [])
    run = _run(Recipe(**fields), out, resume)
    _print_result(run.result)
    print(f"Run: {run.path}   picture: {run.path / 'result.png'}")


def _run(recipe: Recipe, out: Path | None, resume: bool) -> Any:
    """Train with progress on the terminal; interruptions say how to continue."""
    from osp.api import train as start
    from osp.engine.progress import display_for_terminal, loading_bar
    from osp.engine.signals import Interrupted
    from osp.engine.train import default_folder
    from osp.recipe import make_plan

    folder = out.expanduser() if out is not None else default_folder(make_plan(recipe))
    try:
        with loading_bar() as loading:
            return start(recipe, folder, resume=resume, display=display_for_terminal(), loading=loading)
    except Interrupted:
        print(f"\nStopped; everything is saved. Continue with: osp train --out {folder} --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        begun = (folder / "checkpoints").is_dir()
        text = f"Continue from the last save with: osp train --out {folder} --resume" if begun else "Nothing was begun."
        print(f"\nStopped at once. {text}", file=sys.stderr)
        raise typer.Exit(130) from None


SHOWN = {
    "accuracy": "test accuracy (%)",
    "auroc": "AUROC, ID against OOD test images",
    "pool_auroc": "AUROC in the unlabelled pool",
    "purity": "ID among the kept images (%)",
    "angle": "angle between ID and OOD features (degrees)",
    "seconds": "seconds",
}


def _print_result(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2))
    for key, meaning in SHOWN.items():
        if result.get(key) is not None:
            table.add_row(meaning, f"{result[key]:.1f}")
    console = Console()
    console.print(table)
    for warning in result["warnings"]:
        console.print(f"Warning: {warning}", style="yellow")


@app.command()
def datasets(
    data_dir: Annotated[
        str | None, typer.Option(help="Folder to look in; else OSP_DATA, else your cache folder.")
    ] = None,
) -> None:
    """Show each data set: found or not, where it was looked for, its size, how to get it.

    Example: `osp datasets --data-dir ~/data`
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from osp.data import data_dir as folder_of
    from osp.data import describe
    from osp.data.sources.base import check_root

    check_root(folder_of(data_dir))
    table = Table()
    for heading in ("data set", "found", "images", "where", "notes"):
        table.add_column(heading, overflow="fold")
    missing = []
    for info in describe(data_dir):
        found = "[green]yes[/]" if info.found else "[yellow]no[/]"
        notes = [f"variant: {info.variant}"] if info.variant else []
        notes += [info.problem] if info.problem else []
        if not info.found:
            missing.append(info)
        elif info.how:
            notes.append(info.how)
        counts = [] if info.train is None else [f"{info.train:,}"]
        counts += [] if not info.test else [f"{info.test:,} test"]
        table.add_row(info.name, found, " + ".join(counts), info.where, escape("\n".join(notes)))
    Console().print(table)
    for info in missing:
        print(f"{info.name}: {info.how}")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the options of this method.")] = None,
    preset: Annotated[str, typer.Option(help="default or paper.")] = "default",
) -> None:
    """List the methods, or show one with its options and where each value comes from.

    Example: `osp methods fixmatch --preset paper`
    """
    from rich.console import Console
    from rich.table import Table

    from osp.methods.base import UNPUBLISHED
    from osp.methods.registry import available, get
    from osp.recipe import Recipe, make_plan

    if preset not in ("default", "paper"):
        raise UserError(f"--preset {preset!r}: no such preset.{suggest(preset, ['default', 'paper'])}")
    console = Console()
    if name is None:
        table = Table(box=None, padding=(0, 2))
        table.add_column("method")
        table.add_column("what it does")
        table.add_column("from")
        for each in available():
            method = get(each)
            table.add_row(each, method.summary, method.reference)
        console.print(table)
        console.print(
            "`osp methods NAME` shows a method's options; `--method ./mine.py` runs one of your own.", highlight=False
        )
        return
    method = get(name)
    options = make_plan(Recipe(method=name, preset=preset)).options
    console.print(f"[bold]{method.name}[/]: {method.summary}\n{method.reference}\n", highlight=False)
    table = Table(box=None, padding=(0, 1))
    table.add_column("option", no_wrap=True, min_width=max(map(len, options)))  # names are typed: never cut
    for heading in ("value", "meaning", "source" if preset == "paper" else ""):
        table.add_column(heading)
    for key, value in options.items():
        published = method.paper.get(key) if preset == "paper" else None
        source = ""
        if preset == "paper":
            unused = "off: not in the publication" if key in UNPUBLISHED else "not published; our default"
            source = published.source if published else unused
        table.add_row(key, repr(value), method.Options.model_fields[key].description or "", source)
    console.print(table)


bench_app = typer.Typer(
    help="Measure the speed of a step, or what each method costs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def bench() -> None:
    """Measurements that end in a table, a JSON file and a picture."""


@bench_app.command()
def speed(
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = Path("runs/bench"),
    network: Annotated[list[str] | None, typer.Option(help="cnn or wrn-28-2; repeatable; both if not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the table shows their median.")] = 5,
    growth: Annotated[bool, typer.Option(help="Also measure by batch size, classes and size of the pool.")] = True,
) -> None:
    """What a step of OSP costs, against its bare computation and against published code. Takes some minutes.

    Example: `osp bench speed --network cnn --no-growth`
    """
    from osp.bench.speed import run, table
    from osp.bench.workload import CASES

    found = run(network or list(CASES), repeats, out, growth, lambda text: print(text, file=sys.stderr, flush=True))
    print("\n".join(f"{key}: {value}" for key, value in found["machine"].items()))
    print()
    print(table(found))
    print(f"\n{out / 'speed.json'}   {out / 'speed.png'}")


@bench_app.command()
def cost(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; all if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for cost.json.")] = Path("runs/bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the table shows their median.")] = 5,
) -> None:
    """What a step of each method costs, in images and in time relative to Supervised.

    Example: `osp bench cost fixmatch osp`
    """
    from osp.bench.cost import run, table

    found = run(methods or [], repeats, out, lambda text: print(text, file=sys.stderr, flush=True))
    print("\n".join(f"{key}: {value}" for key, value in found["machine"].items()))
    print()
    print(table(found))
    print(f"\n{out / 'cost.json'}")
