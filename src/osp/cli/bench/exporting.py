"""`osp bench export`: finished runs for a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.bench import options
from osp.cli.text import say
from osp.errors import user_path


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
    from osp.bench.cells import expand
    from osp.bench.export import export as copy
    from osp.bench.grid import find_grid
    from osp.bench.numbers import fill
    from osp.bench.store import Store

    kept = options.open_store(store)
    if names:
        choice = options.choice_of(scale, seeds, methods, datasets, ratios, settings)
        runs = [run for name in names for run in fill(kept, expand(find_grid(name, choice.named), choice)).runs]
    else:
        runs = list(kept.runs())
    target = Store(user_path(to))
    new = copy(runs, target)
    options.tell_problems(kept, target)
    say(f"{new} of {len(runs)} runs are new in {target.root}.")
