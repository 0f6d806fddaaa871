"""`osp bench speed`: what a step of OSP costs, against its bare computation and against published code.

Forms are measured in turns within one run, because machines are shared and noisy: ratios of medians mean something,
single seconds do not.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from osp.bench.workload import CASES, FORMS, AsPublished, Bare, Case, Ours
from osp.errors import UserError
from osp.machine import processor, python
from osp.recipe.plan import default_steps

Say = Callable[[str], None]
GROWTH = {
    "batch": [16, 32, 64, 128],
    "classes": [10, 100, 1000],
    "pool": [1_000, 10_000, 100_000, 1_000_000],
}
GROWTH_CASE = Case("small", (3, 32, 32), classes=10, pool=10_000)
"""The network that `osp train` takes for colour images on a CPU. By size of the pool it is the CNN: a faster pass."""


Times = dict[str, dict[str, float]]
"""Median, least and most seconds by name."""


def measure(functions: dict[str, Callable[[], Any]], repeats: int, at_least: float = 0.5) -> Times:
    """Median and spread of the seconds a call takes; the functions take turns, each turn lasts `at_least` seconds."""
    counts = {}
    for name, function in functions.items():
        function()
        started = time.perf_counter()
        function()
        counts[name] = max(1, round(at_least / max(time.perf_counter() - started, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            for _ in range(counts[name]):
                function()
            seconds[name].append((time.perf_counter() - started) / counts[name])
    return {
        name: {"median": median(values), "least": min(values), "most": max(values)} for name, values in seconds.items()
    }


def best_groups(bare: Bare, repeats: int) -> tuple[int, int]:
    """How many images a pass are fastest, without and with gradient."""
    found = []
    for run in (bare.forward, bare.backward):
        times = measure({str(group): partial(run, group) for group in Bare.GROUPS}, repeats)
        found.append(int(min(times, key=lambda name: times[name]["median"])))
    return found[0], found[1]


def step_cost(case: Case, folder: Path, repeats: int, say: Say) -> dict[str, Any]:
    """(a) to (d) for one network."""
    say(f"{case.network}: preparing")
    ours, bare, published = Ours(case, folder), Bare(case), AsPublished(case)
    bare.groups = best_groups(bare, max(1, repeats // 2))
    say(f"{case.network}: ours, bare computation, as published, {repeats} turns")
    forms = measure({"ours": ours, "bare": bare, "as published": published}, repeats)
    del published
    parts = measure(ours.parts(), repeats)
    say(f"{case.network}: a pass over the pool of {case.pool:,}")
    started = time.perf_counter()
    ours.refresh()
    refresh = time.perf_counter() - started
    step = forms["ours"]["median"]
    steps = default_steps("mnist" if case.shape[0] == 1 else "cifar100", "cpu")
    passes = ours.passes(steps)
    return {
        "images": {"with gradient": case.with_gradient, "without": case.without_gradient},
        "best groups of the bare computation": {"forward": bare.groups[0], "forward and backward": bare.groups[1]},
        "seconds": forms,
        "ours / bare": step / forms["bare"]["median"],
        "as published / ours": forms["as published"]["median"] / step,
        "seconds of parts": parts,
        "share of the step": {name: part["median"] / step for name, part in parts.items()},
        "pool pass": {
            "images": case.pool,
            "seconds": refresh,
            "passes": passes,
            f"share of a run of {steps} steps": passes * refresh / (steps * step + passes * refresh),
        },
    }


def growth(repeats: int, say: Say, values: dict[str, list[int]] = GROWTH) -> dict[str, Times]:
    """(f): our step by batch size, number of classes and size of the pool."""
    found: dict[str, Times] = {}
    for what, several in values.items():
        with tempfile.TemporaryDirectory() as folder:
            steps: dict[str, Callable[[], Any]] = {}
            for value in several:
                case = CASES["cnn"] if what == "pool" else GROWTH_CASE
                say(f"{case.network}: {what} {value:,}")
                place = Path(folder) / str(value)
                place.mkdir()
                fields = {"batch": value, "rotation": value} if what == "batch" else {what: value}
                steps[str(value)] = Ours(case.changed(**fields), place)
            found[what] = measure(steps, repeats)
    return found


def peak_memory(form: str, network: str) -> float:
    """Megabytes that two steps of a form need beyond what the libraries take, in a process of its own."""
    code = f"from osp.bench.speed import use_memory; use_memory({form!r}, {network!r})"
    done = subprocess.run([*python(), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"The measurement of memory failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


def use_memory(form: str, network: str) -> None:
    """Take two steps and print what they needed: the child of `peak_memory`."""
    with tempfile.TemporaryDirectory() as folder:
        before = most_memory()
        step = FORMS[form](CASES[network].changed(pool=4096), Path(folder))
        step()
        step()
        print(most_memory() - before)


def most_memory() -> float:
    """The most megabytes this process ever held at once. On Linux `getrusage` also counts the one that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def machine() -> dict[str, Any]:
    """What the measurements were made with."""
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": "cpu",
    }


def run(networks: list[str], repeats: int, out: Path, with_growth: bool, say: Say) -> dict[str, Any]:
    """All measurements; writes speed.json and speed.png into `out` as they come."""
    from osp.report.speed import draw_speed

    for network in networks:
        if network not in CASES:
            raise UserError(f"--network {network!r}: measured are {', '.join(CASES)}.")
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "repeats": repeats, "step": {}, "peak memory (MB)": {}, "growth": {}}
    for network in networks:
        with tempfile.TemporaryDirectory() as folder:
            found["step"][network] = step_cost(CASES[network], Path(folder), repeats, say)
        say(f"{network}: memory")
        found["peak memory (MB)"][network] = {form: peak_memory(form, network) for form in FORMS}
        (out / "speed.json").write_text(json.dumps(found, indent=2) + "\n")
    if with_growth:
        found["growth"] = growth(repeats, say)
    (out / "speed.json").write_text(json.dumps(found, indent=2) + "\n")
    draw_speed(found, out / "speed.png")
    return found


def table(found: dict[str, Any]) -> str:
    """The measurements as markdown."""
    lines = [
        "| network | ours (s) | bare (s) | as published (s) | ours / bare | as published / ours | "
        "augmentation | losses | bank | optimiser | pool passes |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for network, cost in found["step"].items():
        seconds, share = cost["seconds"], cost["share of the step"]
        times = [
            f"{seconds[form]['median']:.3f} ({seconds[form]['least']:.3f} to {seconds[form]['most']:.3f})"
            for form in FORMS
        ]
        shares = [f"{share[part]:.1%}" for part in ("augmentation", "losses", "bank", "optimiser")]
        passes = [f"{value:.1%}" for name, value in cost["pool pass"].items() if name.startswith("share")]
        ratios = [f"{cost['ours / bare']:.2f}", f"{cost['as published / ours']:.2f}"]
        lines.append("| " + " | ".join([network, *times, *ratios, *shares, *passes]) + " |")
    lines += ["", "| peak memory (MB) | " + " | ".join(FORMS) + " |", "|---|---|---|---|"]
    for network, memory in found["peak memory (MB)"].items():
        lines.append(f"| {network} | " + " | ".join(f"{memory[form]:.0f}" for form in FORMS) + " |")
    for what, values in found["growth"].items():
        first = next(iter(values.values()))["median"]
        lines += ["", f"| {what} | seconds a step | against the first |", "|---|---|---|"]
        for value, seconds in values.items():
            spread = f"{seconds['median']:.3f} ({seconds['least']:.3f} to {seconds['most']:.3f})"
            lines.append(f"| {int(value):,} | {spread} | {seconds['median'] / first:.2f} |")
    return "\n".join(lines)
