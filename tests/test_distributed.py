"""What two processes know of each other."""

from __future__ import annotations

import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from osp.distributed import average_gradients, gathered, rank, summed, world

BATCH = torch.arange(12.0).view(6, 2)


def process(number: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    found = {"place": torch.tensor([rank(), world()])}
    found["gathered"] = gathered(BATCH[number::2].clone().requires_grad_())
    found["summed"] = summed(torch.tensor([1.0 + number]))
    both, first_only, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    both.grad = torch.tensor([1.0, 3.0]) * (number + 1)
    if number == 0:
        first_only.grad = torch.tensor([4.0, 0.0])
    average_gradients([both, first_only, unused])
    assert both.grad is not None
    assert first_only.grad is not None
    found |= {"both": both.grad, "first_only": first_only.grad, "resting": torch.tensor(unused.grad is None)}
    torch.save(found, Path(folder) / f"{number}.pt")
    dist.destroy_process_group()


def test_two_processes_share_rows_sums_and_gradients_and_leave_unused_parameters_alone(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(process, (port, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    for number in range(2):
        found = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        assert found["place"].tolist() == [number, 2]
        assert torch.equal(found["gathered"], BATCH)
        assert not found["gathered"].requires_grad
        assert found["summed"].tolist() == [3.0]
        assert found["both"].tolist() == [1.5, 4.5]
        assert found["first_only"].tolist() == [2.0, 0.0]
        assert found["resting"]


def test_one_process_has_everything_already() -> None:
    assert (rank(), world()) == (0, 1)
    parameter = nn.Parameter(torch.zeros(2))
    average_gradients([parameter])
    assert parameter.grad is None
