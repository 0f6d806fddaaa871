"""A store of runs: every run is kept under what it was, and found again by the plan that asks for it.

    <root>/store.json                                   the form of the store
    <root>/mnist-osp-r0.6-s0-1f0a9c2e4b-h1m1/           a run folder (`osp.runs.folder`) and `run.json`
    <root>/.claims/<name>.lock, <name>.claim            held by the process that works on that run (`osp.bench.claims`)
    <root>/.logs/<name>.log                             what that process printed

A run's folder is named after the identity of its plan (`Plan.identity`: all that affects the result, but no folder,
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from osp.bench.claims import Claims, is_locked
from osp.errors import UserError
from osp.files import make_folder, open_at_end, write_text
from osp.recipe import Plan
from osp.runs.folder import RunFolder
from osp.runs.schema import DataKeys, Note, check, read_json

Status = Literal["finished", "running", "interrupted", "failed", "damaged", "stale", "missing"]

FORMAT = 1
"""Of the store's layout; another number is refused."""

CPU_GROUP, WHOLE = 128, 0
"""What `group` is on a CPU and elsewhere, where nobody asked for a value: a run from either machine will do."""

NUMBERS = ("accuracy", "auroc", "fpr95", "open_accuracy", "seconds", "steps", "images_seen", "angle")
"""Of a result; whatever else stands in their place is damage."""


@dataclass(frozen=True)
class StoredRun:
    """A finished run of the store."""

    folder: RunFolder
    plan: Plan
    result: dict[str, Any]
    versions: dict[str, str]
    """Of osp, torch, harness and method, when it was run."""
    stale: str = ""
    """Why its numbers are not today's; nothing where they are."""
    data: dict[str, str] = field(default_factory=dict)
    """Content keys of its images."""
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.path.name

    def lacks(self, plan: Plan) -> list[str]:
        """Tests that a plan asks for and this run has not made."""
        return sorted(set(plan.test_ood) - set(self.result.get("other_ood") or {}))

    def answers(self, plan: Plan) -> bool:
        """Whether it is all that a plan asks for, by today's versions."""
        return not self.stale and not self.lacks(plan)


class Store:
    """Runs in a folder. Reading creates nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._marker = root / "store.json"
        self.check()

    def check(self) -> None:
        """Refuse what is no store, or one of another form, before anything is read or written."""
        try:
            if self.root.exists() and not self.root.is_dir():
                raise UserError(f"The store {self.root} is a file; name a folder.")
            if not self._marker.exists():
                # another bench may be making it: first its hidden files appear, then the marker
                used = self.root.exists() and any(not entry.name.startswith(".") for entry in self.root.iterdir())
                if used and not self._marker.exists():
                    raise UserError(f"The folder {self.root} is not empty and is no store; name another --store.")
                if not used:
                    return
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

    @property
    def claims(self) -> Path:
        return self.root / ".claims"

    @property
    def logs(self) -> Path:
        return self.root / ".logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def open_log(self, name: str) -> BinaryIO:
        """The log of a run, to add to it; never through a link."""
        try:
            return open_at_end(self.log(name))
        except OSError as error:
            raise UserError(f"The log {self.log(name)} cannot be written: {error.strerror or error}.") from None

    # Finding

    def folder_for(self, plan: Plan, keys: Mapping[str, str] | None = None) -> RunFolder:
        """Where a run of this plan is or would be; with `keys`, a run on images with these content keys."""
        found = [folder for name in names_of(plan) if (folder := self._with_data(name, keys)).begun()]
        return found[0] if found else self._with_data(names_of(plan)[0], keys)

    def _with_data(self, name: str, keys: Mapping[str, str] | None) -> RunFolder:
        """The folder of this name, or its sister for these images."""
        usual = RunFolder(self.root / name)
        if keys is None or not usual.data.exists() or _read(usual.data) in (dict(keys), {}):
            return usual
        text = json.dumps(dict(keys), sort_keys=True)
        return RunFolder(self.root / f"{name}-d{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}")

    def find(self, plan: Plan, keys: Mapping[str, str] | None = None) -> StoredRun | None:
        """The finished run of this plan by today's versions; else a stale one, the newest first; else None.

        A damaged result is a UserError that names the file.
        """
        current = self._read(self.folder_for(plan, keys), plan, keys)
        if current is not None:
            return current
        others = (self._read(RunFolder(path), plan, keys) for path in self._older(plan))
        return next((run for run in others if run is not None), None)

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
        if folder.begun():
            return "interrupted"
        return "stale" if found is not None else "missing"

    def has_finished(self, name: str, plan: Plan) -> bool:
        """Whether the folder of this name holds all that the plan asks for, as whoever has its claim may ask."""
        try:
            found = self._read(RunFolder(self.root / name), plan)
        except UserError:  # damaged
            return False
        return found is not None and found.answers(plan)

    def runs(self) -> Iterator[StoredRun]:
        """Every finished run in the store; what cannot be read is left out."""
        for path in sorted(self.root.iterdir() if self.root.is_dir() else ()):
            with contextlib.suppress(UserError):
                if (run := self._read(RunFolder(path))) is not None:
                    yield run

    def _older(self, plan: Plan) -> list[Path]:
        """Folders of the same identity by other versions or on other images, the newest first."""
        if not self.root.is_dir():
            return []
        here = {path.name: path for path in self.root.iterdir() if path.is_dir()}
        stems = {name.rpartition("-")[0] for name in names_of(plan)}
        chosen = [path for name, path in here.items() if any(name.startswith(f"{stem}-h") for stem in stems)]
        return sorted(chosen, key=lambda path: _changed(path / "result.json"), reverse=True)

    def _read(
        self, folder: RunFolder, plan: Plan | None = None, keys: Mapping[str, str] | None = None
    ) -> StoredRun | None:
        result = folder.read_result()
        if result is None or not folder.begun():
            return None
        check_result(result, folder.result)
        stored = Plan.read(folder.plan)
        noted = read_note(folder.path / "run.json")
        versions = dict(result.get("versions") or stored.versions)
        data = _read(folder.data)
        why = ""
        if plan is not None:
            why = outdated(versions, plan.versions)
            if not why and keys is not None and data and data != dict(keys):
                why = "the images were others"
        return StoredRun(folder, stored, result, versions, why, data, {} if noted is None else dict(noted.machine))

    # Claims, failures

    def busy(self, name: str) -> bool:
        """Whether a process works on this run."""
        return Claims(self.claims).held(name) or is_locked(self.root / name / ".lock")

    @contextlib.contextmanager
    def claim(self, name: str, busy: str) -> Iterator[None]:
        """Be the only process that works on this run, or refuse with the sentence `busy`."""
        self.create()
        with Claims(self.claims).hold(name, busy):
            yield

    def failure(self, folder: RunFolder) -> str:
        """Why the last attempt at a run failed; nothing where it did not."""
        noted = read_note(folder.path / "run.json")
        return (noted.failure or "failed") if noted is not None and noted.status == "failed" else ""

    def note(self, folder: RunFolder, plan: Plan, status: str, machine: Mapping[str, Any], failure: str = "") -> None:
        """Write run.json."""
        make_folder(folder.path)
        noted = {
            "status": status,
            "failure": failure,
            "identity": plan.identity(),
            "versions": plan.versions,
            "data": _read(folder.data),
            "machine": dict(machine),
        }
        write_text(folder.path / "run.json", json.dumps(noted, indent=2) + "\n")


def names_of(plan: Plan) -> list[str]:
    """Names of the folders in which a run of this plan may be, the first being where it would be put today.

    There are several where `group` was left to the machine: a run of another kind of machine is as good.
    """
    groups = [plan.group]
    if "group" not in plan.recipe:
        groups += [group for group in (CPU_GROUP, WHOLE) if group != plan.group]
    return [_name(plan if group == plan.group else plan.changed(group=group)) for group in groups]


def _name(plan: Plan) -> str:
    identity = plan.identity()
    if identity is None:
        raise UserError("A run with a network of your own has no identity and cannot be kept in a store.")
    ratio = None if plan.ood_ratio is None else f"r{plan.ood_ratio:g}"
    words = [plan.data, plan.ood_data, plan.method_name, ratio, f"s{plan.seed}", identity[:10]]
    return "-".join([*(word for word in words if word), f"h{plan.versions['harness']}m{plan.versions['method']}"])


def outdated(stored: Mapping[str, str], today: Mapping[str, str]) -> str:
    """Which of the two versions that count differs.

    >>> outdated({"harness": "1", "method": "1"}, {"harness": "1", "method": "2"})
    'method 1, today 2'
    """
    differing = [key for key in ("harness", "method") if stored.get(key) != today.get(key)]
    return "; ".join(f"{key} {stored.get(key, 'unknown')}, today {today.get(key)}" for key in differing)


def check_result(result: Mapping[str, Any], path: Path) -> None:
    """Refuse a result whose numbers are none."""
    for key in NUMBERS:
        value = result.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UserError(f"{path} is damaged: {key} is {str(value)[:50]!r}, not a number.")


def read_note(path: Path) -> Note | None:
    """run.json; None where there is none or it is damaged: it only adds to what the run's own files say, and
    `osp verify` tells."""
    try:
        return check(read_json(path), Note)
    except (OSError, ValueError):
        return None


def _read(path: Path) -> dict[str, Any]:
    """data.json, which may be missing or damaged without harm."""
    try:
        return check({"keys": read_json(path)}, DataKeys).keys
    except (OSError, ValueError):
        return {}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
