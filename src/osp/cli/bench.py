"""`osp bench`: the paper's tables and figures from a store of runs, and what a step costs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from osp.cli.text import columns, complain, console, plain, say
from osp.errors import UserError, printable, user_path

if TYPE_CHECKING:
    from osp.bench.grid import Choice, Table
    from osp.bench.output import Report
    from osp.bench.run import KeyCache
    from osp.bench.store import Store


class Tables(TyperGroup):
    """A name that is no command is a table, or the file of one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Tables,
    help="Rerun the paper's tables and figures, or measure what a step costs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DEFAULT_STORE = Path("runs/store")
DEFAULT_OUT = Path("runs/bench")

Names = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help="Tables or figures; or a grid file.")]
ScaleOption = Annotated[str, typer.Option(help="demo (seconds), cpu (minutes) or paper (as published).")]
SeedsOption = Annotated[str, typer.Option(help="Seeds: 0-4, or 0,1,2.")]
MethodsOption = Annotated[str | None, typer.Option(help="Only these methods: osp,t2t.")]
DatasetsOption = Annotated[str | None, typer.Option(help="Only these data sets; digits needs no file.")]
RatiosOption = Annotated[str | None, typer.Option(help="Only these shares of OOD images: 0.3,0.6.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of every run.")]
StoreOption = Annotated[Path, typer.Option(help="Folder in which runs are kept and found again.")]
DataDirOption = Annotated[str | None, typer.Option(help="Folder of the data; else OSP_DATA, else your cache folder.")]
IdCountOption = Annotated[int | None, typer.Option(help="Unlabelled ID images, in place of a total.")]
OodCountOption = Annotated[int | None, typer.Option(help="Unlabelled OOD images, in place of a ratio.")]
TestOodOption = Annotated[str | None, typer.Option(help="Test on these OOD sets too: uniform,gaussian.")]
ValOption = Annotated[int | None, typer.Option(help="Validation images per class; 0 for none.")]
JobsOption = Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")]


@app.callback()
def bench() -> None:
    """The paper's tables and figures by one command; runs are kept and never repeated.

    Examples:

    - `osp bench list` (what there is, and how long it takes)

    - `osp bench table1 --datasets digits --scale demo --seeds 0-1 --jobs 2`

    - `osp bench table5 figure4a --data-dir DIR --seeds 0-4`

    - `osp bench mine.yaml` (a table of your own; docs/bench.md)
    """


@app.command(hidden=True)
def run(
    names: Names = None,
    scale: ScaleOption = "cpu",
    seeds: SeedsOption = "0",
    methods: MethodsOption = None,
    datasets: DatasetsOption = None,
    ratios: RatiosOption = None,
    settings: SetOption = None,
    measure: Annotated[str | None, typer.Option(help="Numbers to show: accuracy,open_accuracy,...")] = None,
    id_count: IdCountOption = None,
    ood_count: OodCountOption = None,
    val_per_class: ValOption = None,
    test_ood: TestOodOption = None,
    data_dir: DataDirOption = None,
    jobs: JobsOption = 1,
    store: StoreOption = DEFAULT_STORE,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and the page.")] = DEFAULT_OUT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their state; run nothing.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Show what the store has; run nothing.")] = False,
) -> None:
    """Run what is missing of these tables and figures, then show and write them.

    Finished runs are not repeated, interrupted ones go on, failed ones are tried again.
    """
    from osp.bench.grid import check_measure, expand, find_grid, words_of
    from osp.bench.output import fill
    from osp.bench.run import KeyCache

    fields = _fields(data_dir, id_count, ood_count, val_per_class, test_ood)
    choice = _choice(scale, seeds, methods, datasets, ratios, settings, fields)
    if not names:
        raise UserError("Name a table: `osp bench list` shows them.")
    measures = words_of(measure)
    try:
        for each in measures:
            check_measure(each)
    except ValueError as error:
        raise UserError(f"--measure: {error}.") from None
    tables = [expand(find_grid(name), choice) for name in names]
    kept, target = _store(store), user_path(out)
    if dry_run:
        _list_runs(kept, tables, jobs)
        return
    keys = KeyCache(kept)
    stopped, failed = False, False
    if not no_run:
        stopped, failed = _run_missing(kept, tables, jobs, keys)
    for table in tables:
        shown = measures or (table.grid.measure, *table.grid.also, *_other_measures(table))
        reports = [fill(kept, table, each, keys) for each in shown]
        _show(table, reports, kept, target, len(measures))
    if stopped:
        complain("Stopped; everything is saved. The same command goes on.")
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


@app.command("list")
def list_tables(
    scale: ScaleOption = "cpu",
    seeds: SeedsOption = "0",
    datasets: DatasetsOption = None,
    jobs: JobsOption = 1,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Explain every table and figure, with its number of runs and how long they will take here.

    Example: `osp bench list --scale demo --datasets digits --seeds 0-4`
    """
    from osp.bench.expected import Expected, duration
    from osp.bench.grid import expand, find_grid, names

    kept = _store(store)
    expected = Expected(kept)
    rows: list[tuple[object, ...]] = []
    for name in names():
        grid = find_grid(name)
        try:
            plans = expand(grid, _choice(scale, seeds, None, datasets, None, None, {})).plans
        except UserError:  # a table that is not about these data sets
            continue
        missing = [plan for plan in plans if kept.status(plan) != "finished"]
        time = duration(expected.total(missing, jobs)) if missing else "-"
        also = f" Also: {', '.join(grid.aliases)}." if grid.aliases else ""
        state = f"{len(plans) - len(missing)}/{len(plans)}" if plans else "-"
        rows.append((name, state, time, f"{grid.title}. {grid.about}{also}"))
    console().print(columns(*rows, headings=("table", "done", "to do", "what it shows"), padding=(0, 1)))
    say("\nOther commands: `osp bench speed`, `osp bench cost`, `osp bench status`, `osp bench export`.")


@app.command()
def status(
    names: Names = None,
    scale: ScaleOption = "cpu",
    seeds: SeedsOption = "0",
    methods: MethodsOption = None,
    datasets: DatasetsOption = None,
    ratios: RatiosOption = None,
    settings: SetOption = None,
    jobs: JobsOption = 1,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Show which runs of these tables (of all, if none is named) are done, running, failed or stale, and the time left.

    Example: `osp bench status table1 --scale demo --datasets digits --seeds 0-1`
    """
    from osp.bench.expected import Expected, duration
    from osp.bench.grid import expand, find_grid
    from osp.bench.grid import names as all_names

    kept = _store(store)
    expected = Expected(kept)
    rows: list[tuple[object, ...]] = []
    failures: list[str] = []
    for name in names or all_names():
        grid = find_grid(name)
        try:
            table = expand(grid, _choice(scale, seeds, methods, datasets, ratios, settings, {}))
        except UserError:
            if names:
                raise
            continue
        plans = {kept.folder_for(plan).path.name: plan for plan in table.plans}
        states = {folder: kept.status(plan) for folder, plan in plans.items()}
        left = [plan for folder, plan in plans.items() if states[folder] != "finished"]
        if not plans or (not names and set(states.values()) == {"missing"}):
            continue
        counts = [sum(state == each for state in states.values()) for each in STATES]
        rows.append((name, *counts, duration(expected.total(left, jobs)) if left else "-"))
        for folder, plan in plans.items():
            if states[folder] in ("failed", "damaged"):
                reason = kept.failure(kept.folder_for(plan)) or "its result or plan is damaged; the next bench mends it"
                failures.append(f"{folder}: {states[folder]}: {reason}")
    if not rows:
        say(f"The store {kept.root} has no runs of these tables.")
        return
    console().print(columns(*rows, headings=("table", *STATES, "time left"), padding=(0, 1)))
    for line in dict.fromkeys(failures):
        say(line)


STATES = ("finished", "running", "interrupted", "failed", "damaged", "stale", "missing")


@app.command()
def export(
    names: Names = None,
    to: Annotated[Path, typer.Option(help="Folder of the small store.")] = Path("results"),
    scale: ScaleOption = "cpu",
    seeds: SeedsOption = "0",
    methods: MethodsOption = None,
    datasets: DatasetsOption = None,
    ratios: RatiosOption = None,
    settings: SetOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Copy the small files of finished runs (of these tables, or all) into a store without weights, for a repository.

    Example: `osp bench export table1 --to results --seeds 0-4`
    """
    from osp.bench.export import export as copy
    from osp.bench.grid import expand, find_grid
    from osp.bench.output import fill
    from osp.bench.store import Store

    kept = _store(store)
    if names:
        choice = _choice(scale, seeds, methods, datasets, ratios, settings, {})
        runs = [run for name in names for run in fill(kept, expand(find_grid(name), choice)).runs]
    else:
        runs = list(kept.runs())
    target = Store(user_path(to))
    say(f"{copy(runs, target)} of {len(runs)} runs are new in {target.root}.")


@app.command()
def speed(
    out: Annotated[Path, typer.Option(help="Folder for speed.json and speed.png.")] = Path("runs/bench"),
    network: Annotated[list[str] | None, typer.Option(help="cnn or wrn-28-2; repeatable; both if not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the table shows their median.")] = 5,
    growth: Annotated[bool, typer.Option(help="Also measure by batch size, classes and size of the pool.")] = True,
) -> None:
    """What a step of OSP costs, against its bare computation and against published code. Takes some minutes.

    Example: `osp bench speed --network cnn --no-growth`
    """
    from osp.bench.speed import run, table
    from osp.bench.workload import CASES

    _report(run(network or list(CASES), repeats, out, growth, _tell), table)
    say(f"\n{out / 'speed.json'}   {out / 'speed.png'}")


@app.command()
def cost(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods; all if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for cost.json.")] = Path("runs/bench"),
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; the table shows their median.")] = 5,
) -> None:
    """What a step of each method costs, in images and in time relative to Supervised.

    Example: `osp bench cost fixmatch osp`
    """
    from osp.bench.cost import run, table

    _report(run(methods or [], repeats, out, _tell), table)
    say(f"\n{out / 'cost.json'}")


def _store(path: Path) -> Store:
    from osp.bench.store import Store

    return Store(user_path(path).absolute())


def _choice(
    scale: str,
    seeds: str,
    methods: str | None,
    datasets: str | None,
    ratios: str | None,
    settings: list[str] | None,
    fields: dict[str, Any],
) -> Choice:
    from osp.bench.grid import Choice, parse_ratios, parse_seeds, words_of

    if scale not in ("demo", "cpu", "paper"):
        raise UserError(f"--scale {scale!r}: choose demo, cpu or paper.")
    return Choice(
        scale,
        parse_seeds(seeds),
        words_of(methods),
        words_of(datasets),
        parse_ratios(ratios) if ratios else (),
        tuple(settings or ()),
        fields,
    )


def _fields(
    data_dir: str | None, id_count: int | None, ood_count: int | None, val_per_class: int | None, test_ood: str | None
) -> dict[str, Any]:
    given = {
        "data_dir": data_dir,
        "id_count": id_count,
        "ood_count": ood_count,
        "val_per_class": val_per_class,
        "test_ood": test_ood,
    }
    return {key: value for key, value in given.items() if value is not None}


def _other_measures(table: Table) -> list[str]:
    """A column for each OOD set that was not in the pool."""
    names = dict.fromkeys(name for plan in table.plans for name in plan.test_ood)
    return [f"other_ood.{name}.{kind}" for name in names for kind in ("auroc", "fpr95")]


def _list_runs(store: Store, tables: list[Table], jobs: int) -> None:
    from osp.bench.expected import Expected, duration

    plans = {store.folder_for(plan).path.name: plan for table in tables for plan in table.plans}
    states = {name: store.status(plan) for name, plan in plans.items()}
    rows = [(name, states[name], plan.network, f"{plan.steps:,} steps") for name, plan in plans.items()]
    console().print(columns(*rows))
    left = [plan for name, plan in plans.items() if states[name] != "finished"]
    time = duration(Expected(store).total(left, jobs)) if left else "nothing"
    say(f"{len(plans)} runs, {len(plans) - len(left)} done; to do: {time}.")


def _run_missing(store: Store, tables: list[Table], jobs: int, keys: KeyCache) -> tuple[bool, bool]:
    """Whether it was stopped, and whether runs failed."""
    from osp.bench.expected import Expected, duration
    from osp.bench.run import jobs_for, run_jobs
    from osp.cli.lists import check_environment

    check_environment()
    recipes = [recipe for table in tables for recipe in table.recipes]
    plans = [plan for table in tables for plan in table.plans]
    expected = Expected(store)

    def left(waiting: list[Any]) -> str:
        return f", about {duration(expected.total((job.plan for job in waiting), jobs))} left" if waiting else ""

    outcome = run_jobs(store, jobs_for(store, recipes, plans, keys), jobs, _tell, left)
    for name, reason in outcome.failed.items():
        complain(f"{name} failed: {reason} (log: {store.log(name)})")
    return outcome.stopped, bool(outcome.failed)


def _show(table: Table, reports: list[Report], store: Store, out: Path, shown: int) -> None:
    """Print the table, and write it with its figure and page."""
    from osp.bench import counts, output
    from osp.bench.figures import draw
    from osp.bench.paper_page import write_bench_page

    shown_on = console()
    if table.grid.kind == "settings":
        counted = counts.count(table.grid, table.choice)
        rows = [(each.row, *(each.numbers or ("no data",)), counts.paper_text(each)) for each in counted]
        shown_on.print(plain(table.grid.title, "bold"))
        shown_on.print(columns(*rows, headings=("", *counts.HEADINGS, "paper"), padding=(0, 1)))
        _write(out, f"{table.grid.name}.md", counts.markdown(table.grid, counted))
        return
    files: list[Path] = []
    if table.cells:
        for report in reports[: max(1, shown)]:
            shown_on.print(output.terminal(report))
        for line in output.legend(reports[0]):
            shown_on.print(plain(line, "dim"), soft_wrap=True)
        costs = [
            (c.row, f"{c.steps:,.0f}", f"{c.images:,.0f}", f"{c.seconds:,.1f}", c.validation)
            for c in output.budgets(reports[0])
        ]
        if costs:
            say()
            headings = ("", "steps", "images seen", "seconds", "validation images")
            shown_on.print(columns(*costs, headings=headings, padding=(0, 1)))
        for problem in reports[0].problems:
            complain(problem)
        files += output.write(reports, out)
    pictures: list[Path] = []
    if table.grid.kind == "figure":
        try:
            if reports[0].runs or not table.cells:
                pictures = draw(table.grid.name, reports[0].runs, out)
        except UserError as error:
            complain(f"{table.grid.name}: {error}")
    files += pictures
    files.append(write_bench_page(reports if table.cells else [], table.grid, pictures, out))
    say("\n" + "   ".join(map(str, files)))


def _write(folder: Path, name: str, text: str) -> None:
    from osp.files import make_folder, write_text

    make_folder(folder)
    write_text(folder / name, text)
    say(f"\n{folder / name}")


def _tell(text: str) -> None:
    print(printable(text, lines=True), file=sys.stderr, flush=True)


def _report(found: dict[str, Any], table: Any) -> None:
    for key, value in found["machine"].items():
        say(f"{key}: {value}")
    say()
    say(table(found))
