"""A store of runs: every run is kept under what it was, and found again by the plan that asks for it.

    <root>/store.json                                   the form of the store
    <root>/mnist-osp-r0.6-s0-1f0a9c2e4b-h1m1/           a run folder (`osp.runs.folder`) and `run.json`
    <root>/mnist.jsonl                                  or finished runs as lines (`osp.runs.lines`), as in `results/`
    <root>/.claims/<name>.lock, <name>.claim            held by the process that works on that run (`osp.bench.claims`)
    <root>/.logs/<name>.log                             what that process printed

A folder needs no store.json where it holds lines. Where a run has a folder and a line, its folder counts once it is
finished. A run is named after the identity of its plan (`Plan.identity`: all that affects the result, but no folder,
device or word) and the two versions of the harness and of the method: what was run by other versions stays, is shown as
*stale*, and is not mixed with today's. Runs on other images (`data.json`: content keys) have folders of their own too.
The result itself says that a run is finished; `run.json` adds the machine and, after a failure, the reason.

Several benches share a store, also on machines that share its disk: each run is claimed by one process.
Nothing here needs torch, but for the plan one has to have.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from osp.bench.claims import Claims, is_locked
from osp.errors import UserError
from osp.files import make_folder, open_at_end, write_text
from osp.plugins import plain_name
from osp.recipe import Plan
from osp.recipe.code import as_fields, files_in
from osp.recipe.plan import CPU_GROUP, FILE
from osp.runs.folder import RunFolder
from osp.runs.lines import FORMAT as LINE_FORMAT
from osp.runs.lines import LineRun, add_lines, holds_lines, line_files, map_name, read_lines
from osp.runs.run import Run
from osp.runs.schema import Note, read_checked

Status = Literal["finished", "running", "interrupted", "failed", "damaged", "stale", "missing"]

FORMAT = 1
"""Of the store's layout; another number is refused."""

WHOLE = 0
"""What `group` is elsewhere than on a CPU; where the user asked for no value, a run from either machine counts."""

PLACES = ("data_dir", "ood_dir")
"""Fields that speak of a machine: no exported line has them."""


class Store:
    """Runs in a folder. Reading creates nothing."""

    def __init__(self, root: Path) -> None:
        self.root, self.claims, self.logs = root, root / ".claims", root / ".logs"
        self._marker = root / "store.json"
        self._lines: dict[str, dict[str, Any]] = {}
        self._stamps: dict[Path, tuple[int, int, int]] = {}
        self.problems: list[str] = []
        """Lines that could not be read, when they were last looked at."""
        self.check()

    def check(self) -> None:
        """Refuse what is no store, or one of another form, before anything is read or written."""
        try:
            if self.root.exists() and not self.root.is_dir():
                raise UserError(f"The store {self.root} is a file; name a folder.")
            if not self._marker.exists():
                # another bench may be making it: first its hidden files appear, then the marker
                used = self.root.exists() and any(not entry.name.startswith(".") for entry in self.root.iterdir())
                if not used or holds_lines(self.root):
                    return
                if not self._marker.exists():
                    raise UserError(f"The folder {self.root} is not empty and is no store; name another --store.")
            form = RunFolder(self.root).read_json(self._marker).get("format")
        except OSError as error:
            raise UserError(f"The store {self.root} cannot be read: {error.strerror or error}.") from None
        if form != FORMAT:
            raise UserError(
                f"The store {self.root} has form {form!r}, this version of osp knows form {FORMAT}. It is left as it "
                "is: name another --store, or use the version that made it."
            )

    def create(self) -> None:
        """Make the folder, if it is not there."""
        make_folder(self.root)
        if not self._marker.exists():  # first of all: a folder with runs and without it is refused
            write_text(self._marker, json.dumps({"format": FORMAT}) + "\n")
        for folder in (self.claims, self.logs):
            make_folder(folder)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def open_log(self, name: str) -> BinaryIO:
        """The log of a run, to add to it; never through a link."""
        try:
            return open_at_end(self.log(name))
        except OSError as error:
            raise UserError(f"The log {self.log(name)} cannot be written: {error.strerror or error}.") from None

    # Finding

    def lines(self) -> Mapping[str, dict[str, Any]]:
        """Runs that are lines of files (`osp.runs.lines.Line`), by name; a file is read again once it is another."""
        same_files = self._stamps.get(self.root) == _stamp(self.root)
        files = [path for path in self._stamps if path != self.root] if same_files else line_files(self.root)
        found = {path: _stamp(path) for path in (self.root, *files)}
        if found != self._stamps:
            self._stamps, self._lines, self.problems = found, {}, []
            for path in files:
                try:
                    read = read_lines(path)
                except UserError as error:
                    self.problems.append(str(error))
                    continue
                self.problems += [*read.problems, *([read.torn] if read.torn else [])]
                self._lines |= read.runs
        return self._lines

    def names(self) -> list[str]:
        """Of all runs that are there, finished or not."""
        folders = [path.name for path in self.root.iterdir() if path.is_dir()] if self.root.is_dir() else []
        return sorted({*(name for name in folders if not name.startswith(".")), *self.lines()})

    def folder_for(self, plan: Plan, keys: Mapping[str, str] | None = None) -> RunFolder:
        """Where a run of this plan is or would be; with `keys`, a run on images with these content keys."""
        found = [folder for name in names_of(plan) if (folder := self._with_data(name, keys)).begun()]
        return found[0] if found else self._with_data(names_of(plan)[0], keys)

    def _with_data(self, name: str, keys: Mapping[str, str] | None) -> RunFolder:
        """The run of this name, or its sister on these images."""
        usual = self._named(name)
        if keys is None or _data(usual) in (dict(keys), {}):
            return usual
        text = json.dumps(dict(keys), sort_keys=True)
        return self._named(f"{name}-d{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}")

    def _named(self, name: str) -> RunFolder:
        """A run by its name: its folder where that holds a result or there is no line of it."""
        folder, line = RunFolder(self.root / name), self.lines().get(name)
        return folder if line is None or folder.result.exists() else LineRun(self.root, line)

    def find(self, plan: Plan, keys: Mapping[str, str] | None = None) -> Run | None:
        """The finished run of this plan by today's versions; else a stale one, the newest first; else None.

        A damaged result is a UserError that names the file.
        """
        current = self._read(self.folder_for(plan, keys), plan, keys)
        if current is not None:
            return current
        stems = {name.rpartition("-")[0] for name in names_of(plan)}  # by other versions or on other images
        place = {name: number for number, name in enumerate(self.lines())}  # lines come last
        others = [name for name in self.names() if any(name.startswith(f"{stem}-h") for stem in stems)]
        others.sort(key=lambda name: (_stamp(self._named(name).result)[2], place.get(name, 0)), reverse=True)
        found = (self._read(self._named(name), plan, keys) for name in others)
        return next((run for run in found if run is not None), None)

    def status(self, plan: Plan, keys: Mapping[str, str] | None = None) -> Status:
        """`finished` only where all that the plan asks for was tested; `stale` where only such a result is there."""
        folder = self.folder_for(plan, keys)
        try:
            found = self.find(plan, keys)
        except UserError:
            return "running" if self.busy(folder.path.name) else "damaged"
        if found is not None and found.answers(plan):
            return "finished"
        if self.busy(folder.path.name):
            return "running"
        if self.failure(folder):
            return "failed"
        if folder.begun() and not isinstance(folder, LineRun):
            return "interrupted"
        return "stale" if found is not None and found.stale else "missing"

    def has_finished(self, name: str, plan: Plan) -> bool:
        """Whether the run of this name has all that the plan asks for, as whoever has its claim may ask."""
        try:
            found = self._read(self._named(name), plan)
        except UserError:  # damaged
            return False
        return found is not None and found.answers(plan)

    def runs(self) -> Iterator[Run]:
        """Every finished run in the store; what cannot be read is left out."""
        for name in self.names():
            with contextlib.suppress(UserError):
                if (run := self._read(self._named(name))) is not None:
                    yield run

    def _read(self, folder: RunFolder, plan: Plan | None = None, keys: Mapping[str, str] | None = None) -> Run | None:
        result = folder.read_result()
        if result is None or not folder.begun():
            return None
        if isinstance(folder, LineRun):
            stored, noted = plan_of_line(folder.line), folder.line
        else:
            stored, noted = Plan.read(folder.plan), _note(folder)
        run = Run(folder, result, stored, keys=_data(folder), machine=dict(noted.get("machine", {})))
        if plan is None:
            return run
        if stored.identity() not in {each.identity() for each in _as_good(plan)}:
            raise UserError(
                f"{folder.path} does not hold the run that its name says: its plan is another. Move it away."
            )
        why = outdated(run.versions, plan.versions)
        if not why and keys is not None and run.keys and run.keys != dict(keys):
            why = "the images were others"
        return replace(run, stale=why)

    # Claims, failures

    def busy(self, name: str) -> bool:
        """Whether a process works on this run."""
        return Claims(self.claims).held(name) or is_locked(self.root / name / ".lock")

    def claim(self, name: str, busy: str) -> contextlib.AbstractContextManager[None]:
        """Be the only process that works on this run, or refuse with the sentence `busy`."""
        self.create()
        return Claims(self.claims).hold(name, busy)

    def failure(self, folder: RunFolder) -> str:
        """Why the last attempt at a run failed; nothing where it did not."""
        noted = _note(folder)
        return (noted.get("failure") or "failed") if noted.get("status") == "failed" else ""

    def note(self, folder: RunFolder, plan: Plan, status: str, machine: Mapping[str, Any], failure: str = "") -> None:
        """Write run.json."""
        make_folder(folder.path)
        noted = {
            "status": status,
            "failure": failure,
            "identity": plan.identity(),
            "versions": plan.versions,
            "data": _data(folder),
            "machine": dict(machine),
        }
        write_text(folder.path / "run.json", json.dumps(noted, indent=2) + "\n")


def names_of(plan: Plan) -> list[str]:
    """Names of the folders in which a run of this plan may be, the first being where it would be put today."""
    return list(map(_name, _as_good(plan)))


def _as_good(plan: Plan) -> list[Plan]:
    """This plan, and where `group` was left to the machine, those that another kind of machine would have made."""
    groups = [plan.group]
    if "group" not in plan.recipe:
        groups += [group for group in (CPU_GROUP, WHOLE) if group != plan.group]
    return [plan if group == plan.group else plan.changed(group=group) for group in groups]


def _name(plan: Plan) -> str:
    identity = plan.identity()
    if identity is None:
        raise UserError("A run with a network of your own has no identity and cannot be kept in a store.")
    ratio = None if plan.ood_ratio is None else f"r{plan.ood_ratio:g}"
    sets = [None if name is None else plain_name(name) for name in (plan.data, plan.ood_data)]
    words = [*sets, plan.method_name, ratio, f"s{plan.seed}", identity[:10]]
    return "-".join([*(word for word in words if word), f"h{plan.versions['harness']}m{plan.versions['method']}"])


def outdated(stored: Mapping[str, str], today: Mapping[str, str]) -> str:
    """Which of the two versions that count differs.

    >>> outdated({"harness": "1", "method": "1"}, {"harness": "1", "method": "2"})
    'method 1, today 2'
    """
    differing = [key for key in ("harness", "method") if stored.get(key) != today.get(key)]
    return "; ".join(f"{key} {stored.get(key, 'unknown')}, today {today.get(key)}" for key in differing)


def _note(folder: RunFolder) -> dict[str, Any]:
    """run.json; nothing where there is none or it is damaged: it only adds to what the run's own files say, and
    `osp verify` tells."""
    try:
        return read_checked(folder.path / "run.json", Note, "")
    except UserError:
        return {}


def _data(folder: RunFolder) -> dict[str, str]:
    """Content keys of a run's images, which may be missing or damaged without harm."""
    try:
        return folder.read_data() or {}
    except UserError:
        return {}


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes with a file; the time comes last."""
    try:
        found = path.lstat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


# As lines


def plan_of_line(line: Mapping[str, Any]) -> Plan:
    """The plan that a line has in parts."""
    fields = {**line["plan"], "versions": line["versions"], "recipe": line.get("recipe", {})}
    return Plan.of(fields, f"of {line['name']}")


def line_of(run: Run) -> dict[str, Any]:
    """All that a run says in words and numbers, without the folders of its machine; of a file of code, its name."""
    plan = _without_places(run.plan.model_dump(mode="json"))
    recipe = plan.pop("recipe")
    return {
        "format": LINE_FORMAT,
        "name": run.name,
        "identity": run.plan.identity(),
        "versions": plan.pop("versions"),
        "machine": run.machine,
        "data": run.keys,
        "recipe": {key: value for key, value in _without_places(recipe).items() if key not in PLACES},
        "plan": plan,
        "result": run.result,
        "metrics": [line for line in run.metrics if line.get("kind") == "eval"],
    }


def _without_places(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a plan or recipe without folders, and with files of code as ./name.py."""
    files = {key: FILE + Path(name).name for key, name in files_in(fields).items()}
    return {**fields, **dict.fromkeys(PLACES), **as_fields(files, fields.get("options", {}))}


def export(runs: Iterable[Run], to: Store) -> int:
    """Add finished runs as lines where they are not there yet, or were tested on more sets since; their number.

    The t-SNE map of a run goes along where one was drawn, also to a run that was exported before.
    """
    there = {run.name: run for run in to.runs()}
    new: list[dict[str, Any]] = []
    maps: dict[Path, dict[str, Any]] = {}
    for run in runs:
        have = there.get(run.name)
        mine, theirs = (each.result.get("other_ood") or {} if each is not None else {} for each in (run, have))
        if have is not None and have.result.get("scores") == run.result.get("scores"):
            mine = theirs | mine  # the same model, tested on other sets elsewhere
        if have is None or mine.keys() > theirs.keys():
            new.append(line_of(replace(run, result=run.result | ({"other_ood": mine} if mine else {}))))
        place = to.root / map_name(run.name) if have is None else have.folder.map
        drawn = run.folder.read_map()
        if drawn is not None and (have is None or not place.exists()):
            maps[place] = drawn
    if new:
        add_lines(to.root, new)
    for place, drawn in maps.items():
        write_text(place, json.dumps(drawn) + "\n")
    return len(new)
