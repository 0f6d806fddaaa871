"""The options of T2T, which OSP has too."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from osp.methods.base import Options


class T2TOptions(Options):
    pretrain_share: float = Field(0.2, gt=0, lt=1, description="share of the run for pre-training")
    pretrain_lr: float = Field(0.03, gt=0, description="learning rate of pre-training")
    pretrain_schedule: Literal["cosine-7/16", "cosine", "steps", "constant"] = Field(
        "cosine-7/16", description="learning rate over pre-training"
    )
    pretrain_drops: tuple[float, ...] = Field((), description="shares of pre-training where `steps` lowers the rate")
    one_schedule: bool = Field(
        False,
        description="both stages share one optimizer and one schedule, that of `lr`, `schedule` and `drops`; "
        "`pretrain_lr` and its like are not used",
        json_schema_extra={"before": False},
    )
    pool_batch: int = Field(
        64, ge=2, le=10**9, description="images of the whole pool per step, for L_rot (each at four angles) and L_ood^u"
    )
    rotation_weight: float = Field(1.0, ge=0, description="weight of L_rot; with 0 no image is rotated")
    rotation_until: Literal["pretrain", "finetune"] = Field(
        "finetune",
        description="the last stage with L_rot: the first, or both as in T2T and OSP",
        json_schema_extra={"before": "finetune"},
    )
    rotation_pass: Literal["joint", "own"] = Field(
        "joint", description="rotated images in one pass through the encoder with the others, or in one of their own"
    )
    temperature: float = Field(0.4, gt=0, description="sharpening of the targets of L_u")
    threshold: float = Field(0.8, ge=0, le=1, description="confidence from which an image enters L_u")
    least_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the batch that confident images count as, at least, in the means L_u and L_odc",
    )
    ramp: float = Field(0.2, ge=0, le=1, description="share of fine-tuning over which the unlabeled terms rise")
    refresh: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of fine-tuning between two partitions of the pool; default: 0.1, or more for a large pool",
    )
    refresh_cost: float = Field(
        1 / 12,
        gt=0,
        description="what passes over the pool may cost where `refresh` is not given, as a share of the steps' cost",
        json_schema_extra={"before": 1 / 25},
    )
    joint_weak: bool = Field(
        False, description="weak views in one pass with the others: joint batch statistics, and a graph nobody needs"
    )
    consistency_from: Literal["kept", "all"] = Field("kept", description="unlabeled images that enter L_u")
    partition_by: Literal["pool", "clusters", "neighbors", "matching"] = Field(
        "pool",
        description="what cuts the pool: its clusters, labeled neighbors in it, both, or 1 - S as in T2T and OSP",
    )
    references: int = Field(4000, ge=10, description="pool images that clusters and neighbors are found in")
    unlabeled_matching: Literal["partition", "entropy", "off"] = Field(
        "partition", description="L_ood^u: the partition as target, or the entropy of T2T"
    )
    cut_by: Literal["share", "otsu"] = Field(
        "share",
        description="where the pool is cut: at the share of ID images estimated from validation images, or Otsu's "
        "(also where there are none)",
    )
    id_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of ID images in the pool, where you know it: the pool is cut there, whatever `cut_by`",
        json_schema_extra={"before": None},
    )
    doubtful: float = Field(
        0.2, ge=0, lt=1, description="share of each side, next to the threshold, neither kept nor set aside"
    )
    score_memory: float = Field(0.5, ge=0, lt=1, description="weight of earlier scores when the pool is cut again")
    noise: float = Field(0.0, ge=0, description="feature noise in pre-training, in standard deviations")
