"""`osp bench list`, `status` and `export`: what there is, what a store has of it, and its runs for a repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osp.cli.bench import options
from osp.cli.text import columns, console, say
from osp.errors import user_path

if TYPE_CHECKING:
    from osp.bench.cells import Table
    from osp.bench.store import Status, Store
    from osp.recipe import Plan

STATES = ("finished", "running", "interrupted", "failed", "damaged", "stale", "missing")
DAMAGED = "its result or plan is damaged; the next bench redoes it"


def list_tables(
    scale: options.Scale = "cpu",
    seeds: options.Seeds = "0",
    datasets: options.Datasets = None,
    jobs: options.Jobs = 1,
    store: options.StoreFolder = options.DEFAULT_STORE,
) -> None:
    """Explain every table and figure, with its number of runs and how long they will take here.

    Example: `osp bench list --scale demo --datasets digits --seeds 0-4`
    """
    from osp.bench.jobs import Expected

    kept = options.open_store(store)
    expected = Expected(kept)
    rows: list[tuple[object, ...]] = []
    for table in options.tables_of(None, options.choice_of(scale, seeds, datasets=datasets)):
        grid, plans = table.grid, table.plans
        missing = [plan for plan in plans if kept.status(plan) != "finished"]
        also = f" Also: {', '.join(grid.aliases)}." if grid.aliases else ""
        state = f"{len(plans) - len(missing)}/{len(plans)}" if plans else "-"
        rows.append((grid.name, state, expected.told(missing, jobs), f"{grid.title}. {grid.about}{also}"))
    console().print(columns(*rows, headings=("table", "done", "to do", "what it shows"), padding=(0, 1)))
    say("\nOther commands: `osp bench speed`, `osp bench cost`, `osp bench status`, `osp bench export`.")


def status(
    names: options.Names = None,
    scale: options.Scale = "cpu",
    seeds: options.Seeds = "0",
    methods: options.Methods = None,
    datasets: options.Datasets = None,
    ratios: options.Ratios = None,
    settings: options.Set = None,
    data_dir: options.DataDir = None,
    jobs: options.Jobs = 1,
    store: options.StoreFolder = options.DEFAULT_STORE,
) -> None:
    """Show which runs of these tables (of all, if none is named) are done, running, failed or stale, and the time left.

    Example: `osp bench status table1 --scale demo --datasets digits --seeds 0-1`
    """
    from osp.bench.jobs import Expected

    kept = options.open_store(store)
    expected = Expected(kept)
    rows: list[tuple[object, ...]] = []
    failures: list[str] = []
    fields = {} if data_dir is None else {"data_dir": data_dir}
    for table in options.tables_of(names, options.choice_of(scale, seeds, methods, datasets, ratios, settings, fields)):
        plans, states = _states(kept, [table])
        if not plans or (not names and set(states.values()) == {"missing"}):
            continue
        counts = [sum(state == each for state in states.values()) for each in STATES]
        left = [plan for name, plan in plans.items() if states[name] != "finished"]
        rows.append((table.grid.name, *counts, expected.told(left, jobs)))
        for name, plan in plans.items():
            if states[name] in ("failed", "damaged"):
                failures.append(f"{name}: {states[name]}: {kept.failure(kept.folder_for(plan)) or DAMAGED}")
    options.tell_problems(kept)
    if not rows:
        say(f"The store {kept.root} has no runs of these tables.")
        return
    console().print(columns(*rows, headings=("table", *STATES, "time left"), padding=(0, 1)))
    for line in dict.fromkeys(failures):
        say(line)


def export(
    names: options.Names = None,
    to: Annotated[Path, typer.Option(help="Folder of the files: results/mnist.jsonl and its like.")] = Path("results"),
    scale: options.Scale = "cpu",
    seeds: options.Seeds = "0",
    methods: options.Methods = None,
    datasets: options.Datasets = None,
    ratios: options.Ratios = None,
    settings: options.Set = None,
    store: options.StoreFolder = options.DEFAULT_STORE,
) -> None:
    """Add finished runs (of these tables, or all) as lines to text files, without their weights, for a repository.

    Example: `osp bench export table1 --to results --seeds 0-4`
    """
    from osp.bench import store as stores
    from osp.bench.numbers import fill

    kept = options.open_store(store)
    if names:
        choice = options.choice_of(scale, seeds, methods, datasets, ratios, settings)
        found = (run for table in options.tables_of(names, choice) for run in fill(kept, table).runs)
        runs = list({run.name: run for run in found}.values())  # tables share them
    else:
        runs = list(kept.runs())
    target = stores.Store(user_path(to))
    new = stores.export(runs, target)
    options.tell_problems(kept, target)
    say(f"{new} of {len(runs)} runs are new in {target.root}.")


def list_runs(store: Store, tables: list[Table], jobs: int) -> None:
    """What `--dry-run` shows."""
    from osp.bench.jobs import Expected

    plans, states = _states(store, tables)
    rows = [(name, states[name], plan.network, f"{plan.steps:,} steps") for name, plan in plans.items()]
    console().print(columns(*rows))
    left = [plan for name, plan in plans.items() if states[name] != "finished"]
    time = Expected(store).told(left, jobs) if left else "nothing"
    say(f"{len(plans)} runs, {len(plans) - len(left)} done; to do: {time}.")


def _states(store: Store, tables: list[Table]) -> tuple[dict[str, Plan], dict[str, Status]]:
    """The runs of tables by name, each once, and their states."""
    plans = {store.folder_for(plan).path.name: plan for table in tables for plan in table.plans}
    return plans, {name: store.status(plan) for name, plan in plans.items()}
