"""`osp bench speed`: what a step of OSP costs, against its bare computation and, in a clone, against published code.
`osp bench cost`: what a step of each method costs, in images and in time relative to Supervised.

What is compared is measured in turns within one run, because machines are shared and noisy: ratios of medians mean
something, single seconds do not.
"""

from __future__ import annotations

import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from osp.bench.renderers import pipes
from osp.bench.workload import CASES, Bare, Case, MethodStep, Ours, images_of
from osp.errors import UserError
from osp.files import make_folder, write_text
from osp.machine import processor, python
from osp.methods.registry import available
from osp.plugins import load_file, trust
from osp.recipe.deciding import default_steps

Say = Callable[[str], None]
Form = Callable[[Case, Path], Callable[[], None]]
AS_PUBLISHED = Path(__file__).parents[3] / "benchmarks" / "as_published.py"
"""Lies beside `src` in a clone, and nowhere else."""
BASELINE = "supervised"
GROWTH = {"batch": [16, 32, 64, 128], "classes": [10, 100, 1000], "pool": [1_000, 10_000, 100_000, 1_000_000]}
GROWTH_CASE = Case("small", (3, 32, 32), classes=10, pool=10_000)
"""The network that `osp train` takes for color images on a CPU. By size of the pool it is the CNN: a faster pass."""
Times = dict[str, dict[str, float]]
"""Median, least and most seconds by name."""


def forms() -> dict[str, Form]:
    """The forms of OSP's step by name, for a case and a folder that may be written in."""
    found: dict[str, Form] = {"ours": Ours, "bare": lambda case, folder: Bare(case)}
    if AS_PUBLISHED.is_file():
        trust(str(AS_PUBLISHED))  # it came with this code
        published = load_file(str(AS_PUBLISHED), "benchmark").AsPublished
        found["as published"] = lambda case, folder: published(case)
    return found


def measure(functions: dict[str, Callable[[], Any]], repeats: int, at_least: float = 0.5) -> Times:
    """Median and spread of the seconds a call takes; the functions take turns, each turn lasts `at_least` seconds."""
    counts = {}
    for name, function in functions.items():
        function()
        counts[name] = max(1, round(at_least / max(taken(function), 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            seconds[name].append(taken(function, counts[name]))
    return {name: {"median": median(each), "least": min(each), "most": max(each)} for name, each in seconds.items()}


def taken(function: Callable[[], Any], calls: int = 1) -> float:
    """Seconds per call."""
    started = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - started) / calls


def best_groups(bare: Bare, repeats: int) -> tuple[int, int]:
    """How many images a pass are fastest, without and with gradient."""
    found = []
    for run in (bare.forward, bare.backward):
        times = measure({str(group): partial(run, group) for group in Bare.GROUPS}, repeats)
        found.append(int(min(times, key=lambda name: times[name]["median"])))
    return found[0], found[1]


def step_cost(case: Case, folder: Path, repeats: int, say: Say) -> dict[str, Any]:
    """The step in its forms, its parts, and a pass over the pool, for one network."""
    say(f"{case.network}: preparing")
    steps = {name: form(case, folder) for name, form in forms().items()}
    ours, bare = steps["ours"], steps["bare"]
    assert isinstance(ours, Ours)
    assert isinstance(bare, Bare)
    bare.groups = best_groups(bare, max(1, repeats // 2))
    say(f"{case.network}: {', '.join(steps)}, {repeats} turns")
    seconds = measure(steps, repeats)
    del steps
    parts = measure(ours.parts(), repeats)
    say(f"{case.network}: a pass over the pool of {case.pool:,}")
    refresh, step = taken(ours.refresh), seconds["ours"]["median"]
    length = default_steps("mnist" if case.shape[0] == 1 else "cifar100", "cpu")
    passes = ours.passes(length)
    published = {name: times["median"] / step for name, times in seconds.items() if name == "as published"}
    return {
        "images": {"with gradient": case.with_gradient, "without": case.without_gradient},
        "best groups of the bare computation": {"forward": bare.groups[0], "forward and backward": bare.groups[1]},
        "seconds": seconds,
        "ours / bare": step / seconds["bare"]["median"],
        **{f"{name} / ours": ratio for name, ratio in published.items()},
        "seconds of parts": parts,
        "share of the step": {name: part["median"] / step for name, part in parts.items()},
        "pool pass": {
            "images": case.pool,
            "seconds": refresh,
            "passes": passes,
            f"share of a run of {length} steps": passes * refresh / (length * step + passes * refresh),
        },
    }


def growth(repeats: int, say: Say, values: dict[str, list[int]] = GROWTH) -> dict[str, Times]:
    """Our step by batch size, number of classes and size of the pool."""
    found: dict[str, Times] = {}
    for what, several in values.items():
        case = CASES["cnn"] if what == "pool" else GROWTH_CASE
        with tempfile.TemporaryDirectory() as folder:
            steps: dict[str, Callable[[], Any]] = {}
            for value in several:
                say(f"{case.network}: {what} {value:,}")
                fields = {"batch": value, "rotation": value} if what == "batch" else {what: value}
                steps[str(value)] = Ours(case.changed(**fields), Path(folder) / str(value))
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
        step = forms()[form](CASES[network].changed(pool=4096), Path(folder))
        step()
        step()
        print(most_memory() - before)


def most_memory() -> float:
    """The most megabytes this process ever held at once; 0 where the system does not say.

    On Linux `getrusage` also counts the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
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


def speed(networks: list[str], repeats: int, out: Path, with_growth: bool, say: Say) -> dict[str, Any]:
    """All that `osp bench speed` measures; writes speed.json and speed.png into `out` as they come."""
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
        found["peak memory (MB)"][network] = {form: peak_memory(form, network) for form in forms()}
        _write(out / "speed.json", found)
    if with_growth:
        found["growth"] = growth(repeats, say)
        _write(out / "speed.json", found)
    draw_speed(found, out / "speed.png")
    return found


def cost(methods: list[str], repeats: int, out: Path, say: Say, case: Case = CASES["cnn"]) -> dict[str, Any]:
    """All that `osp bench cost` measures, the methods in turns; writes cost.json into `out`."""
    names = [BASELINE, *(name for name in methods or available() if name != BASELINE)]
    case = case.changed(pool=min(case.pool, 2_000))
    found: dict[str, Any] = {"machine": machine(), "repeats": repeats, "network": case.network, "methods": {}}
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, Callable[[], Any]] = {}
        for name in names:
            say(f"{name}: preparing")
            steps[name] = step = MethodStep(name, case, Path(folder) / name)
            found["methods"][name] = {"images": images_of(step, step.loop.method)}
        say(f"measuring, {repeats} turns")
        times = measure(steps, repeats)
    for name, each in found["methods"].items():
        each["seconds"] = times[name]
        each["against supervised"] = times[name]["median"] / times[BASELINE]["median"]
    _write(out / "cost.json", found)
    return found


def _write(path: Path, found: dict[str, Any]) -> None:
    make_folder(path.parent)
    write_text(path, json.dumps(found, indent=2) + "\n")


# As Markdown


def speed_tables(found: dict[str, Any]) -> str:
    parts = {"augmentation": "augmentation", "losses": "losses", "bank": "bank", "optimiser": "optimizer"}
    rows = []
    for network, cost in found["step"].items():
        share = [cost["share of the step"][part] for part in parts]
        share += [value for name, value in cost["pool pass"].items() if name.startswith("share")]
        ratios = {name: value for name, value in cost.items() if " / " in name}
        headings = ["network", *(f"{form} (s)" for form in cost["seconds"]), *ratios, *parts.values(), "pool passes"]
        times = map(_spread, cost["seconds"].values())
        rows.append([network, *times, *(f"{v:.2f}" for v in ratios.values()), *(f"{v:.1%}" for v in share)])
    memory = found["peak memory (MB)"]
    used = [[network, *(f"{value:.0f}" for value in each.values())] for network, each in memory.items()]
    tables = [pipes(headings, rows), pipes(["peak memory (MB)", *next(iter(memory.values()))], used)]
    for what, values in found["growth"].items():
        first = next(iter(values.values()))["median"]
        lines = [[f"{int(n):,}", _spread(each), f"{each['median'] / first:.2f}"] for n, each in values.items()]
        tables.append(pipes([what, "seconds a step", "against the first"], lines))
    return "\n\n".join(tables)


def cost_table(found: dict[str, Any]) -> str:
    """Cheapest first."""
    rows = []
    for name, cost in sorted(found["methods"].items(), key=lambda item: item[1]["against supervised"]):
        images = (str(cost["images"]["with gradient"]), str(cost["images"]["without"]))
        rows.append([name, *images, _spread(cost["seconds"]), f"{cost['against supervised']:.1f}"])
    headings = ("method", "images forward and backward", "forward only", "seconds a step", "against supervised")
    return pipes(headings, rows)


def _spread(seconds: dict[str, float]) -> str:
    return f"{seconds['median']:.3f} ({seconds['least']:.3f} to {seconds['most']:.3f})"
