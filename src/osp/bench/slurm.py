"""Runs as an array job of Slurm: a script and a list of runs in the store, which lies on a disk that the nodes share.

Each task of the array goes through the list and carries out what is neither finished nor claimed, one run after the
other, beginning at its own place; it ends when every run that is left is claimed. So a list may be submitted twice:
the second time there is nothing to do. What fails is noted, and not tried again by the other tasks of the array. A node
that is lost leaves its runs to whoever comes later: to its own task, which Slurm puts back into the queue, or to the
next array.

    <store>/.slurm/table1-3f9a.sh      the script
    <store>/.slurm/table1-3f9a.jsonl   one run per line (`osp.bench.jobs.Job`)
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from osp.bench.jobs import Job
from osp.bench.store import Status, Store
from osp.errors import UserError, printable
from osp.files import make_folder, write_text
from osp.machine import python

LARGEST_ARRAY = 1000
"""Tasks of one array, which Slurm limits to this by default; each does as many runs as it takes."""
PATIENCE = 60.0
"""Seconds that `sbatch` may take."""
WARNING = 120
"""Seconds before its time is up that a task is asked to save."""


def submit(script: Path) -> str | None:
    """Hand a script to Slurm, without waiting for its tasks: what `sbatch` answers; None where there is none."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return None
    try:
        done = subprocess.run([sbatch, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"sbatch did not answer within {PATIENCE:.0f} s. The script is {script}.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"sbatch refused {script}: {said}")
    return done.stdout.strip()


def write_array(store: Store, jobs: Sequence[Job], name: str, cpus: int, gpus: float | None, at_once: int) -> Path:
    """The list of runs and the script, under a name that tells them from other lists.

    Partition, account and time are the user's to say: by SBATCH_PARTITION and the like.
    """
    if re.search(r'["\\\x00-\x1f]', str(store.root)):
        raise UserError(f"The store {str(store.root)!r} has a quote, \\ or line break in it; name another --store.")
    folder = store.root / ".slurm"
    store.create()
    make_folder(folder)
    runs = "".join(job.anywhere().model_dump_json() + "\n" for job in jobs)
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "table"
    stem = f"{plain}-{hashlib.blake2b(runs.encode(), digest_size=4).hexdigest()}"
    listed, script = folder / f"{stem}.jsonl", folder / f"{stem}.sh"
    write_text(listed, runs)
    tasks = min(len(jobs), LARGEST_ARRAY)
    log = str(store.logs / "slurm-").replace("%", "%%") + "%A_%a.log"
    command = [*python(), "-m", "osp.bench.slurm", str(store.root), str(listed), str(cpus)]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=osp-{plain}",
        f"#SBATCH --array=0-{tasks - 1}" + (f"%{at_once}" if 1 < at_once < tasks else ""),
        f"#SBATCH --cpus-per-task={cpus}",
        *([f"#SBATCH --gpus={math.ceil(gpus)}"] if gpus else []),
        f'#SBATCH --output="{log}"',
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:TERM@{WARNING}",
        f"cd {shlex.quote(os.getcwd())}",
        f"exec {shlex.join(command)}",
    ]
    write_text(script, "".join(f"{line}\n" for line in lines))
    os.chmod(script, 0o755)
    return script


def main() -> int:
    """One task of the array."""
    from osp.bench.executors import Processes, run_jobs

    store, listed, cpus = Store(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    number = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    jobs = read_list(listed)
    jobs = jobs[number % len(jobs) :] + jobs[: number % len(jobs)]

    def for_others(job: Job, status: Status) -> bool:
        return status == "running" or (status == "failed" and failed_since(store, job, listed))

    outcome = run_jobs(store, jobs, Processes(store, 1, cpus), _tell, lambda waiting: "", for_others)
    for name, reason in outcome.failed.items():
        _tell(f"{name} failed: {reason}")
    return 130 if outcome.stopped else 1 if outcome.failed else 0


def read_list(path: Path) -> list[Job]:
    try:
        return [Job.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"The list of runs {path} cannot be read: {error}. Write it again with osp bench.") from None


def failed_since(store: Store, job: Job, listed: Path) -> bool:
    """Whether another task of this array has tried this run and failed: both times are the disk's."""
    noted = store.folder_for(job.plan, job.keys).path / "run.json"
    try:
        return noted.stat().st_mtime >= listed.stat().st_mtime
    except OSError:
        return False


def _tell(text: str) -> None:
    print(printable(text, lines=True), file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        _tell(f"osp: {error}")
        sys.exit(2)
