"""A table as the command shows it: printed, and written with its figure and page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from osp.cli.text import columns, complain, console, plain, say
from osp.errors import UserError

if TYPE_CHECKING:
    from osp.bench.cells import Table
    from osp.bench.numbers import Report


def show(table: Table, reports: list[Report], out: Path, shown: int, base: str | None = None) -> None:
    """Print the table, and write it with its figure and page."""
    from osp.bench import counts, numbers, output
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
        if base is not None:
            lines = output.against(reports[: shown or len(reports)], base)
            shown_on.print(plain(f"Against {base}, paired by seed", "bold"))
            shown_on.print(columns(*lines, headings=output.AGAINST, padding=(0, 1)))
            say()
        for line in output.legend(reports[0]):
            shown_on.print(plain(line, "dim"), soft_wrap=True)
        costs = [
            (c.row, f"{c.steps:,.0f}", f"{c.images:,.0f}", f"{c.seconds:,.1f}", c.validation)
            for c in numbers.budgets(reports[0])
        ]
        if costs:
            say()
            headings = ("", "steps", "images seen", "seconds", "validation images")
            shown_on.print(columns(*costs, headings=headings, padding=(0, 1)))
        for problem in reports[0].problems:
            complain(problem)
        files += output.write(reports, out, base)
    pictures: list[Path] = []
    if table.grid.kind == "figure":
        from osp.bench.figures import draw

        try:
            if reports[0].runs or not table.cells:
                pictures = draw(table.grid.name, reports[0].runs, out)
        except UserError as error:
            complain(f"{table.grid.name}: {error}")
    files += pictures
    files.append(write_bench_page(reports if table.cells else [], table.grid, pictures, out, base))
    say("\n" + "   ".join(map(str, files)))


def _write(folder: Path, name: str, text: str) -> None:
    from osp.files import make_folder, write_text

    make_folder(folder)
    write_text(folder / name, text)
    say(f"\n{folder / name}")
