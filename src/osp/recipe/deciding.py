"""`make_plan`: from what was asked to what is decided, in two steps.

What needs no data (names, options, network) is checked first; then the numbers are decided: the published ones of a
known set, which needs no file for it, or such as fit the classes of a folder, which is described (class names and
counts, nothing is decoded). In rising order of precedence a value comes from the method's defaults, the preset, the
scale, and what was asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError

from osp.data import available as data_sets
from osp.data import describe_set
from osp.data import get as data_source
from osp.data.split import spec_for
from osp.data.views import find as find_view
from osp.errors import UserError, short, suggest, user_path
from osp.machine import cores, in_gigabytes, memory
from osp.methods.base import Method, Options, earlier_options, published_options
from osp.methods.registry import get, without_removed
from osp.nets import batchnorm_momentum, check_name
from osp.plugins import is_file, plain_name, same_path
from osp.recipe.code import contents_of
from osp.recipe.plan import CPU_GROUP, CUSTOM, MOST_THREADS, SPLIT_FIELDS, Plan
from osp.recipe.reading import explain
from osp.recipe.recipe import Preset, Recipe, Scale
from osp.version import HARNESS_VERSION, __version__


def make_plan(recipe: Recipe, custom_network: bool = False, progress: Any = None) -> Plan:
    """Decide every open field; raises UserError where something is unknown or impossible, before data are read."""
    data, scale, preset = recipe.data or "digits", recipe.scale or "cpu", recipe.preset or "default"
    seed = recipe.seed or 0
    recipe.trust()
    check_data_names(recipe, data)
    method = get(recipe.method or "osp")
    by_scale = scale_options(method, preset, scale, data, custom_network)
    options = decide_options(method, preset, data, by_scale, recipe.options)
    for view in (options.weak, options.strong):
        find_view(view)
    # The paper's networks at its scale; below it the fast one where the paper has WRN-28-2.
    usual = "cnn" if data_source(data).grey else "wrn-28-2" if scale == "paper" else "fast"
    network = CUSTOM if custom_network else recipe.network or usual
    if not custom_network:
        check_name(network)
    steps = recipe.steps or (method.paper_steps if scale == "paper" else default_steps(data, scale))
    check_machine(recipe, options)

    check_folders(data, recipe)
    given = {key: getattr(recipe, key) for key in SPLIT_FIELDS}
    smallest = None
    if data_source(data).within is None:  # a set without published numbers: they are made to fit its classes
        described = describe_set(data, recipe.data_dir, size=recipe.image_size, progress=progress)
        smallest = described.smallest_of(recipe.id_classes)
    spec = spec_for(data, recipe.ood_data, seed=seed, smallest_class=smallest, **given)
    device = recipe.device or "auto"
    decided = {"method": recipe.method or "osp", "network": None if custom_network else network, "data": data}
    contents = contents_of({**decided, "ood_data": recipe.ood_data, "options": options.model_dump()})
    unchanged = {"image_size", "ood_data", "test_ood", "save_every", "save_seconds", "tracker"}
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return Plan(
        **recipe.model_dump(include=unchanged),
        **{key: getattr(spec, key) for key in SPLIT_FIELDS},
        data=data,
        data_dir=absolute(recipe.data_dir),
        ood_dir=absolute(recipe.ood_dir),
        method=recipe.method or "osp",
        method_content=contents.pop("method", None) if is_file(recipe.method) else None,
        contents=contents,
        options=json.loads(options.model_dump_json()),
        preset=preset,
        scale=scale,
        network=network,
        steps=steps,
        eval_every=recipe.eval_every or max(min(steps, 10), round(steps / (10 if scale == "demo" else 20))),
        log_every=recipe.log_every or max(1, min(100, round(steps / 100))),
        bn_momentum=recipe.bn_momentum or batchnorm_momentum(steps),
        seed=seed,
        device=device,
        precision=recipe.precision or "32-true",
        channels_last=recipe.channels_last is not False,
        group=recipe.group if recipe.group is not None else (CPU_GROUP if on_cpu else 0),
        compile=bool(recipe.compile),
        # Small batches gain nothing from more threads than one, and lose much on a busy machine.
        threads=1 if recipe.threads is None and scale == "demo" else recipe.threads,
        tensorboard=bool(recipe.tensorboard),
        versions=versions(method.version),
        recipe=recipe.asked(),
    )


def check_data_names(recipe: Recipe, data: str) -> None:
    files = [name for name in (data, recipe.ood_data or "") if is_file(name)]
    if len({*map(plain_name, files), *data_sets()}) < len(files) + len(data_sets()):
        raise UserError(f"Data set {files[0]}: another set has its name; rename the file.")
    for name in filter(None, (data, recipe.ood_data)):
        check_known(name, files)
    twice = recipe.ood_data is not None and same_path(recipe.ood_data) == same_path(data)
    if twice and not data_source(data).own_folder:
        raise UserError(f"ood_data {recipe.ood_data}: these are the images of the run itself; name another set.")
    check_test_ood(recipe.test_ood, data, recipe.ood_data)


def check_known(name: str, files: Sequence[str] = ()) -> None:
    """Refuse a data set that is neither known nor one of these files."""
    if name not in (*data_sets(), *files):
        raise UserError(f"Unknown data set {short(name)}.{suggest(name, data_sets())} `osp datasets` shows them.")


def check_test_ood(names: Sequence[str], data: str, ood_data: str | None) -> None:
    """Refuse to test on sets that are unknown, or hold images of the run itself."""
    for name in names:
        check_known(name)
        if name in (data, ood_data):
            raise UserError(f"test_ood {name}: these images are in the run already; name a set that is not.")
        if data_source(name).own_folder:
            raise UserError(f"test_ood {name}: only sets that have a place in the data folder can be named here.")


def decide_options(
    method: type[Method], preset: Preset, data: str, by_scale: dict[str, Any], given: dict[str, Any]
) -> Any:
    """The method's options: its defaults, the preset's, the scale's, and what was asked."""
    given = without_removed(method, given)
    by_preset = {"paper": lambda: published_options(method, data), "v0.1": lambda: earlier_options(method)}
    published = by_preset.get(preset, dict)()
    known = method.Options.model_fields
    for key in given:
        if key not in known:
            hint = suggest(str(key), [*known, *Recipe.model_fields])
            hint = hint if "mean" in hint else suggest(str(key), known)
            raise UserError(f"Method {method.name!r} has no option {key!r}, nor has the recipe.{hint}")
    try:
        return method.Options(**{**published, **by_scale, **given})
    except ValidationError as error:
        raise UserError(explain(error, method.Options, f"options of {method.name}")) from None


DEMO_BATCH = 32
"""The demo has few labels and wants to end in seconds."""
BUDGET = {"batch": 128, "mu": 1, "pool_batch": 16}
"""Images per step where color images meet the processor: see docs/lab-notes.md, "What short runs need"."""
BUDGET_BEFORE = {"mu": 2, "pool_batch": 16}
"""At most this, in version 0.1."""
SHORT = {
    "optimizer": "muon",
    **dict.fromkeys(("lr", "pretrain_lr"), 0.05),
    **dict.fromkeys(("schedule", "pretrain_schedule"), "cosine"),
    "one_schedule": True,
}
"""What learns most from color images in minutes, for all methods alike; the same place has the figures."""


def scale_options(
    method: type[Method], preset: Preset, scale: Scale, data: str, custom_network: bool = False
) -> dict[str, Any]:
    """Options that a scale sets, so that runs end in time and methods have equal budgets; published ones win over them.

    A module of the user's own may bring weights that large steps would destroy: its optimizer stays SGD. A method from
    elsewhere that has chosen its optimizer, rate or schedule keeps them.
    """
    known = method.Options.model_fields
    outside = not method.__module__.startswith("osp.methods.")
    chosen = [n for n, field in Options.model_fields.items() if outside and known[n].default != field.default]
    found: dict[str, Any] = {}
    if scale == "cpu" and preset != "paper" and not data_source(data).grey:
        least = {name: min(known[name].default, most) for name, most in BUDGET_BEFORE.items() if name in known}
        found |= BUDGET if preset == "default" else least
    if scale != "paper" and preset != "paper" and not data_source(data).grey:
        found |= {} if custom_network or {"optimizer", "lr", "schedule"} & set(chosen) else SHORT
    if scale == "demo":
        found["batch"] = DEMO_BATCH
    if scale != "paper" and preset == "default" and method.labeled_views > 1:
        batch, mu = (found.get(name, known[name].default) for name in ("batch", "mu"))
        found |= {"batch": max(batch // method.labeled_views, 1), "mu": mu * method.labeled_views}
    kept = [name for name in chosen if name != "batch" or scale != "demo"]
    return {name: value for name, value in found.items() if name in known and name not in kept}


def default_steps(data: str, scale: Scale) -> int:
    """Steps that take seconds (`demo`) or minutes on two cores (`cpu`)."""
    if scale == "demo":
        return 400
    return 1_500 if data_source(data).grey else 3_000


def check_folders(data: str, recipe: Recipe) -> None:
    """Refuse a folder of the user's that would be its own OOD source, or of which it is not said what it holds."""
    if recipe.ood_dir is not None and recipe.ood_data is None:
        raise UserError(
            f"ood_dir {recipe.ood_dir}: say what is in it: ood_data=pile (unsorted images), shards (tar files of them) "
            "or folder (classes)."
        )
    if recipe.ood_data is None:
        return
    if data_source(recipe.ood_data).unsorted and recipe.ood_ratio is not None:
        raise UserError(
            f"ood_ratio {recipe.ood_ratio:g}: it is not known which share of unsorted images is OOD. Leave it out, "
            "and all of them are used; ood_count=N takes N of them."
        )
    same = data_source(data).own_folder and absolute(recipe.ood_dir) == absolute(recipe.data_dir)
    if data_source(recipe.ood_data).own_folder and (recipe.ood_dir is None or same):
        raise UserError(f"ood_data {recipe.ood_data}: name the folder of those images as ood_dir.")


def check_machine(recipe: Recipe, options: Any) -> None:
    """Refuse what this machine cannot do; `osp.engine.devices` knows more, once the images are known."""
    check_threads(recipe.threads)
    pool, side = getattr(options, "mu", 1), recipe.image_size
    one = 4 * (side * side if side else 3 * 8 * 8)  # bytes of an image as numbers, of the smallest there is if unknown
    least = options.batch * (1 + pool) * one
    have = memory()
    if have is not None and least > have:
        raise UserError(
            f"batch: {short(options.batch)} labeled images and {short(pool)} times as many others per step take "
            f"{in_gigabytes(least)} before anything is computed; this machine has {in_gigabytes(have)}. "
            f"Take a smaller batch{', image_size' if side else ''} or mu."
        )


def check_threads(threads: int | None) -> None:
    """Refuse a number that no machine has."""
    if threads is not None and threads > MOST_THREADS:
        raise UserError(
            f"threads: {short(threads)} asked for; this machine has {cores()} cores, and more than "
            f"{MOST_THREADS} threads would only stand in each other's way. Leave it out, or take {cores()}."
        )


def absolute(folder: str | None) -> str | None:
    """A folder that means the same from anywhere."""
    return str(user_path(folder).absolute()) if folder else folder


def versions(method: int) -> dict[str, str]:
    """Of the package, of torch, and the two whose change makes results stale."""
    return {"osp": __version__, "torch": str(torch.__version__), "harness": str(HARNESS_VERSION), "method": str(method)}
