"""What can be done with a finished run: `osp report`, `osp export` and `osp verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.text import say
from osp.errors import UserError, user_path


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished `osp train` or `osp fit`.")],
    compare: Annotated[Path | None, typer.Option(help="Folder of a run to compare with, such as a baseline's.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: report.html in the run's folder.")] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option(help="A file of your own that the run was made with, if you trust it; repeatable."),
    ] = None,
) -> None:
    """One self-contained page about a run: scores, a map of features, confusions, images, where it looks; of
    `osp train` also curves.

    Examples:

    - `osp report runs/demo/osp`

    - `osp report runs/demo/osp --compare runs/demo/supervised`
    """
    from osp.plugins import trust
    from osp.report import write_report

    trust(*map(str, code or []))
    given = [None if path is None else user_path(path) for path in (compare, out)]
    say(f"Page: {write_report(user_path(run), *given)}")


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or of a photo model.")],
    onnx: Annotated[Path | None, typer.Option(help="ONNX file to write (extra `export`).")] = None,
    torch: Annotated[Path | None, typer.Option(help="torch.export program to write, such as model.pt2.")] = None,
    score: Annotated[str | None, typer.Option(help="Another OOD score of the model than the reported one.")] = None,
    method: Annotated[
        str | None, typer.Option(help="The method file, if it brings its own OOD score: ./mine.py")
    ] = None,
) -> None:
    """Write a model as one file that runs without osp: class probabilities and OOD score from uint8 images, with the
    preprocessing inside, and labels, threshold and license in its metadata. Checked against the model before it is
    written; never overwrites. A model card (`model.onnx.md`) says how it was made and how good it was.

    Example: `osp export runs/first --onnx model.onnx`
    """
    if onnx is None and torch is None:
        raise UserError("Name a file to write: --onnx model.onnx, --torch model.pt2, or both.")
    from osp.files import write_text
    from osp.models import export as exporter
    from osp.models import load
    from osp.models.card import beside, model_card
    from osp.runs.fitted import RESULT
    from osp.runs.run import Run

    graph, program = (None if path is None else user_path(path) for path in (onnx, torch))
    exporter.check_targets(graph, program)
    for path in filter(None, (graph, program)):
        if beside(path).exists() or beside(path).is_symlink():
            raise UserError(f"{beside(path)} exists already, and is not overwritten. Name another file.")
    folder = user_path(run)
    result = Run.read(folder).result if (folder / RESULT).exists() else {}
    facts = exporter.export(load(run, method=method), graph, program, score)
    for path in filter(None, (graph, program)):
        write_text(beside(path), model_card(path.name, facts, result))
        say(f"Wrote {path} ({path.stat().st_size / 1e6:.1f} MB) and its card {beside(path).name}")
    say(f"Input `images`: {facts['input']}. Outputs: `probabilities` and `ood_score` (larger = more OOD).")
    say(f"From a file to these pixels {facts['preprocessing']}.")
    say(f"An image with an ood_score above {float(facts['threshold']):.4g} looks unknown; class names: metadata.")


def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Runs, fits, sorted folders or stores.")],
    quiet: Annotated[bool, typer.Option("--quiet", help="Only what is wrong.")] = False,
) -> None:
    """Read every file of a run, a fit or a store, or the journal of a sort, and say what is wrong.

    Checksums, forms, links and figures are checked; of sorted photos, whether each could be put back. No backbone is
    loaded. Nothing is changed and no code from the folder is run. The exit code is 0 if nothing is wrong, 1 if
    something is.

    Example: `osp verify runs/first`
    """
    from osp.verify import verify as check

    whole = True
    for folder in folders:
        for verdict in check(folder):
            whole = whole and verdict.whole
            for problem in verdict.problems:
                say(f"{verdict.path}: DAMAGED: {problem}")
            if verdict.interrupted:
                say(f"{verdict.path}: INTERRUPTED: {verdict.interrupted}")
            for note in () if quiet else verdict.notes:
                say(f"{verdict.path}: note: {note}")
            if verdict.whole and not quiet:
                checks = f"{len(verdict.checked)} check{'s' * (len(verdict.checked) != 1)}"
                say(f"{verdict.path}: nothing is wrong with this {verdict.kind} ({checks}).")
    if not whole:
        raise typer.Exit(1)
