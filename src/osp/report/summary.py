"""A run in three sentences and a table of its numbers."""

from __future__ import annotations

from osp.errors import printable
from osp.evaluate.metrics import wilson_interval
from osp.runs.run import Run

NUMBERS = {
    "accuracy": ("test accuracy", "%"),
    "open_accuracy": ("balanced accuracy with “none of them” as a class", "%"),
    "auroc": ("AUROC, ID against OOD test images", ""),
    "fpr95": ("OOD accepted where 95 % of ID are", "%"),
    "pool_auroc": ("AUROC in the unlabelled pool", ""),
    "purity": ("ID among the pool images it keeps", "%"),
    "recall": ("ID pool images that it keeps", "%"),
    "val_accuracy": ("validation accuracy", "%"),
    "calibration_error": ("calibration error", "%"),
    "angle": ("angle between ID and OOD features", "°"),
    "steps": ("steps", ""),
    "images_seen": ("images seen", ""),
    "seconds": ("seconds", ""),
}


def sentences(run: Run) -> list[str]:
    """What was learned from what, how well it names classes, how well it knows what is foreign."""
    return [_learned(run), _names(run), _foreign(run)]


def _learned(run: Run) -> str:
    classes, labels = len(run.class_names), run.plan.labels_per_class
    pool, ratio = int(run.number("unlabeled") or 0), run.number("ood_ratio")
    labelled = run.group("labeled")
    total = len(labelled) if labelled is not None else classes * labels
    said = f"{run.method} learned {classes} classes of {run.data_name} from {total:,} labelled images"
    if not pool:
        return f"{said} and no unlabelled ones."
    foreign = "" if ratio is None else f", {100 * ratio:.0f} % of which show none of the classes"
    return f"{said} and {pool:,} unlabelled ones{foreign}."


def _names(run: Run) -> str:
    accuracy, images = run.number("accuracy"), int(run.number("test_images") or 0)
    if accuracy is None or not images:
        return "There were no test images to count its mistakes on."
    low, high = wilson_interval(accuracy, images)
    return (
        f"It names the right class for {accuracy:.1f} % of {images:,} test images (95 % interval: {low:.1f} to "
        f"{high:.1f})."
    )


def _foreign(run: Run) -> str:
    auroc, predictions = run.number("auroc"), run.predictions
    ood = run.group("test_ood")
    if predictions is not None and auroc is not None and ood is not None:
        through = 100 * (ood.scores[predictions.score] <= predictions.threshold).mean()
        return (
            f"Foreign images score higher than known ones in {auroc:.1f} % of pairs (AUROC); its threshold lets "
            f"{through:.0f} % of {len(ood):,} foreign test images through."
        )
    if auroc is not None:
        return f"Foreign images score higher than known ones in {auroc:.1f} % of pairs (AUROC)."
    if predictions is not None and len(predictions.pool):
        scores = predictions.pool.scores[predictions.score]
        called = int((scores > predictions.threshold).sum())
        return f"It calls {called:,} of the {len(scores):,} unlabelled images foreign; nobody knows how many are."
    return "There were no foreign images to test it on."


def threshold_note(run: Run) -> str:
    """Which images the threshold was set on."""
    kind = "validation" if run.group("validation") is not None else "labelled"
    return f"95 % of the {kind} images lie at or below it."


def table(run: Run, other: Run | None) -> list[dict[str, str]]:
    """The numbers that either run has."""
    rows = []
    for key, (name, unit) in NUMBERS.items():
        values = [None if each is None else each.number(key) for each in (run, other)]
        if any(value is not None for value in values):
            rows.append({"name": name, "value": shown(values[0], unit), "other": shown(values[1], unit)})
    return rows


def shown(value: float | None, unit: str) -> str:
    """`96.9 %`, `140,800`, or a dash.

    >>> shown(96.94, "%"), shown(140800.0, ""), shown(None, "")
    ('96.9 %', '140,800', '–')
    """
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    return f"{text}{'' if unit in ('', '°') else ' '}{unit}"


def title(run: Run) -> str:
    return f"{run.method} on {run.data_name}"


def made_with(run: Run) -> str:
    """Versions and seed."""
    versions = run.result.get("versions") or run.plan.versions
    listed = ", ".join(f"{printable(name)} {printable(version)}" for name, version in versions.items())
    variant = run.result.get("data_variant")
    return f"Seed {run.plan.seed}. Versions: {listed}." + (f" Data: {printable(variant)}." if variant else "")
