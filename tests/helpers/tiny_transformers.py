"""Tiny networks with random weights, saved as transformers saves them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

SIZES = {"dinov2": 28, "dinov2_with_registers": 28, "siglip": 32, "vit": 32, "convnext": 64, "convnextv2": 64}
FAMILIES = tuple(SIZES)


def build(family: str, seed: int = 0) -> Any:
    """A model of transformers, in evaluation mode."""
    t: Any = import_module("transformers")  # by name: type checkers need not read it all
    torch.manual_seed(seed)
    small: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    size = SIZES[family]
    if family == "dinov2":
        model: Any = t.Dinov2Model(t.Dinov2Config(**small, mlp_ratio=2, image_size=size, patch_size=7))
    elif family == "dinov2_with_registers":
        settings = t.Dinov2WithRegistersConfig(
            **small, mlp_ratio=2, image_size=size, patch_size=7, num_register_tokens=3
        )
        model = t.Dinov2WithRegistersModel(settings)
    elif family == "siglip":  # as on the hub: both halves, of which only the images' one is wanted
        vision = {**small, "intermediate_size": 64, "image_size": size, "patch_size": 8}
        text = {**small, "intermediate_size": 64, "vocab_size": 50, "max_position_embeddings": 8}
        model = t.SiglipModel(t.SiglipConfig(vision_config=vision, text_config=text))
    elif family == "vit":
        model = t.ViTModel(t.ViTConfig(**small, intermediate_size=64, image_size=size, patch_size=8))
    elif family == "convnext":
        model = t.ConvNextModel(
            t.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], layer_scale_init_value=1.0)
        )
    else:
        model = t.ConvNextV2Model(t.ConvNextV2Config(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]))
    return model.eval()


def save(folder: Path, family: str = "vit", seed: int = 0, card: str = "license: apache-2.0") -> Path:
    """The folder, with settings for images and a model card."""
    build(family, seed).save_pretrained(folder)
    size = SIZES[family]
    settings: dict[str, Any] = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3], "rescale_factor": 1 / 255}
    if family.startswith("dinov2"):
        settings |= {
            "do_center_crop": True,
            "crop_size": {"height": size, "width": size},
            "size": {"shortest_edge": 32},
        }
    elif family.startswith("convnext"):
        settings |= {"size": {"shortest_edge": size}, "crop_pct": 0.875}
    else:
        settings |= {"size": {"height": size, "width": size}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "README.md").write_text(f"---\n{card}\n---\n# Tiny\n")
    return folder
