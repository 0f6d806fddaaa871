"""`make torture`: every harness for long, and one table of what was tried and what was lost.

cd tests && python -m torture                     all of it, under two hours on two cores
cd tests && python -m torture --kills 5 --cases 20 kill fuzz
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

Row = tuple[str, int, list[str], float]
"""What was tried, how often, the faults, and the seconds it took."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["kill", "disk", "numbers", "fuzz", "attack", "load", "http"])
    parser.add_argument("--kills", type=int, default=25, help="kills of each kind per piece of work")
    parser.add_argument("--works", help="only these pieces of work: train osp;bench")
    parser.add_argument("--kinds", help="only these kinds of input: recipe,idx")
    parser.add_argument(
        "--only", help="only cases of disk, attack and load with such a text in their names: full;clock"
    )
    parser.add_argument("--cases", type=int, default=1000, help="damaged inputs of each kind")
    parser.add_argument("--images", type=int, default=100_000, help="images that osp predict looks at")
    parser.add_argument("--steps", type=int, default=20_000, help="training steps whose memory is watched")
    parser.add_argument("--seconds", type=float, default=60, help="how long 64 clients ask osp serve")
    parser.add_argument("--examples", type=int, default=300, help="requests of schemathesis to each address")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for what failed; else a temporary one")
    given = parser.parse_args()
    torch.set_num_threads(1)  # forks of a process whose threads have begun would wait for them for ever
    base = Path(tempfile.mkdtemp(prefix="osp-torture-")) if given.keep is None else given.keep
    os.environ["OSP_CACHE"], os.environ["OSP_MIRROR"] = str(base / "cache"), "http://127.0.0.1:9"
    os.environ["XDG_STATE_HOME"] = str(base / "state")
    import lightning_fabric  # noqa: F401 - before the forks, so that none of them imports it again
    import sklearn.datasets
    import sklearn.linear_model
    import sklearn.metrics  # noqa: F401

    import osp.report.page  # noqa: F401

    faults: list[str] = []
    print(f"In {base}\n{'what':<32}{'tried':>8}{'lost':>8}{'seconds':>10}", flush=True)
    for part in given.parts:
        for name, tried, found, seconds in PARTS[part](base / part, given):
            faults += found
            print(f"{name:<32}{tried:>8,}{len(found):>8}{seconds:>10.0f}", flush=True)
    for fault in faults:
        print(f"\n{fault}")
    return 1 if faults else 0


def kill(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.kill import at_calls, at_random, tracer, works

    draws, strace = random.Random(given.seed), tracer()
    if strace is None:
        print("strace is not there: kills at random moments only")
    names = given.works.split(";") if given.works else None
    if names is None or "label" in names:
        from torture.labeling import killed

        started = time.monotonic()
        found = killed(base / "label", given.kills, draws)
        yield "kill: label", found.killed, list(found.faults), time.monotonic() - started
    for work in works(names):
        started = time.monotonic()
        kills = max(1, given.kills // 5) if work.costly else given.kills
        found = at_random(work, base, kills, draws)
        if strace is not None and work.alone:
            found += at_calls(work, base, strace, kills, draws)
        yield f"kill: {work.name}", found.killed, list(found.faults), time.monotonic() - started


def fuzz(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.fuzz import fuzz as attack
    from torture.subjects import subjects

    kinds = given.kinds.split(",") if given.kinds else None
    for subject in subjects():
        if kinds is not None and subject.name not in kinds:
            continue
        started = time.monotonic()
        found = attack(subject, base, given.cases, random.Random(given.seed))
        yield f"fuzz: {subject.name}", found.tried, found.faults, time.monotonic() - started


def each(cases: Iterable[tuple[str, Callable[[], str]]], prefix: str, given: argparse.Namespace) -> Iterator[Row]:
    for name, case in cases:
        if given.only and not any(word in name for word in given.only.split(";")):
            continue
        started = time.monotonic()
        fault = case()
        yield f"{prefix}: {name}", 1, [f"{prefix}: {name}: {fault}"] if fault else [], time.monotonic() - started


def disk(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.disk import cases

    yield from each(cases(base), "disk", given)


def numbers(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.numbers import cases

    yield from each(cases(base), "numbers", given)


def attack(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.attack import cases

    yield from each(cases(base), "attack", given)


def load(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.load import cases

    yield from each(cases(base, given.images, given.steps, 64, given.seconds), "load", given)


def http(base: Path, given: argparse.Namespace) -> Iterator[Row]:
    from torture.described import cases

    yield from each(cases(base, given.examples), "http", given)


Part = Callable[[Path, argparse.Namespace], Iterator[Row]]
PARTS: dict[str, Part] = {
    **{"kill": kill, "disk": disk, "numbers": numbers},
    **{"fuzz": fuzz, "attack": attack, "load": load, "http": http},
}

if __name__ == "__main__":
    sys.exit(main())
