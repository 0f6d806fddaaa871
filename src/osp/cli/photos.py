"""`osp fit`: your own photographs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from osp.cli.lists import check_environment
from osp.cli.text import columns, console, quoted, say, stopped
from osp.errors import UserError, printable, user_path


def fit(
    sorted_dir: Annotated[
        Path | None, typer.Argument(metavar="SORTED", help="Your sorted photos: one folder per class.")
    ] = None,
    pile: Annotated[Path | None, typer.Argument(metavar="[PILE]", help="Unsorted photos, many of no class.")] = None,
    out: Annotated[Path, typer.Option(help="New folder for the model and the results.")] = Path("run"),
    labels: Annotated[
        Path | None, typer.Option(help="More labels: a labels.csv of `osp label`; its class `none` is no class.")
    ] = None,
    none: Annotated[
        Path | None, typer.Option(help="Photos of none of your classes: they teach what is unknown.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Photos to test on: folders named like the classes, others are unknown.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="lite0: a pretrained network, the default; nothing is downloaded. hf:FOLDER or hf:NAME: one of "
            "transformers (DINOv2, SigLIP, ViT, ConvNeXt). none: from scratch."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Train on from the instant answer, e.g. osp or fixmatch, and keep the better of both; with --backbone "
            "none what is trained (there: osp unless you say otherwise)."
        ),
    ] = "instant",
    earlier: Annotated[
        Path | None, typer.Option("--from", help="An earlier fit whose labels, pile, test and backbone are used again.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="With --from: a group of unknown photos that is a class, such as group-3=heron; repeatable."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Length of training from scratch (--backbone none); default: 3,000.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    page: Annotated[bool, typer.Option(help="Write report.html into the run, as `osp report` does.")] = True,
) -> None:
    """Make a classifier from a folder of sorted photos and a pile of unsorted ones.

    A few photos per class are enough, and the pile may hold anything: it says which of its photos belong to none of
    the classes. Any formats and sizes; nothing is moved or changed. Stopped in the middle, it goes on when started
    again.

    Examples:

    - `osp fit sorted/ pile/ --out run`

    - `osp fit sorted/ pile/ --out run --test for-testing/`

    - `osp fit newly-sorted/ --from run --out run2`

    - `osp fit --from run --name group-3=heron --out run2`

    Then: `osp predict run new.jpg`, `osp sort run pile/ --to sorted-pile --as links`.
    """
    begun = time.monotonic()
    check_environment()
    if backbone != "none" and _only_the_page_is_missing(user_path(out), sorted_dir, pile) and page:
        from osp.report import write_report

        say(f"The fit in {out} is complete; only its page was missing. Page: {write_report(user_path(out))}")
        return
    from osp.data.folders import check_folder
    from osp.photos.labels import BOOK
    from osp.runs.fitted import check_free

    given = (sorted_dir, "the folder of sorted photos"), (pile, "the pile"), (test, "--test"), (none, "--none")
    for folder, what in given:
        if folder is not None:
            check_folder(user_path(folder), what)
    if earlier is not None and user_path(earlier).resolve() == user_path(out).resolve():
        raise UserError(f"--out {out} is the fit to go on from. Name a new folder with --out.")
    if backbone != "none" and (labels is None or user_path(labels) != user_path(out) / BOOK):
        check_free(user_path(out))
    from osp.engine.progress import shown
    from osp.photos.fit import fit as start

    if backbone == "none":
        if earlier is not None:
            raise UserError("--from goes on from features; --backbone none has none. Leave out one of the two.")
        if labels is not None or none is not None:
            raise UserError("--labels and --none teach what looks at features; leave out --backbone none.")
        if sorted_dir is None:
            raise UserError("Name the folder of your sorted photos, which holds one folder per class.")
        _from_scratch(sorted_dir, pile, out, test, method, seed, steps, page)
        return
    if steps is not None:
        raise UserError("--steps goes with --backbone none; with a pretrained backbone there is nothing to wait for.")
    with shown() as display, stopped("Nothing is lost: the same command goes on where it was."):
        asked: dict[str, Any] = {"test": test, "backbone": backbone, "method": method, "earlier": earlier}
        asked |= {"name": name or (), "labels": labels, "none": none, "seed": seed}
        run = start(sorted_dir, pile, out, **asked, say=say, progress=display.loading)
    print_fit(run.result, run.path)
    if page:
        from osp.report import write_report

        with stopped(f"The fit is complete; osp report {quoted(out)} makes its page."):
            say(f"Page: {write_report(run)}")
    say(f"Took {time.monotonic() - begun:.0f} s{', the page included' if page else ''}.")


def _only_the_page_is_missing(out: Path, sorted_dir: Path | None, pile: Path | None) -> bool:
    """Whether the same fit was stopped while its page was drawn."""
    from osp.runs.fitted import is_fit, result_of

    if sorted_dir is None or not is_fit(out) or (out / "report.html").exists():
        return False
    result = result_of(out)
    asked = [None if each is None else os.path.abspath(user_path(each)) for each in (sorted_dir, pile)]
    return asked == [result.get("sorted"), result.get("pile")]


def _from_scratch(
    sorted_dir: Path,
    pile: Path | None,
    out: Path,
    test: Path | None,
    method: str,
    seed: int,
    steps: int | None,
    page: bool,
) -> None:
    """Without a backbone it is `osp train` on the user's folders."""
    from osp.cli.train import print_result, run_shown
    from osp.data import describe_set
    from osp.engine.progress import shown
    from osp.models.trained import load_predictor
    from osp.photos.decisions import figures_on
    from osp.photos.fit import no_pile
    from osp.photos.journal import has_journal
    from osp.photos.photographs import list_pile, list_sorted, list_test, without_copies
    from osp.recipe import Recipe
    from osp.runs.fitted import check_free

    begun = (user_path(out) / "plan.yaml").is_file()
    if not begun:
        check_free(user_path(out))
    known, classes = list_sorted(user_path(sorted_dir))
    if has_journal(user_path(sorted_dir)):
        raise UserError(f"{sorted_dir} was made by osp sort. Copy what you have sorted yourself into another folder.")
    unsorted = list_pile(None if pile is None else user_path(pile))
    tested = None
    if test is not None:
        tested = without_copies(list_test(user_path(test), classes), (known, unsorted))
    for note in (*known.notes, *unsorted.notes, *(tested.notes if tested else ())):
        say(note)
    where: dict[str, Any] = {"ood_data": "pile", "ood_dir": str(pile)} if unsorted.files else {}
    if method == "instant":
        method = "osp" if unsorted.files else "supervised"
    if not unsorted.files:
        say(f"{no_pile(pile, 0, False)} The classifier learns from the sorted photos alone.")
    training = describe_set("folder", user_path(sorted_dir)).smallest_class or 0
    held = min(5, training // 4)
    say(
        f"Training from scratch by {method}, on small images: far slower than with a pretrained backbone, and worse "
        f"with few labels. A fifth of the sorted photos is kept for testing; {training - held} of each class teach, "
        f"{held} are for validation, and what larger classes have beyond that teaches without its label."
    )
    counts = {"labels_per_class": max(training - held, 1), "val_per_class": held}
    common: dict[str, Any] = {"data": "folder", "data_dir": str(sorted_dir), "scale": "cpu", **where, **counts}
    recipe = Recipe(**common, method=method, seed=seed, steps=steps)
    run = run_shown(recipe, user_path(out), resume=begun)
    print_result(run.result)
    if tested is not None:
        with shown() as display:
            figures = figures_on(load_predictor(run.path), tested, classes, display.loading)
        say(f"Test photos: accuracy {_share(figures)}.")
        _say_unknown(figures)
    say(f"Run: {run.path}")
    if page:
        from osp.report import write_report

        say(f"Page: {write_report(run)}")


def print_fit(result: dict[str, Any], path: Path) -> None:
    """What a fit has found, in the terminal."""
    from osp.photos.groups import in_words
    from osp.runs.fitted import belongs_in_words, groups_of, strangers_in_words, strangers_of

    rows: list[tuple[object, ...]] = []
    counts = result["classes"].values()
    for name, estimate in result["estimates"].items():
        parts = [estimate, *([result["test"].get(name)] if result["test"] else [])]
        rows.append((name, *(_share(part) for part in parts)))
        if max(counts) > 1.5 * min(counts):
            each = [f"{part['balanced_accuracy']:.1f} %" if part else "" for part in parts]
            rows.append(("  average over classes", *each))
    say("\nAccuracy, with its 95 % interval:")
    headings = ("", "cross-validation", *(["test photos"] if result["test"] else []))
    console().print(columns(*rows, headings=headings, padding=(0, 1)))
    say(f"Kept: {result['kept']}.")
    tested = (result["test"] or {}).get(result["kept"]) or {}
    _say_unknown(tested)
    pile = result["pile_photos"]
    if pile["counted"]:
        listed = ", ".join(f"{printable(name)} {count}" for name, count in pile["per_class"].items())
        say(f"The pile: {pile['in']:,} of {pile['counted']:,} photos look like one of the classes ({listed}).")
        say(belongs_in_words(pile))
        if classes := strangers_of(result):
            say(strangers_in_words(classes, pile))
            if any(each.strangers for each in classes.values()):
                heads = ("", "let in", "probably right", "of another class", "strangers")
                lines = ((printable(name), c.let_in, c.right, c.elsewhere, c.strangers) for name, c in classes.items())
                console().print(columns(*lines, headings=heads))
                say(f"Stricter: osp sort {quoted(path)} PILE --to FOLDER --accept 0.8")
        if not result["threshold_photos"] and result.get("cut") is None:
            say("That is a guess: with one photo per class the threshold rests on the pile alone.")
        if groups := groups_of(result):
            say(in_words(groups))
            say(f"To make one a class: osp fit --from {quoted(path)} --name {groups[0].name}=NAME --out NEW")
    if result["suspected_labels"]:
        say(f"Labels that look wrong: {result['suspected_labels']} ({path / 'doubts.csv'})")
    listed = f"Every photo of the pile: {path / 'pile.csv'}   all" if pile["counted"] else "All"
    say(f"{listed} figures: {path / 'result.json'}")
    say(f"Next: osp predict {quoted(path)} NEW.jpg   osp sort {quoted(path)} PILE --to FOLDER")


def _say_unknown(tested: dict[str, Any]) -> None:
    """How well unknown test photos are separated from the others, where there are any."""
    if tested.get("auroc") is not None:
        accepted = f"{tested['foreign_accepted']:.0f} % of {tested['foreign']} are accepted"
        say(f"Unknown test photos: AUROC {tested['auroc']:.1f}; {accepted}, ", "")
        say(f"{tested['known_accepted']:.0f} % of the known ones are.")


def _share(part: dict[str, Any] | None) -> str:
    if part is None:
        return "unknown: one photo per class"
    return f"{part['accuracy']:.1f} % ({part['low']:.0f} to {part['high']:.0f}) of {part['images']}"
