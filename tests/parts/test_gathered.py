"""Rows of all processes."""

from __future__ import annotations

import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from osp.parts.gathered import gathered

BATCH = torch.arange(12.0).view(6, 2)


def process(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.save(gathered(BATCH[rank::2].clone().requires_grad_()), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_both_hold_the_rows_of_the_whole_batch(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(process, (port, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert torch.equal(found.sort(dim=0).values, BATCH)
        assert not found.requires_grad
