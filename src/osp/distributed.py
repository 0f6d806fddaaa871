"""Ranks in one place: which share of the global batch this process holds, and sums, rows and words over all processes.

Row i of a process is row `rank + i * world` of the global batch. With one process everything here gives back what it
was given. Every exchange has a time limit (`OSP_TIMEOUT` seconds, 600 by default): a process that has ended, or does
not answer, ends the others with a sentence instead of letting them wait.

Small things that the host decides by (flags, texts, which parameters have a gradient) travel as CPU tensors over gloo,
also where the tensors of the run are on GPUs and go over NCCL: the device is never waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from osp.errors import UserError

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds that a process waits for the others in one exchange."""


class LostRank(UserError):
    """Another process has ended or does not answer."""


class Everywhere(UserError):
    """A mistake that every process has found by itself, or was told of: the first one says it for all."""


_alone = False


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if _several() else 0


def world() -> int:
    """How many processes share the run."""
    return dist.get_world_size() if _several() else 1


def first() -> bool:
    """Whether this is the process that writes and speaks."""
    return rank() == 0


def _several() -> bool:
    return not _alone and dist.is_available() and dist.is_initialized()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, this process acts as if it were the only one: for work that each does in full by itself."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


# Coming together


def started() -> int:
    """How many processes a launcher such as torchrun has started for this run; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def started_rank() -> int:
    """The number that the launcher gave this process: known before the processes know each other, and afterwards."""
    return int(os.environ.get("RANK", "0")) if started() > 1 else 0


def started_here() -> int | None:
    """How many of them are on this machine, as the launcher says; None without one."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", started())) if started() > 1 else None


def started_nodes() -> int | None:
    """On how many machines they are; None where this is the only one."""
    nodes = started() // (started_here() or 1)
    return nodes if nodes > 1 else None


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Inside, the processes that a launcher has started know each other; nothing happens to a single one.

    A group that the caller has opened before is used as it is, and left open.
    """
    if started() == 1 or dist.is_initialized():
        yield
        return
    with _limited():
        dist.init_process_group(backend(), timeout=time_limit())
    try:
        yield
    except BaseException:
        if backend() == "gloo":  # at once, so that the others need not wait; NCCL would wait for them
            _part()
        raise
    _part()


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def backend() -> str:
    """gloo, and NCCL for tensors on GPUs where there are any."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def time_limit() -> timedelta:
    """Of one exchange."""
    text = os.environ.get("OSP_TIMEOUT", "")
    try:
        seconds = float(text) if text else PATIENCE
        if not 0 < seconds < 1e7:
            raise ValueError
    except ValueError:
        raise UserError(f"OSP_TIMEOUT is {text!r}; it should be a number of seconds, such as 600.") from None
    return timedelta(seconds=seconds)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Turns what torch says about a process that is gone, or too late, into a sentence."""
    try:
        yield
    except RuntimeError as error:  # gloo has no error class of its own
        # Its first sentence, without the place in gloo's sources that it begins with.
        reason = re.sub(r"^\[\S*\] ", "", str(error)).strip().split("\n")[0].split(". ")[0] or type(error).__name__
        raise LostRank(
            f"Another process of this run has ended, or has not answered for {time_limit().total_seconds():g} "
            f"seconds ({reason})."
        ) from error


# Numbers and rows


def summed(total: Tensor) -> Tensor:
    """The sum over all processes."""
    if world() == 1:
        return total
    total = total.clone()
    with _limited():
        dist.all_reduce(total)
    return total


def summed_with_gradient(total: Tensor) -> Tensor:
    """The sum over all processes, through which gradients flow, twice if need be.

    What each process then differentiates is the sum of all processes' losses: dividing the sum of the gradients by
    their number, as `average_gradients` does, gives the gradient of the mean loss.
    """
    return total if world() == 1 else _Sum.apply(total)  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    """y = Σ_r x_r on every process r; ∂(Σ_r L_r)/∂x_r = Σ_r ∂L_r/∂y."""

    @staticmethod
    def forward(context: Any, total: Tensor) -> Tensor:
        return summed(total)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return summed_with_gradient(gradients[0])


@torch.no_grad()
def gathered(values: Tensor) -> Tensor:
    """The rows of the global batch, in its order and without a gradient; each process holds equally many.

    >>> gathered(torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if world() == 1:
        return values.detach()
    return torch.stack(_of_all(values.detach()), dim=1).flatten(0, 1)


@torch.no_grad()
def gathered_blocks(values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The rows of each process, one block for each; `sizes` says how many rows each holds, also this one."""
    if world() == 1:
        return [values.detach()]
    padded = values.new_zeros((max(sizes), *values.shape[1:]))
    padded[: len(values)] = values.detach()
    return [block[:size] for block, size in zip(_of_all(padded), sizes, strict=True)]


def _of_all(values: Tensor) -> list[Tensor]:
    """The tensor of each process; all have one shape."""
    if values.dtype == torch.bool:  # gloo has no word for it
        return [part.bool() for part in _of_all(values.to(torch.uint8))]
    values = values.contiguous()
    parts = [torch.empty_like(values) for _ in range(world())]
    with _limited():
        dist.all_gather(parts, values)
    return parts


@torch.no_grad()
def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Make these tensors those of the first process, everywhere."""
    if world() == 1:
        return
    for tensor in tensors:
        same = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.contiguous()
        with _limited():
            dist.broadcast(same, src=0)
        tensor.copy_(same)


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Give every process the mean gradient, in one flat all-reduce, as these networks are small.

    A parameter that no process used keeps no gradient: a zero one would let weight decay and momentum move it.
    """
    if world() == 1 or not parameters:
        return
    present = any_rank(*(parameter.grad is not None for parameter in parameters))
    used = [parameter for parameter, asked in zip(parameters, present, strict=True) if asked]
    if not used:
        return
    flat = torch.zeros(sum(parameter.numel() for parameter in used), dtype=used[0].dtype, device=used[0].device)
    offset = 0
    for parameter in used:
        # In the parameter's own memory layout: fused optimizers go through both side by side.
        whole = flat[offset : offset + parameter.numel()].as_strided(parameter.size(), parameter.stride(), offset)
        if parameter.grad is not None:
            whole.copy_(parameter.grad)
        parameter.grad = whole
        offset += parameter.numel()
    with _limited():
        dist.all_reduce(flat)
    flat /= world()


# Words and decisions


def any_rank(*flags: bool) -> list[bool]:
    """Each flag: whether it is up in any process. All of them then decide alike."""
    if world() == 1:
        return list(flags)
    asked = torch.tensor(flags, dtype=torch.uint8)
    with _limited():
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return asked.bool().tolist()


def meet() -> None:
    """Wait until every process is here."""
    any_rank(True)


def texts(text: str) -> list[str]:
    """What each process says."""
    if world() == 1:
        return [text]
    content = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8)
    sizes = [int(size) for size in _of_all(torch.tensor([len(content)]))]
    return [bytes(block.tolist()).decode()[:-1] for block in gathered_blocks(content, sizes)]


def told(text: str) -> str:
    """What the first process says."""
    return texts(text if first() else "")[0]


def same_everywhere(what: str, text: str) -> None:
    """Refuse to go on where a process says another text than the first one."""
    said = texts(text)
    for number, other in enumerate(said):
        if other != said[0]:
            raise Everywhere(f"Rank {number} has other {what} than rank 0. All processes of a run must have the same.")


def from_first(make: Callable[[], T]) -> T:
    """What the first process makes, for all; where it cannot, none goes on. Between processes it travels as JSON.

    >>> from_first(lambda: {"steps": 2})
    {'steps': 2}
    """
    made: list[T] = []
    with together():
        if first():
            made.append(make())
    return made[0] if world() == 1 else json.loads(told(json.dumps(made[0]) if made else ""))


def by_each(make: Callable[[], T], what: str = "", key: Callable[[T], object] | None = None) -> T:
    """What every process makes by itself; where one cannot, none goes on.

    With `key` it is refused where that differs between processes: then they have other `what`.
    """
    with together():
        made = make()
        own = "" if key is None or world() == 1 else json.dumps(key(made))
    if key is not None:
        same_everywhere(what, own)
    return made


@contextlib.contextmanager
def held_by_first(context: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    """Inside, the first process holds this, for all; where it cannot have it, none goes on."""
    with contextlib.ExitStack() as held:
        with together():
            if first():
                held.enter_context(context)
        yield


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What one process cannot do inside, all leave undone, with its sentence; none waits for one that has given up."""
    trouble: UserError | None = None
    try:
        yield
    except UserError as error:
        trouble = error
    if world() == 1:
        if trouble is not None:
            raise trouble
        return
    for number, said in enumerate(texts("" if trouble is None else str(trouble) or type(trouble).__name__)):
        if said:
            raise Everywhere(said if number == 0 else f"Rank {number}: {said}") from trouble
