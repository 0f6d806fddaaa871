"""`osp bench cost`: what a step of each method costs, in images and in time relative to Supervised."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osp.bench.speed import Say, machine, measure
from osp.bench.workload import CASES, Case, MethodStep
from osp.methods.registry import available

BASELINE = "supervised"


class Counter:
    """Counts the images that go through an encoder, with and without a graph."""

    def __init__(self, method: nn.Module) -> None:
        self.seen = {"with gradient": 0, "without": 0}
        encoders = {id(module): module for name, module in method.named_modules() if name.split(".")[-1] == "encoder"}
        self.handles = [encoder.register_forward_pre_hook(self.count) for encoder in encoders.values()]

    def count(self, _: nn.Module, images: tuple[Tensor, ...]) -> None:
        self.seen["with gradient" if torch.is_grad_enabled() else "without"] += len(images[0])

    def remove(self) -> dict[str, int]:
        for handle in self.handles:
            handle.remove()
        return self.seen


def images_of(step: MethodStep) -> dict[str, int]:
    """The images that one step puts through the network, teachers included."""
    counter = Counter(step.loop.method)
    step()
    return counter.remove()


def run(methods: list[str], repeats: int, out: Path, say: Say, case: Case = CASES["cnn"]) -> dict[str, Any]:
    """Measure the methods in turns; writes cost.json into `out`."""
    names = [BASELINE, *(name for name in methods or available() if name != BASELINE)]
    case = case.changed(pool=min(case.pool, 2_000))
    found: dict[str, Any] = {"machine": machine(), "repeats": repeats, "network": case.network, "methods": {}}
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, Callable[[], Any]] = {}
        for name in names:
            say(f"{name}: preparing")
            place = Path(folder) / name
            place.mkdir()
            steps[name] = step = MethodStep(name, case, place)
            found["methods"][name] = {"images": images_of(step)}
        say(f"measuring, {repeats} turns")
        for name, seconds in measure(steps, repeats).items():
            found["methods"][name]["seconds"] = seconds
    base = found["methods"][BASELINE]["seconds"]["median"]
    for cost in found["methods"].values():
        cost["against supervised"] = cost["seconds"]["median"] / base
    out.mkdir(parents=True, exist_ok=True)
    (out / "cost.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def table(found: dict[str, Any]) -> str:
    """The measurements as markdown, cheapest first."""
    lines = [
        "| method | images forward and backward | forward only | seconds a step | against supervised |",
        "|---|---|---|---|---|",
    ]
    for name, cost in sorted(found["methods"].items(), key=lambda item: item[1]["against supervised"]):
        images, seconds = cost["images"], cost["seconds"]
        spread = f"{seconds['median']:.3f} ({seconds['least']:.3f} to {seconds['most']:.3f})"
        ratio = f"{cost['against supervised']:.1f}"
        lines.append(f"| {name} | {images['with gradient']} | {images['without']} | {spread} | {ratio} |")
    return "\n".join(lines)
