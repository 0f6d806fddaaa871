"""`osp bench TABLE...`: run what is missing of tables, here or on a cluster, and show them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osp.cli.bench import options
from osp.cli.bench.store import list_runs
from osp.cli.text import columns, complain, console, plain, say, tell
from osp.errors import UserError, user_path

if TYPE_CHECKING:
    from osp.bench.cells import Table
    from osp.bench.executors import Executor, Outcome
    from osp.bench.jobs import Job
    from osp.bench.sheets import Sheet
    from osp.bench.store import Store


def run(
    names: options.Names = None,
    scale: options.Scale = "cpu",
    seeds: options.Seeds = "0",
    methods: options.Methods = None,
    datasets: options.Datasets = None,
    ratios: options.Ratios = None,
    settings: options.Set = None,
    measure: Annotated[str | None, typer.Option(help="Numbers to show: accuracy,open_accuracy,...")] = None,
    against: Annotated[str | None, typer.Option(help="Also every row against this one, paired by seed.")] = None,
    id_count: Annotated[int | None, typer.Option(help="Unlabeled ID images, in place of a total.")] = None,
    ood_count: Annotated[int | None, typer.Option(help="Unlabeled OOD images, in place of a ratio.")] = None,
    val_per_class: Annotated[int | None, typer.Option(help="Validation images per class; 0 for none.")] = None,
    test_ood: Annotated[str | None, typer.Option(help="Test on these OOD sets too: uniform,gaussian.")] = None,
    data_dir: options.DataDir = None,
    jobs: options.Jobs = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS]", help="Run on a Ray cluster: this machine's, or the one at HOST:PORT."),
    ] = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit the missing runs to Slurm and return at once.")
    ] = False,
    cpus: Annotated[int, typer.Option(min=1, help="With --ray or --slurm: cores of each run.")] = 1,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray or --slurm: GPUs of each run; --ray takes one where there are."),
    ] = None,
    store: options.StoreFolder = options.DEFAULT_STORE,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the page.")] = options.DEFAULT_OUT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their state; run nothing.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Show what the store has; run nothing.")] = False,
) -> None:
    """Run what is missing of these tables and figures, then show and write them.

    Finished runs are not repeated, interrupted ones go on, failed ones are tried again.
    """
    from osp.bench.grid import check_measure
    from osp.bench.jobs import KeyCache, jobs_for
    from osp.bench.numbers import check_row, fill
    from osp.cli.lists import check_environment

    numbers = {"id_count": id_count, "ood_count": ood_count, "val_per_class": val_per_class}
    given = {"data_dir": data_dir, **numbers, "test_ood": test_ood}
    fields = {key: value for key, value in given.items() if value is not None}
    choice = options.choice_of(scale, seeds, methods, datasets, ratios, settings, fields)
    if ray is not None and slurm:
        raise UserError("--ray and --slurm: runs go to one of them; leave the other out.")
    if not names:
        raise UserError("Name a table: `osp bench list` shows them.")
    measures = options.words_of(measure)
    try:
        for each in measures:
            check_measure(each)
    except ValueError as error:
        raise UserError(f"--measure: {error}.") from None
    tables = options.tables_of(names, choice)
    for table in tables:
        if against is not None:
            check_row(table, against)
    kept, target = options.open_store(store), user_path(out)
    if no_run and not kept.root.is_dir():
        complain(f"There is no store {store}: nothing was run there yet. The runs of this project are in its results/.")
    if dry_run:
        list_runs(kept, tables, jobs)
        return
    keys, outcome = KeyCache(kept), None
    if not no_run:
        check_environment()
        wanted = jobs_for(kept, [plan for table in tables for plan in table.plans], keys)
        if slurm:
            _submit(kept, wanted, names, cpus, gpus, jobs)
            return
        with _executor(kept, wanted, jobs, ray, cpus, gpus) as (executor, at_a_time):
            outcome = _carry_out(kept, wanted, executor, at_a_time)
    for table in tables:
        unseen = dict.fromkeys(name for plan in table.plans for name in plan.test_ood)  # OOD sets not in the pool
        others = (f"other_ood.{name}.{kind}" for name in unseen for kind in ("auroc", "fpr95"))
        shown = measures or (table.grid.measure, *table.grid.also, *others)
        filled = fill(kept, table, keys)
        show([replace(filled, measure=each) for each in shown], target, len(measures), against)
    options.tell_problems(kept)
    if outcome is not None and outcome.stopped:
        complain("Stopped; everything is saved. The same command goes on.")
        raise typer.Exit(130)
    if outcome is not None and outcome.failed:
        raise typer.Exit(1)


def _carry_out(store: Store, wanted: list[Job], executor: Executor, at_a_time: int) -> Outcome:
    """Run what is missing, and say what failed."""
    from osp.bench.executors import run_jobs
    from osp.bench.jobs import Expected

    expected = Expected(store)

    def left(waiting: list[Job]) -> str:
        time = expected.told([job.plan for job in waiting], min(at_a_time, max(len(waiting), 1)))
        return f", about {time} left" if waiting else ""

    outcome = run_jobs(store, wanted, executor, tell, left)
    for name, reason in outcome.failed.items():
        complain(f"{name} failed: {reason} (log: {store.log(name)})")
    return outcome


@contextmanager
def _executor(
    store: Store, wanted: list[Job], jobs: int, ray: str | None, cpus: int, gpus: float | None
) -> Iterator[tuple[Executor, int]]:
    """Where runs are carried out, and how many at a time. A cluster is only asked for when there is something to do."""
    from osp.bench.executors import Processes
    from osp.bench.jobs import unfinished

    if ray is None or not unfinished(store, wanted):
        yield Processes(store, jobs), jobs
        return
    from osp.bench.on_ray import ray_nodes

    with ray_nodes(store, ray, cpus, gpus) as (nodes, about, at_a_time):
        tell(about)
        yield nodes, at_a_time


def _submit(store: Store, wanted: list[Job], names: list[str], cpus: int, gpus: float | None, at_once: int) -> None:
    """Hand what is missing to Slurm."""
    from osp.bench.jobs import unfinished
    from osp.bench.slurm import submit, write_array

    missing = unfinished(store, wanted)
    if not missing:
        say(f"All {len(wanted)} runs are done; nothing was submitted.")
        return
    script = write_array(store, missing, "-".join(Path(name).stem for name in names), cpus, gpus, at_once)
    answer = submit(script)
    say(f"{len(missing)} of {len(wanted)} runs to do.")
    if answer is None:
        say(f"There is no sbatch here. Submit it where there is one: sbatch {script}")
    else:
        say(f"{script}\n{answer}")
    say("The same command with --no-run in place of --slurm shows what is there.")


def show(tables: list[Table], out: Path, shown: int, base: str | None = None) -> None:
    """Print a table, once for each measure of it, and write it with its figure and page."""
    from osp.bench import renderers, sheets
    from osp.files import make_folder, write_text

    table, grid, screen = tables[0], tables[0].grid, console()
    if grid.kind == "settings":
        counted = sheets.settings_sheet(table)
        screen.print(plain(grid.title, "bold"))
        screen.print(_lines(counted))
        make_folder(out)
        write_text(out / f"{grid.name}.md", renderers.markdown(grid.title, table.about, [counted]))
        say(f"\n{out / grid.name}.md")
        return
    if table.cells:
        for each in tables[: max(1, shown)]:
            screen.print(renderers.terminal(grid.title, sheets.numbers_sheet(each)))
        if base is not None:
            pairs = sheets.against_sheet(tables[: shown or len(tables)], base)
            screen.print(plain(pairs.title, "bold"))
            screen.print(_lines(pairs))
            say()
        for line in sheets.legend(table):
            screen.print(plain(line, "dim"), soft_wrap=True)
        costs = sheets.budget_sheet(table)
        if costs.rows:
            say()
            screen.print(_lines(costs))
        for problem in table.problems:
            complain(problem)
    pictures = _draw(table, out) if grid.kind == "figure" else []
    files = renderers.write(tables, pictures, out, base)
    say("\n" + "   ".join(map(str, [*files[:-1], *pictures, files[-1]])))


def _lines(sheet: Sheet) -> Any:
    return columns(*sheet.lines, headings=sheet.headings, padding=(0, 1))


def _draw(table: Table, out: Path) -> list[Path]:
    """The files of a figure; none where its runs are missing."""
    from osp.bench.figures import draw

    try:
        return draw(table.grid.name, table.runs, out) if table.runs or not table.cells else []
    except UserError as error:
        complain(f"{table.grid.name}: {error}")
        return []
