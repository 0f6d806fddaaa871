"""Starting the processes of one run, by torch's own launcher (what `torchrun` calls), and saying how they ended."""

from __future__ import annotations

import logging
import math
import os
import signal
import uuid
from collections.abc import Sequence
from typing import Any

from osp.errors import UserError
from osp.machine import python

LOST = 75
"""Exit code of a process that gave up because another was gone: it is not the reason (EX_TEMPFAIL)."""
STOPPED = 130
PORT = 29500
SAVING = 120
"""Seconds that the processes have to end their step and save when the run is stopped."""
FOLLOWED = (LOST, -signal.SIGTERM)
"""Exit codes of a process that ended because another had: by itself, or stopped by the launcher."""
SAID = (2, STOPPED)
"""Exit codes of a process that has said why it ended."""


def launch(devices: int, nodes: int, arguments: Sequence[str], again: str) -> int:
    """Run `osp ARGUMENTS` in `devices` processes here, as one of `nodes` machines; the exit code.

    Each process has a device, or its share of the cores. Where one ends the others are stopped, and what happened is
    said here, with `again`: the command that goes on.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from osp.distributed import time_limit

    for name in ["torch.distributed.elastic", *logging.root.manager.loggerDict]:  # some have a level of their own
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING))
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // devices, 1)))
    patience = math.ceil(time_limit().total_seconds())
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=devices,
        run_id=os.environ.get("SLURM_JOB_ID") or (uuid.uuid4().hex if nodes == 1 else "osp"),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0" if nodes == 1 else endpoint(),
        rdzv_configs={"join_timeout": patience, "read_timeout": min(patience, 60)},
        max_restarts=0,
    )
    try:
        command, *flags = python()
        elastic_launch(config, command)(*flags, "-m", "osp", *arguments)
    except ChildFailedError as error:
        return _why(error.failures, again)
    except SignalException:
        return STOPPED
    except RendezvousError:
        raise UserError(
            f"The {nodes} machines of this run did not meet at {config.rdzv_endpoint} within {patience} seconds. Start "
            "the same command on each of them, with the same MASTER_ADDR: the address of one of them."
        ) from None
    except OSError as error:
        raise UserError(f"The processes could not be started: {error}.") from None
    return 0


def endpoint() -> str:
    """Where the machines of a run meet: MASTER_ADDR, else the first machine of a Slurm job."""
    address = os.environ.get("MASTER_ADDR")
    if not address and os.environ.get("SLURM_NODELIST"):
        from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

        address = SLURMEnvironment.resolve_root_node_address(os.environ["SLURM_NODELIST"])
    if not address:
        raise UserError(
            "--nodes: the machines must know where to meet. Set MASTER_ADDR to the address of one of them, the same "
            "everywhere, and start the same command on each."
        )
    return f"{address}:{os.environ.get('MASTER_PORT', PORT)}"


def _why(failures: dict[int, Any], again: str) -> int:
    """The exit code, after a sentence unless a process has said one itself."""
    rank, failure = min(failures.items(), key=lambda item: (item[1].exitcode in FOLLOWED, item[0]))
    code = int(failure.exitcode)
    if code in SAID:
        return code
    if code < 0:
        name = signal.Signals(-code).name
        how = f"was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
    else:
        how = "lost the others" if code == LOST else f"ended with exit code {code}"
    raise UserError(f"Rank {rank} of the run {how}, and the others were stopped. Continue with: {again}")
