"""What sharing a run costs: a step and a partition of OSP in one process and in two, in turns, and each exchange.

    python scripts/scale.py [--network small] [--turns 5] [--steps 3] [--pool 4000]

Both forms take turns, so that whatever else the machine does meets them alike; each process has one thread. Printed are
medians over all steps: seconds by the clock, and seconds of processor time in each process, which other programs hardly
change. docs/scale.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMS = {"one process": 1, "two processes": 2}
PARTS = ("gather", "clusters", "cut")
"""Of a partition; the rest is the network's."""


class Workers:
    """The processes of one form; they wait for orders and answer in JSON."""

    def __init__(self, processes: int, network: str, pool: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, __file__, "--network", network, "--pool", str(pool), "--work"]
        self.started = []
        for rank in range(processes):
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            known = {name: str(value) for name, value in {**ranks, **place}.items()}
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.started.append(subprocess.Popen(command, env={**os.environ, **known}, **pipes))

    def ask(self, order: str) -> list[Any]:
        """The answer of each process."""
        for each in self.started:
            assert each.stdin is not None
            each.stdin.write(order + "\n")
            each.stdin.flush()
        return [json.loads(each.stdout.readline()) for each in self.started if each.stdout is not None]


def work(network: str, pool: int) -> None:
    """Take orders: `step` and `refresh` give seconds by the clock and of the processor, `gather` a table."""
    from osp import distributed
    from osp.bench.workload import CASES, Case, MethodStep
    from osp.methods import t2t
    from osp.parts.clusters import Clusters

    case = CASES.get(network, Case(network, (3, 32, 32)))
    with distributed.joined(), tempfile.TemporaryDirectory() as folder:
        run = MethodStep("osp", case.changed(pool=pool), Path(folder), threads=1)
        run()
        parts = Clocks()
        parts.watch("gather", distributed, "gathered_blocks")
        parts.watch("clusters", t2t, "fit_clusters")
        parts.watch("clusters", Clusters, "score")
        parts.watch("cut", run.loop.method, "partition")
        for order in sys.stdin:
            if order.strip() == "gather":
                print(json.dumps(exchanges(run)), flush=True)
                continue
            parts.seconds = dict.fromkeys(PARTS, 0.0)
            clock, processor = time.perf_counter(), time.process_time()
            if order.strip() == "step":
                run()
            else:
                loop = run.loop  # at the stage's first step the pool is cut, later perhaps only the bank filled
                loop.hook(loop.method.refresh, loop.timetable.step(loop.timetable.starts[-1]))
            taken = [time.perf_counter() - clock, time.process_time() - processor]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps([*taken, memory, *parts.seconds.values()]), flush=True)


class Clocks:
    """Seconds by the clock that are spent in some functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Let calls of this function count for this part, from now on."""
        watched = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return watched(*given, **named)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

        setattr(owner, name, counted)


def exchanges(run: Any) -> dict[str, list[float]]:
    """Each exchange of a step or a pass by itself: bytes that a process gives, median seconds, seconds of processor."""
    import torch

    from osp import distributed

    method = run.loop.method
    wide = method.net.feature_dim
    features, scores = torch.rand(64 // distributed.world(), wide), torch.rand(256)
    parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    cases: dict[str, tuple[float, Callable[[], Any]]] = {
        "flags of a step": (2, lambda: distributed.any_rank(False, False)),
        "statistics of a batch norm of 128 channels": (257 * 8, lambda: distributed.summed(torch.zeros(257).double())),
        "features of 64 images for the bank": (features.numel() * 4, lambda: distributed.gathered(features)),
        "features of 256 images for the bank": (
            256 * wide * 4,
            lambda: distributed.gathered_blocks(torch.rand(256, wide), [256] * distributed.world()),
        ),
        "a score of 256 images": (
            1024,
            lambda: distributed.gathered_blocks(scores, [256] * distributed.world()),
        ),
        "all gradients": (
            sum(parameter.numel() for parameter in parameters) * 4,
            lambda: distributed.average_gradients(parameters),
        ),
    }
    found = {}
    for name, (size, exchange) in cases.items():
        times = []
        for _ in range(20):
            clock, processor = time.perf_counter(), time.process_time()
            exchange()
            times.append((time.perf_counter() - clock, time.process_time() - processor))
        found[name] = [size, *(statistics.median(column) for column in zip(*times, strict=True)), min(times)[0]]
    for parameter in parameters:
        parameter.grad = None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="small")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pool", type=int, default=4000, help="unlabelled images")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.network, given.pool)
    forms = {name: Workers(processes, given.network, given.pool) for name, processes in FORMS.items()}
    taken: dict[str, list[list[list[float]]]] = {name: [] for name in forms}
    passes: dict[str, list[list[list[float]]]] = {name: [] for name in forms}
    for _ in range(given.turns):
        for name, workers in forms.items():
            taken[name] += [workers.ask("step") for _ in range(given.steps)]
            passes[name].append(workers.ask("refresh"))
    print("form | step (s) | processor per process (s) | refresh (s) | processor per process (s) | memory (MB)")
    for name in forms:
        columns = [
            statistics.median(answers[0][column] for answers in rows)
            for rows in (taken[name], passes[name])
            for column in (0, 1)
        ]
        print(f"{name} | " + " | ".join(f"{value:.3f}" for value in columns) + f" | {passes[name][-1][0][2]:.0f}")
    print(f"of the refresh over {given.pool:,} images, by the clock: {', '.join(PARTS)}, the rest")
    for name, rows in passes.items():
        seconds = [statistics.median(answers[0][3 + column] for answers in rows) for column in range(len(PARTS))]
        seconds.append(statistics.median(answers[0][0] - sum(answers[0][3:]) for answers in rows))
        print(f"{name} | " + " | ".join(f"{value:.3f}" for value in seconds))
    for exchange, (size, clock, processor, least) in forms["two processes"].ask("gather")[0].items():
        print(f"{exchange}: {size:,.0f} bytes, {1000 * clock:.2f} ms ({1000 * least:.2f} at best), "
              f"{1000 * processor:.2f} ms of processor")  # fmt: skip
    for workers in forms.values():
        for each in workers.started:
            assert each.stdin is not None
            each.stdin.close()
            each.wait()


if __name__ == "__main__":
    main()
