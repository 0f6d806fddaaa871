"""`osp.train`: from a recipe to a finished run folder. Read `train` from top to bottom."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError
from torch import nn

from osp import distributed
from osp.data.split import Split, spec_for
from osp.engine.batches import Feed
from osp.engine.data import Data, open_data, pixel_views
from osp.engine.devices import open_fabric, process_settings
from osp.engine.finish import OOD_SET, finish, tested_before
from osp.engine.loop import Loop
from osp.engine.progress import Display
from osp.engine.records import Records
from osp.engine.state import has_checkpoint, resume_run
from osp.engine.trackers import check_trackers
from osp.errors import UserError, short, user_path
from osp.files import write_text
from osp.methods.base import Method, Task
from osp.methods.registry import get, options_before, without_removed
from osp.models.trained import Predictor, load_predictor
from osp.nets import build_network, set_batchnorm_momentum, spread
from osp.plugins import plain_name
from osp.randomness import key_to_seed
from osp.recipe import Plan, Recipe, explain, make_plan
from osp.recipe.code import check_code, contents_of, files_in
from osp.recipe.deciding import check_test_ood, check_threads, versions
from osp.recipe.plan import CUSTOM, SPLIT_FIELDS
from osp.runs.folder import RunFolder
from osp.runs.run import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    network: nn.Module | None = None,
    display: Display | None = None,
) -> Run:
    """`osp.train` without its picture.

    Where torchrun has started several processes, all of them call this and share the run; the first one writes.
    """
    check_recipe(recipe)
    recipe.trust()
    folder = RunFolder(folder_for(recipe, out))
    with distributed.joined():
        display = display if display is not None and distributed.first() else Display()
        plan, finished = decide(recipe, folder, resume, network is not None, display)
        if finished is not None:
            display.say(f"The run in {folder.path} is finished.")
            return Run(folder, finished, plan, opener(network))
        distributed.by_each(lambda: check_trackers(plan))  # before anything is done
        with process_settings(plan):
            return run_plan(plan, folder, resume, network, display)


def opener(network: nn.Module | None) -> Callable[[Run], Predictor]:
    """What opens the model of a run: with the module that was trained in place of the recipe's network, if any."""

    def open_model(run: Run) -> Predictor:
        code = files_in(run.plan.model_dump())
        own = code.get("network") if network is None else copy.deepcopy(network)
        return load_predictor(run.path, network=own, method=code.get("method"), score=code.get("score"))

    return open_model


def check_recipe(given: object) -> None:
    """Refuse what is no recipe, with an example."""
    if not isinstance(given, Recipe):
        example = f"method={given!r}" if isinstance(given, str) else 'data="digits", method="osp"'
        raise UserError(f"A recipe is wanted, not {short(given)}: osp.train(osp.Recipe({example})).")


def decide(
    recipe: Recipe, folder: RunFolder, resume: bool, custom_network: bool, display: Display
) -> tuple[Plan, dict[str, Any] | None]:
    """The plan, and the result where there is one already: the first process decides, for all."""

    def decided() -> tuple[dict[str, Any], dict[str, Any] | None]:
        if resume:
            plan = stored_plan(folder, recipe)
            return plan.model_dump(mode="json"), finished_result(folder, plan)
        get(recipe.method or "osp")  # a wrong name may have led to a folder that is in use
        folder.check_free()
        made = make_plan(recipe, custom_network=custom_network, progress=display.loading)
        return made.model_dump(mode="json"), None

    fields, finished = distributed.from_first(decided)
    plan = Plan(**fields)
    distributed.by_each(
        lambda: None,
        "code (the method, osp or torch)",
        lambda _: [contents_of(plan.model_dump()), versions(get(plan.method).version)],
    )
    return plan, finished


def run_plan(plan: Plan, folder: RunFolder, resume: bool, network: nn.Module | None, display: Display) -> Run:
    """Carry out a plan in its folder."""
    fabric = distributed.by_each(lambda: open_fabric(plan))
    data = distributed.by_each(
        lambda: images_for(plan, folder, resume, display), "images", lambda found: [found.keys, found.split.digest()]
    )
    loop = distributed.by_each(lambda: build_loop(plan, data, folder, fabric, Records(folder, display), network))
    distributed.take_from_first([*loop.method.parameters(), *loop.method.buffers()])  # a network that was given
    with distributed.held_by_first(folder.owned()):
        finished, going_on = distributed.from_first(lambda: (begin(plan, data, folder, resume), has_checkpoint(folder)))
        if finished is not None:
            return Run(folder, finished, plan, opener(network))
        if going_on:
            distributed.by_each(lambda: resume_run(loop), "checkpoints", lambda _: loop.at.done)
            display.say(f"Going on at step {loop.at.done} of {plan.steps}.")
        elif resume:
            display.say("It was stopped before its first checkpoint: starting again.")
        with loop.records.tracked(plan):
            loop.run()
            result, predictions = finish(loop, data)
            loop.records.write_result(loop.at.done, result)
    in_hand = (data, predictions) if distributed.first() else ()
    return Run(folder, result, plan, opener(network), *in_hand)


def images_for(plan: Plan, folder: RunFolder, resume: bool, display: Display) -> Data:
    """The images of a plan; of a run that goes on, those that it began with, split as they were."""
    split = Split.load(folder.split) if resume and folder.split.exists() else None
    return open_data(plan, split, display.loading, folder.read_data() if resume else None)


def begin(plan: Plan, data: Data, folder: RunFolder, resume: bool) -> dict[str, Any] | None:
    """Write what a run begins with, or give the result where another process has finished it meanwhile."""
    if not resume:
        folder.check_free()  # somebody else may have begun here while the data were read
        folder.forget_start()
        write_text(folder.plan, plan.dump())
    elif (finished := finished_result(folder, plan)) is not None:
        return finished
    if not folder.recipe.exists():
        write_text(folder.recipe, Recipe(**plan.recipe).dump())
    if not folder.split.exists():
        data.split.save(folder.split)
    if not folder.data.exists():
        write_text(folder.data, json.dumps(data.keys, indent=2) + "\n")
    if not has_checkpoint(folder):
        folder.rewind_metrics(0)  # of a run that was stopped before its first checkpoint
    return None


def finished_result(folder: RunFolder, plan: Plan) -> dict[str, Any] | None:
    """The result in the folder, unless the plan now asks for OOD sets that the model was not tested on."""
    result = folder.read_result()
    return None if result is not None and set(plan.test_ood) - set(result.get("other_ood") or {}) else result


def folder_for(recipe: Recipe, out: str | Path | None = None) -> Path:
    """`out`, or a name such as runs/mnist-fixmatch-r0.6-s0."""
    if out is not None:
        return user_path(out)
    recipe.trust()
    data, seed = recipe.data or "digits", recipe.seed or 0
    given = {key: getattr(recipe, key) for key in SPLIT_FIELDS}
    ratio = spec_for(data, recipe.ood_data, seed=seed, **given).ood_ratio
    names = [plain_name(name) if name else None for name in (data, recipe.ood_data, recipe.method or "osp")]
    parts = [*names, None if ratio is None else f"r{ratio:g}"]
    return Path("runs") / "-".join([*(part for part in parts if part), f"s{seed}"])


def stored_plan(folder: RunFolder, recipe: Recipe) -> Plan:
    """The plan in the folder, if the recipe asks for nothing else; where it does, the fields are named."""
    if not folder.begun():
        made = folder.recipe.exists() or folder.result.exists()
        why = "it has no plan.yaml: another version made it" if made else "no plan.yaml"
        raise UserError(f"There is no run in {folder.path} to resume ({why}).")
    plan = Plan.read(folder.plan)
    if differing := plan.differences(recipe):
        raise UserError(
            f"The run in {folder.path} was started with other options:\n  "
            + "\n  ".join(differing)
            + "\nResume it without changing them, or start a new run with another --out (in Python: out=)."
        )
    check_threads(recipe.threads)
    check_test_ood(recipe.test_ood, plan.data, plan.ood_data)
    before, found = set(plan.test_ood), (folder.read_result() or {}).get("other_ood") or {}
    plan = plan.moved(recipe)
    wanted = {*before, *plan.test_ood, *found}
    if wanted - found.keys():  # what it was tested on before stays, and need not be here any more
        wanted -= {name.removeprefix(OOD_SET) for name in tested_before(folder)}
    plan = plan.changed(test_ood=sorted(wanted))
    check_code(plan, recipe, folder.path)
    return plan


def build_loop(
    plan: Plan, data: Data, folder: RunFolder, fabric: Fabric, records: Records, network: nn.Module | None
) -> Loop:
    """Method, views and loop for a plan and its data."""
    split = data.split
    task = Task(
        num_classes=len(split.id_classes),
        shape=data.shape,
        num_labeled=len(split.labeled),
        num_unlabeled=len(split.unlabeled),
        num_val=len(split.val),
        steps=plan.steps,
    )

    def fresh(key: str) -> Method:
        """The method with initial weights, which depend on the seed and the key alone."""
        torch.manual_seed(key_to_seed(plan.seed, "weights", key))
        method = build_method(plan, task, copy.deepcopy(network))
        set_batchnorm_momentum(method, plan.bn_momentum)
        if distributed.world() > 1:
            spread(method, method.twice_differentiated)
        return method.to(fabric.device)

    method = fresh("start")
    feed = Feed(pixel_views(data.train, data, plan, fabric.device), split, plan.seed, fabric.device)
    if plan.channels_last:
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    method.net.group = plan.group or None
    loop = Loop(plan, method, fresh, feed, data, folder, fabric, records)
    if plan.compile:
        method.net.encoder.compile()  # after the loop's check of memory, which cannot look into a compiled one
    return loop


def build_method(plan: Plan, task: Task, network: nn.Module | None = None) -> Method:
    """The method of a plan on its network."""
    kind = get(plan.method)
    if plan.network == CUSTOM and network is None:
        raise UserError("This run has a network of your own: give the module again (network=...).")
    net = build_network(network if network is not None else plan.network, task.shape, task.num_classes)
    try:
        options = kind.Options(**without_removed(kind, {**options_before(plan.method), **plan.options}))
    except ValidationError as error:  # of a run that another version made
        raise UserError(explain(error, kind.Options, f"options of {kind.name}")) from None
    return kind(options, net, task)
