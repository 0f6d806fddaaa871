"""Where the numbers of a run go besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow, each an extra.

A tracker is opened by name and gets every line that metrics.jsonl gets, and the result at the end. By itself it writes
into the run's folder and nowhere else: no account, no server, no report about its use. `wandb:online` or
`mlflow:online` lets the package follow its own settings (`wandb login`, MLFLOW_TRACKING_URI), wherever these lead. A
tracker that fails is dropped with a word: training goes on, and metrics.jsonl has everything.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from osp.errors import UserError
from osp.files import write_text
from osp.recipe import Plan
from osp.recipe.recipe import ONLINE
from osp.runs.folder import RunFolder
from osp.version import install

Values = Mapping[str, float]
PROJECT = "osp"
QUIET = {
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
"""Set where the user has not: no reports to the makers of these packages."""


class Tracker(Protocol):
    """What a package does with the numbers of a run."""

    def write(self, step: int, values: Values) -> None:
        """Numbers by names such as `train/loss`."""

    def close(self, finished: bool) -> None:
        """The run has ended, finished or not."""


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, plan: Plan, folder: RunFolder, online: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder.path / "tensorboard"))

    def write(self, step: int, values: Values) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, finished: bool) -> None:
        self._writer.close()


class Wandb:
    """An offline run in RUN/wandb, which `wandb sync` can send later; or one that is sent at once."""

    def __init__(self, plan: Plan, folder: RunFolder, online: bool) -> None:
        import wandb

        settings = wandb.Settings(console="off", disable_git=True, save_code=False, x_disable_stats=True)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.path.absolute().name,
            id=hashlib.blake2b(f"{folder.path.absolute()} {plan.identity()}".encode(), digest_size=6).hexdigest(),
            resume="allow",
            dir=str(folder.path),
            mode=None if online else "offline",
            config=described(plan),
            settings=settings,
        )

    def write(self, step: int, values: Values) -> None:
        self._run.log(dict(values), step=step)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A local store in RUN/mlflow; or the server that MLflow is set up for."""

    def __init__(self, plan: Plan, folder: RunFolder, online: bool) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client: Any = MlflowClient(None if online else (folder.path.absolute() / "mlflow").as_uri())
        noted = folder.path / "mlflow.json"
        if noted.exists():  # the run goes on
            self._run = str(folder.read_json(noted).get("run"))
            self._client.update_run(self._run, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        self._run = self._client.create_run(experiment, run_name=folder.path.absolute().name).info.run_id
        for key, value in described(plan).items():
            self._client.log_param(self._run, key, str(value)[:500])
        write_text(noted, json.dumps({"run": self._run}) + "\n")

    def write(self, step: int, values: Values) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run, metrics=[self._metric(name, value, now, step) for name, value in values.items()]
        )

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


KINDS: dict[str, Callable[[Plan, RunFolder, bool], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}
"""By the name of the package that must be installed, which is also the extra's."""


def described(plan: Plan) -> dict[str, Any]:
    """The plan without what speaks of this machine."""
    fields = plan.model_dump(mode="json", exclude={"recipe", "data_dir", "ood_dir", "tracker", "tensorboard"})
    options = fields.pop("options")
    return {**fields, **{f"options.{name}": value for name, value in options.items()}}


def named_in(plan: Plan) -> list[str]:
    return list(dict.fromkeys([*plan.tracker, *(["tensorboard"] if plan.tensorboard else [])]))


def check_trackers(plan: Plan) -> None:
    """Refuse a tracker whose package is missing, before anything is done."""
    for name in named_in(plan):
        kind = name.removesuffix(ONLINE)
        if importlib.util.find_spec(kind) is None:
            raise UserError(f"{kind}: the extra is not installed; run `{install(kind)}`.")
