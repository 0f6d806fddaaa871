"""What two processes know of each other, and what they do when one of them is gone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from helpers.pairs import free_port, in_two, wait_for
from osp import distributed
from osp.distributed import average_gradients, gathered, gathered_blocks, rank, summed, summed_with_gradient, world
from osp.engine.passes import POOL_BATCH, Passes
from osp.engine.records import Tally
from osp.errors import UserError
from osp.parts.draws import permutation
from osp.parts.reduce import batch_std

BATCH = torch.arange(12.0).view(6, 2)


def check_numbers() -> None:
    number = rank()
    assert world() == 2
    assert torch.equal(gathered(BATCH[number::2].clone().requires_grad_()), BATCH)
    assert gathered(BATCH[number::2] > 4).tolist() == (BATCH > 4).tolist()
    blocks = gathered_blocks(BATCH[: 1 + 3 * number], [1, 4])
    assert [block.tolist() for block in blocks] == [BATCH[:1].tolist(), BATCH[:4].tolist()]
    assert summed(torch.tensor([1.0 + number])).tolist() == [3.0]
    torch.testing.assert_close(batch_std(BATCH[number::2] + 1000), (BATCH + 1000).std())
    own = torch.tensor(2.0 + number, requires_grad=True)
    (gradient,) = torch.autograd.grad((number + 1) * summed_with_gradient(own) ** 2, own, create_graph=True)
    assert gradient.item() == 2 * 5 + 2 * 2 * 5  # of both processes' losses
    (second,) = torch.autograd.grad(gradient, own)
    assert second.item() == 2 * (2 + 4)
    order = gathered(permutation(3, torch.Generator().manual_seed(4)))
    assert order.tolist() == torch.randperm(6, generator=torch.Generator().manual_seed(4)).tolist()
    with distributed.alone():
        assert (rank(), world(), gathered(BATCH[:1]).tolist()) == (0, 1, BATCH[:1].tolist())
    tally = Tally()
    tally.add({"loss": torch.tensor(1.0 + number)})
    tally.share()
    tally.add({"loss": torch.tensor(2.0 + number)})
    tally.share()
    assert tally.means() == {"loss": 2.0}


def check_gradients() -> None:
    number = rank()
    both, first_only, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    maps = nn.Parameter(torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last))
    both.grad = torch.tensor([1.0, 3.0]) * (number + 1)
    maps.grad = torch.arange(24.0).view(2, 3, 2, 2) * (number + 1)
    if number == 0:
        first_only.grad = torch.tensor([4.0, 0.0])
    average_gradients([both, first_only, unused, maps])
    assert both.grad.tolist() == [1.5, 4.5]
    assert first_only.grad is not None
    assert first_only.grad.tolist() == [2.0, 0.0]
    assert unused.grad is None
    assert torch.equal(maps.grad, 1.5 * torch.arange(24.0).view(2, 3, 2, 2))
    assert maps.grad.stride() == maps.stride()  # a fused optimizer goes through both side by side


def check_words() -> None:
    number = rank()
    assert distributed.texts("zwölf" * number) == ["", "zwölf"]
    assert distributed.told(f"from {number}") == "from 0"
    assert distributed.any_rank(number == 1, False, True) == [True, False, True]
    tensors = [torch.full((2,), float(number)), torch.tensor([number == 0])]
    distributed.take_from_first(tensors)
    assert tensors[0].tolist() == [0.0, 0.0]
    assert tensors[1].tolist() == [True]
    with distributed.together():
        pass
    with pytest.raises(distributed.Everywhere, match=r"^Rank 1: no disk here$"):
        complain_together("no disk here" if number == 1 else "")
    check_work_in_common(number)
    distributed.same_everywhere("images", "same")
    with pytest.raises(distributed.Everywhere, match=r"^Rank 1 has other images than rank 0"):
        distributed.same_everywhere("images", str(number))


def check_work_in_common(number: int) -> None:
    """What the first makes for all, what each makes, and what the first holds."""
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(number)
        return {"steps": 2 + number}

    assert distributed.from_first(make) == {"steps": 2}
    assert made == ([0] if number == 0 else [])
    with pytest.raises(distributed.Everywhere, match=r"^no plan$"):
        distributed.from_first(lambda: complain("no plan"))
    assert distributed.by_each(lambda: number, "images", lambda _: "alike") == number
    with pytest.raises(distributed.Everywhere, match=r"^Rank 1 has other images than rank 0"):
        distributed.by_each(lambda: number, "images", lambda found: found)
    with pytest.raises(distributed.Everywhere, match=r"^Rank 1: no network$"):
        distributed.by_each(lambda: complain("no network") if number == 1 else None)
    with pytest.raises(distributed.Everywhere, match=r"^Rank 1: no code$"):
        distributed.by_each(lambda: number, "code", lambda found: complain("no code") if found == 1 else "")
    held: list[str] = []
    with distributed.held_by_first(noted(held)):
        assert held == (["taken"] if number == 0 else [])
    assert held == (["taken", "left"] if number == 0 else [])


def complain(text: str) -> None:
    raise UserError(text)


@contextlib.contextmanager
def noted(events: list[str]) -> Iterator[None]:
    events.append("taken")
    yield
    events.append("left")


def complain_together(text: str) -> None:
    with distributed.together():
        if text:
            raise UserError(text)


class Views:
    """Numbers in the place of images."""

    def plain(self, index: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(index).float()


class Numbers:
    views, seed = Views(), 0


def check_passes() -> None:
    """Fewer images than processes, an uneven last chunk, an odd number of chunks; each chunk is looked at once."""
    for size in (0, 1, POOL_BATCH + 1, 2 * POOL_BATCH, 4 * POOL_BATCH + 3):
        looked: list[int] = []

        def look(images: torch.Tensor, looked: list[int] = looked) -> tuple[torch.Tensor, torch.Tensor]:
            looked.append(len(images))
            return images * 2, images > 5

        doubled, large = Passes(nn.Identity(), Numbers()).map(look, np.arange(size))  # type: ignore[arg-type]
        assert torch.equal(doubled, 2 * torch.arange(size).float())
        assert torch.equal(large, torch.arange(size) > 5)
        assert summed(torch.tensor(sum(looked))).item() == size


def check_the_end() -> None:
    """A process that does not answer in time ends the others, and so does one that is gone."""
    number = rank()
    if number == 0:
        began = time.monotonic()
        with pytest.raises(distributed.LostRank, match=r"has ended, or has not answered for 1\.5 seconds"):
            distributed.meet()
        assert time.monotonic() - began > 1.4
    else:
        time.sleep(4)
        with pytest.raises(distributed.LostRank):
            distributed.meet()


def check_all() -> None:
    check_numbers()
    check_gradients()
    check_words()
    check_passes()
    os.environ |= {"MASTER_PORT": distributed.told(str(free_port())), "OSP_TIMEOUT": "1.5"}
    torch.distributed.destroy_process_group()
    with distributed.joined():
        check_the_end()


def test_two_processes_share_rows_sums_gradients_words_and_passes_and_wait_no_longer_than_they_should() -> None:
    wait_for(in_two(check_all))


def test_one_process_has_everything_already() -> None:
    assert (rank(), world(), distributed.started(), distributed.started_rank()) == (0, 1, 1, 0)
    parameter = nn.Parameter(torch.zeros(2))
    average_gradients([parameter])
    assert parameter.grad is None
    assert distributed.texts("a") == ["a"]
    with pytest.raises(UserError, match=r"^no disk$"):
        complain_together("no disk")


def test_a_time_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("soon", "-1", "nan"):
        monkeypatch.setenv("OSP_TIMEOUT", text)
        with pytest.raises(UserError, match=f"OSP_TIMEOUT is {text!r}"):
            distributed.time_limit()


def test_the_launcher_says_how_many_processes_are_on_how_many_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (distributed.started_here(), distributed.started_nodes()) == (None, None)
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert (distributed.started_here(), distributed.started_nodes()) == (4, 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (distributed.started_here(), distributed.started_nodes()) == (4, None)
