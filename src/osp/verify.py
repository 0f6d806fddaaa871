"""Whether a run folder, a photo model, a sorted folder or a store is complete and undamaged.

Nothing is changed, and nothing in the folder names code that is run. Checksums and forms are checked, the files are
compared with each other, and the figures of a result are computed again from the predictions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osp.bench.store import Store, names_of, plan_of_line
from osp.data.split import Split
from osp.engine.data import other_rows
from osp.engine.state import check_meta
from osp.errors import UserError, printable, short, user_path
from osp.evaluate.predictions import Predictions
from osp.evaluate.result import measure
from osp.files import PARTIAL, lines_of, owned, read_arrays
from osp.models.photo import read_model
from osp.models.trained import load_predictor
from osp.photos.folder import SUMS, altered
from osp.photos.journal import JOURNAL, TABLE
from osp.photos.undoing import check_sorted
from osp.plugins import is_file
from osp.recipe import Plan
from osp.recipe.reading import read_fields
from osp.runs.checkpoint import load_checkpoint
from osp.runs.fitted import ARRAYS, FACTS, RESULT, read_fit, result_of
from osp.runs.folder import RunFolder
from osp.runs.lines import LineRun, holds_lines, line_files, map_name, read_lines
from osp.runs.run import Run
from osp.runs.schema import Note, check, is_metrics, metrics_line, read_json

TOLERANCE = 0.5
"""Points by which a figure computed again may differ: logits and features are kept in half precision."""


@dataclass
class Verdict:
    """What was found in one folder."""

    path: Path
    kind: str
    """`run`, `photo model`, `sorted folder` or `store`."""
    checked: list[str] = field(default_factory=list)
    """Files that are as they should be."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no fault: a run that is not finished, files that a killed process left."""

    interrupted: str = ""
    """What to do where the work was cut short, with files in two places: no damage, and not whole."""

    @property
    def whole(self) -> bool:
        return not self.problems and not self.interrupted

    def attempt(self, name: str, check: Callable[..., object], *given: object) -> Any:
        """Note that a file is good, or what is wrong with it; what the check gave, None where it failed."""
        try:
            found = check(*given)
        except (UserError, ValueError, OSError, KeyError, IndexError, TypeError) as error:
            self.problems.append(f"{name}: {error}")
            return None
        self.checked.append(name)
        return found

    def file(self, path: Path, check: Callable[..., object], *given: object) -> Any:
        """The same for a file of the folder, where it is there."""
        return self.attempt(path.relative_to(self.path).as_posix(), check, *given) if path.exists() else None


def verify(path: str | Path) -> Iterator[Verdict]:
    """The verdict on a run, a photo model, sorted photos, or a store and each of its runs; UserError for all else."""
    folder = user_path(path)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    if (folder / "store.json").exists() or holds_lines(folder):
        yield from verify_store(folder)
    elif (folder / FACTS).exists() or (folder / ARRAYS).exists():
        yield verify_photos(folder)
    elif RunFolder(folder).begun() or RunFolder(folder).result.exists():
        yield verify_run(folder)
    elif (folder / JOURNAL).exists():
        yield verify_sorted(folder)
    else:
        raise UserError(f"{folder} holds no run, no photo model, no sorted photos and no store.")


def verify_store(root: Path) -> Iterator[Verdict]:
    verdict = Verdict(root, "store")
    verdict.attempt("store.json" if (root / "store.json").exists() else "form", Store, root)
    entries = sorted(each for each in root.iterdir() if not each.name.startswith(".") and each.name != "store.json")
    lines, maps = line_files(root), sorted(root.glob(map_name("*")))
    runs = [each for each in entries if each not in (*lines, *maps)]
    for each in runs:
        if each.is_symlink() or not each.is_dir():
            verdict.problems.append(f"{each.name}: no folder of a run")
        else:
            noted = verdict.file(each / "run.json", _note, each / "run.json")
            if noted is not None and noted.status == "finished" and not (each / "result.json").exists():
                verdict.problems.append(f"{each.name}: run.json says that it is finished, and it has no result")
    names: set[str] = set()
    for each in lines:
        names |= verdict.attempt(each.name, _check_lines, each, verdict) or set()
    for each in maps:
        run = each.name.removeprefix("map-").removesuffix(".json")
        if run not in names:
            verdict.problems.append(f"{each.name}: there is no line of such a run")
        verdict.attempt(each.name, LineRun(root, {"name": run}).read_map)
    yield verdict
    for each in runs:
        if each.is_dir() and not each.is_symlink():
            if holds_lines(each):
                yield from verify_store(each)
            else:
                yield verify_run(each)


def _check_lines(path: Path, verdict: Verdict) -> set[str]:
    """The names of the runs of a file; each is as good as its identity says."""
    found = read_lines(path)
    verdict.problems += [problem.removeprefix(f"{path.parent}{os.sep}") for problem in found.problems]
    if found.torn:
        verdict.notes.append(f"{found.torn.removeprefix(f'{path.parent}{os.sep}')}, and goes with the next export")
    for name, line in found.runs.items():
        verdict.attempt(f"{path.name}, {name}", _check_line, line)
    return set(found.runs)


def _check_line(line: dict[str, Any]) -> None:
    plan = plan_of_line(line)
    identity = plan.identity()
    for place, said in (("its identity", line["identity"]), ("result", line["result"].get("identity"))):
        if said != identity:
            raise ValueError(f"{place} is {short(said)}, its plan has {identity}")
    if not any(line["name"].startswith(name) for name in names_of(plan)):
        raise ValueError(f"its name is another than that of its plan, {names_of(plan)[0]}")
    if line["result"].get("steps") != line["plan"].get("steps"):
        raise ValueError(f"{line['result'].get('steps')} steps, its plan has {line['plan'].get('steps')}")
    if not all(map(is_metrics, line.get("metrics", ()))):
        raise ValueError("an evaluation is damaged")


def _note(path: Path) -> Note:
    return check(read_json(path), Note)


def verify_photos(folder: Path) -> Verdict:
    verdict = Verdict(folder, "photo model")
    _check_links(verdict)
    verdict.attempt(f"{FACTS} and {ARRAYS}", read_model, folder)  # the backbone is no part of the folder
    if (folder / RESULT).exists():
        verdict.attempt(RESULT, result_of, folder)
        verdict.attempt("tables", read_fit, folder)
    if (folder / SUMS).exists():
        changed = verdict.attempt(SUMS, altered, folder) or {}
        verdict.problems += [f"{name}: {wrong}" for name, wrong in changed.items()]
    else:
        verdict.notes.append(f"it was written without checksums ({SUMS}): a changed figure or table may go unnoticed")
    return verdict


def verify_sorted(folder: Path) -> Verdict:
    """A folder that photos were sorted into: is every file that its journal names there, so that it can be undone?"""
    verdict = Verdict(folder, "sorted folder")
    found = verdict.attempt(JOURNAL, check_sorted, folder)
    if found is not None:
        noted, problems, by_hand = found
        verdict.problems += problems
        if by_hand:
            verdict.notes.append(
                f"moved by hand inside it: {len(by_hand)} files. osp sort --undo puts them back, too; "
                f"osp fit {printable(folder)} --from RUN --out NEW learns from them"
            )
        if noted.strange:
            verdict.notes.append(f"{JOURNAL}: it may not be yours ({noted.strange}); osp sort --undo asks first")
        if noted.cut_short:
            verdict.notes.append(f"{JOURNAL}: its last line was cut off; what it was about was not begun")
        if noted.unfinished or not (folder / TABLE).exists():
            verdict.interrupted = (
                "sorting, or undoing it, was stopped before its end. Go on with the same osp sort, or put everything "
                f"back: osp sort --undo {printable(folder)}"
            )
    return verdict


def verify_run(path: Path) -> Verdict:
    """Every file of a run folder, and how they fit together."""
    verdict, folder = Verdict(path, "run"), RunFolder(path)
    _check_links(verdict)
    plan = verdict.attempt("plan.yaml", Plan.read, folder.plan)
    split = verdict.file(folder.split, Split.load, folder.split)
    verdict.file(folder.recipe, read_fields, folder.recipe, "recipe", True)
    verdict.file(folder.data, folder.read_data)
    verdict.file(folder.metrics, _check_metrics, folder, verdict)
    verdict.file(folder.map, folder.read_map)
    verdict.file(folder.last, _check_checkpoint, folder.last, plan)
    verdict.file(folder.previous, _check_checkpoint, folder.previous, plan)
    verdict.file(folder.best, _check_finite, folder.best)
    _check_finished(verdict, folder, plan, split)
    return verdict


def _check_links(verdict: Verdict) -> None:
    for here, folders, files in os.walk(verdict.path):
        for name in (*folders, *files):
            path = Path(here, name)
            shown = path.relative_to(verdict.path)
            if path.is_symlink():
                verdict.problems.append(f"{shown}: a link; files of a run are not followed through links")
            elif name.endswith(PARTIAL):
                verdict.notes.append(f"{shown} was left by a process that was killed, or is being written")
    lock = verdict.path / ".lock"
    if lock.is_file() and not lock.is_symlink():
        try:
            with owned(lock, "busy"):
                pass
        except UserError as error:
            busy = "another process is at work here"
            verdict.notes.append(busy if str(error) == "busy" else f"whether another process is at work here: {error}")


def _check_metrics(folder: RunFolder, verdict: Verdict) -> None:
    seen: set[tuple[int, object]] = set()
    last = 0
    for number, text in enumerate(lines_of(folder.metrics), start=1):
        line = metrics_line(text)
        if line is None and not text.endswith(b"\n"):
            verdict.notes.append(f"metrics.jsonl: line {number} was cut off; --resume leaves it out")
            continue
        if line is None:
            raise ValueError(f"line {number} is damaged")
        key = (line["step"], line.get("kind"))
        if key in seen or line["step"] < last:
            raise ValueError(f"line {number}: step {line['step']} is there twice, or after a later one")
        seen.add(key)
        last = line["step"]


def _check_finite(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors, meta = load_checkpoint(file)
    for name, tensor in tensors.items():
        learned = name.startswith(("method/", "encoder/", "classifier/")) and tensor.is_floating_point()
        if learned and not tensor.isfinite().all():
            raise ValueError(f"{name} holds numbers that are none")
    return tensors, meta


def _check_checkpoint(file: Path, plan: Plan | None) -> None:
    _, meta = _check_finite(file)
    facts = check_meta(meta, file)
    if plan is not None and facts.identity != plan.identity():
        raise ValueError("it belongs to another plan")
    if plan is not None and facts.done > plan.steps:
        raise ValueError(f"it stands at step {facts.done} of {plan.steps}")


def _check_finished(verdict: Verdict, folder: RunFolder, plan: Plan | None, split: Split | None) -> None:
    result = verdict.file(folder.result, folder.read_result)
    if result is None:
        if not folder.result.exists():
            verdict.notes.append("the run is not finished")
        return
    if plan is not None and result.get("identity") != plan.identity():
        verdict.problems.append("result.json: it belongs to another plan")
    if plan is not None and result.get("steps") != plan.steps:
        verdict.problems.append(f"result.json: {result.get('steps')} steps, the plan has {plan.steps}")
    for file, what in ((folder.model, "model"), (folder.predictions, "predictions")):
        if not file.exists():
            verdict.notes.append(f"kept without its {what}")
    verdict.file(folder.model, _check_model, folder.model, verdict)
    for file in sorted(folder.path.glob("*.npz")):
        if file not in (folder.split, folder.predictions):
            verdict.attempt(file.name, read_arrays, file)
    if plan is not None and (folder.path / "bank.npz").exists():
        verdict.attempt("bank", lambda: Run(folder, result, plan).bank)
    predictions = verdict.file(folder.predictions, Predictions.load, folder.predictions)
    if predictions is not None:
        verdict.attempt("figures", _check_figures, result, predictions, split)


def _check_model(file: Path, verdict: Verdict) -> None:
    _, meta = _check_finite(file)
    network = meta.get("network")
    if meta.get("method_file") or meta.get("score_file") or network == "custom" or is_file(network):
        verdict.notes.append("the model needs code of yours: its checksum was checked, it was not built")
        return
    load_predictor(file)


def _check_figures(result: dict[str, Any], predictions: Predictions, split: Split | None) -> None:
    """Compute the figures again, and compare the predictions with the split."""
    truth = None if split is None or result.get("pool_auroc") is None else split.unlabeled_is_ood
    if split is not None and (problem := other_rows(predictions, split)):
        raise ValueError(problem)
    again = measure(predictions, truth)
    for key in ("accuracy", "auroc", "fpr95", "pool_auroc", "purity", "recall"):
        stated, found = result.get(key), again.get(key)
        if (stated is None) != (found is None) or (stated is not None and abs(stated - found) > TOLERANCE):
            raise ValueError(f"{key} is {stated} in result.json, and {found} from predictions.npz")
