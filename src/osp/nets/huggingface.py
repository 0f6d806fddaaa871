"""Frozen backbones of the Hugging Face layout: a folder, or a name on the hub, with `config.json`,
`preprocessor_config.json` and weights as safetensors.

Four families: DINOv2, SigLIP (its image half), ViT and ConvNeXt. The class that is built is one of the installed
package transformers, chosen by `model_type` from the table below; code that comes with weights is never run and a
pickle is never opened. The features are what each family was trained to be judged by: the normalized class token
(DINOv2, ViT), the attention-pooled tokens (SigLIP), the normalized mean of the last maps (ConvNeXt).

Photographs reach the network as for any other backbone: their middle square at the network's size. The processors of
some families cut off another eighth of it; here it is seen.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osp.errors import UserError, first_line, printable, short, user_path
from osp.files import open_plain, read_json
from osp.nets.pretrained import Backbone
from osp.version import install

PREFIX = "hf:"
CONFIG, PROCESSOR, NEWER_PROCESSOR = "config.json", "preprocessor_config.json", "processor_config.json"
FETCHED = (CONFIG, PROCESSOR, NEWER_PROCESSOR, "*.safetensors", "*.safetensors.index.json", "README.md")
VERSION = 1
"""Raised when the way features are taken from a network changes."""
ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST = 2048
MOST_ACTIVE, MOST_PATCHES = 1 << 28, 25_000
"""Numbers that a layer gives for one image; patches that attend to each other."""
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")
"""Entries of a configuration that change nothing in what the network computes here."""


@dataclass(frozen=True)
class Family:
    """How the networks of one `model_type` are built and looked into."""

    model: str
    """Class of transformers."""
    cam_layer: str
    """Ending, as a pattern, of the name of the layer that Grad-CAM looks at; the last one of that ending is meant."""
    pooled: bool = True
    """Whether the features are the network's own pooled output; the class token otherwise."""
    given: tuple[tuple[str, Any], ...] = ()
    """More for the class."""


_DINO = Family("Dinov2Model", r"\.norm1")
_SIGLIP = Family("SiglipVisionModel", r"\.post_layernorm")
FAMILIES = {
    "dinov2": _DINO,
    "dinov2_with_registers": Family("Dinov2WithRegistersModel", r"\.norm1"),
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "vit": Family("ViTModel", r"\.layernorm_before", pooled=False, given=(("add_pooling_layer", False),)),
    "convnext": Family("ConvNextModel", r"\.encoder\.stages\.\d+"),
    "convnextv2": Family("ConvNextV2Model", r"\.encoder\.stages\.\d+"),
}


class HuggingFaceNet(nn.Module):
    """Images in, features out, of a model of transformers."""

    def __init__(self, model: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, images: Tensor) -> Tensor:
        found = self.model(pixel_values=images)
        features: Tensor = found.pooler_output if self.pooled else found.last_hidden_state[:, 0]
        return features


def huggingface(name: str, fetch: bool = True) -> Backbone:
    """The backbone `hf:NAME_OR_FOLDER`: an existing folder is meant before a name on the hub.

    `NAME@REVISION` names a certain state. Without `fetch`, what the hub's own cache on this machine holds has to do.
    """
    given = name.removeprefix(PREFIX)
    folder, known_as = _folder(given, fetch)
    config = _read(folder, CONFIG)
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise UserError(
            f"{PREFIX}{given} holds a network of type {printable(kind)!r}; these are known: {', '.join(FAMILIES)}."
        )
    size, mean, std = preprocessing(_processor(folder), folder)
    files, named = _weights(folder)
    model = _model(FAMILIES[kind], folder, config, size, files)
    network = HuggingFaceNet(model, FAMILIES[kind].pooled).eval().requires_grad_(False)
    try:
        with torch.no_grad():
            dim = network(torch.zeros(1, 3, size, size)).shape[1]
    except Exception as error:
        raise UserError(
            f"The network in {folder} does not take images of {size}x{size} pixels, the size in its {PROCESSOR}: "
            f"{_first_line(error)}."
        ) from None
    layers = ["", *(name for name, _ in network.named_modules() if re.search(f"{FAMILIES[kind].cam_layer}$", name))]
    checksum, license = _checksum(config, files, named), _license(folder, known_as)
    return Backbone(f"{PREFIX}{known_as}", checksum, network, size, mean, std, dim, license, layers[-1])


def _folder(given: str, fetch: bool) -> tuple[Path, str]:
    """The folder with the files, and the name under which it is found again."""
    path = user_path(given)
    if given and path.is_dir():
        return path, str(path.absolute())
    if not given or path.is_absolute() or given.startswith(("~", ".")) or not _HUB_NAME.fullmatch(given):
        raise UserError(
            f"The network {PREFIX}{given} is not there: no such folder. It should hold {CONFIG}, {PROCESSOR} and "
            "the weights as safetensors."
        )
    _transformers()
    repository, _, revision = given.partition("@")
    try:
        fetched = import_module("huggingface_hub").snapshot_download(
            repository, revision=revision or None, allow_patterns=list(FETCHED), local_files_only=not fetch
        )
    except Exception as error:  # no connection, no such name, a name that needs an account, ...
        if not fetch:
            raise UserError(
                f"It is not on this machine, and nothing is downloaded because a file says so. If you trust it, fetch "
                f"it first: hf download {given.replace('@', ' --revision ')}"
            ) from None
        raise UserError(
            f"The network {PREFIX}{given} is no folder here, and it cannot be fetched from the hub "
            f"({_first_line(error)}). Fetch it on another machine, and name the folder: {PREFIX}FOLDER."
        ) from None
    return Path(fetched), given


def _weights(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files that transformers loads, all of them in the folder, and which of them has which tensor, where an index
    says so."""
    alone, index = folder / ONE_FILE, folder / INDEX
    if alone.is_file():
        return [alone], {}
    named = _read(folder, INDEX).get("weight_map") if index.is_file() else None
    texts = isinstance(named, dict) and all(isinstance(name, str) for name in named.values())
    names = set(named.values()) if named and texts else set()
    files = sorted(folder / name for name in names)
    if not files or not all(file.suffix == ".safetensors" and file.is_file() for file in files):
        raise UserError(
            f"{folder} has no weights as safetensors ({ONE_FILE}, or the files that {INDEX} names). Weights in other "
            "files can run code when they are opened and are not read; convert them where you trust them."
        )
    if any(Path(name).name != name for name in names):
        raise UserError(f"{index} names weights outside of its folder; they are not read.")
    return files, dict(named or {})


def _settings(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """What a network is built from: of both halves the images' one, without what names code, kernels or labels."""
    half = config.get("vision_config") if family is _SIGLIP else None
    used = half if isinstance(half, dict) else config
    dropped = (*_VOLATILE, "auto_map", "quantization_config", "num_labels", "id2label", "label2id")
    return {key: value for key, value in used.items() if key not in dropped and "implementation" not in key}


def _check_size(settings: dict[str, Any], size: int, files: list[Path]) -> int:
    """How many numbers the weights are, by their headers; ValueError where the settings ask for more than that."""
    from safetensors import safe_open

    count = tensors = 0
    for file in files:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                count, tensors = count + math.prod(stored.get_slice(name).get_shape()), tensors + 1
    for key, value in settings.items():
        numbers = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)]
        most = tensors if re.search("layers|depths|stages|labels", key) else count
        if sum(map(abs, numbers)) > most or (isinstance(value, list) and len(value) > tensors):
            raise ValueError(f"{key} is {short(value)}, and the weights are {count:,} numbers in {tensors} tensors")
    patch = settings.get("patch_size", 16)
    places = (size // max(patch if isinstance(patch, int) else 16, 1)) ** 2
    widest = max([each for each in (settings.get("hidden_size"), settings.get("num_channels"), 64) if each])
    if places * widest > MOST_ACTIVE or ("num_attention_heads" in settings and places > MOST_PATCHES):
        raise ValueError(f"images of {size}x{size} pixels in patches of {short(patch)} are too many")
    return count


def _model(family: Family, folder: Path, config: dict[str, Any], size: int, files: list[Path]) -> nn.Module:
    transformers = _transformers()
    kind, settings = getattr(transformers, family.model), _settings(config, family)
    try:
        count = _check_size(settings, size, files)
        built = kind.config_class.from_dict(settings)
        with torch.device("meta"):  # shapes alone
            asked = sum(each.numel() for each in kind(built, **dict(family.given)).parameters())
        if asked > count:
            raise ValueError(f"the weights do not fit {CONFIG}, which asks for {asked:,} numbers; they are {count:,}")
        model, about = kind.from_pretrained(
            folder,
            config=kind.config_class.from_dict(settings),
            attn_implementation="sdpa" if "num_attention_heads" in settings else "eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            **dict(family.given),
        )
    except Exception as error:
        raise UserError(f"The network in {folder} cannot be loaded: {_first_line(error)}.") from None
    if lacking := [*about.get("missing_keys", ()), *about.get("mismatched_keys", ())]:  # they would be random numbers
        raise UserError(f"The weights in {folder} do not fit its {CONFIG}: {printable(lacking[0])} is not there.")
    loaded: nn.Module = model
    return loaded


def _transformers() -> Any:
    """The package, without its progress bars and advice."""
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise UserError(
            f"A backbone {PREFIX}... needs the package {error.name or 'transformers'}. Run: {install('hf')}"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        found = read_json(path, links=True)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except FileNotFoundError:
        raise UserError(f"{folder} holds no saved network: {name} is missing.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {_first_line(error)}.") from None
    return found


def _processor(folder: Path) -> dict[str, Any]:
    """How images are made ready; newer versions keep it inside the file of the whole processor."""
    if not (folder / PROCESSOR).exists() and (folder / NEWER_PROCESSOR).exists():
        inner = _read(folder, NEWER_PROCESSOR).get("image_processor")
        if isinstance(inner, dict):
            return inner
    return _read(folder, PROCESSOR)


Channels = tuple[float, float, float]


def preprocessing(facts: dict[str, Any], folder: Path) -> tuple[int, Channels, Channels]:
    """Side of the input, and mean and std of (pixel/255 - mean) / std, from a preprocessor's settings.

    >>> preprocessing({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224},
    ...                "do_center_crop": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, Path("x"))
    (224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    """
    try:
        cropped = bool(facts.get("do_center_crop")) and facts.get("crop_size") is not None
        size = _side(facts["crop_size"] if cropped else facts["size"])
        factor = float(facts.get("rescale_factor", 1 / 255)) if facts.get("do_rescale", True) else 1.0
        unit = 255 * factor  # the settings speak of pixel * factor, we of pixel / 255
        changed = facts.get("do_normalize", True)
        mean = _channels(facts["image_mean"] if changed else 0.0, unit)
        std = _channels(facts["image_std"] if changed else 1.0, unit)
        if not 8 <= size <= LARGEST or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise ValueError(f"size {size}, std {std}")
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else _first_line(error)
        raise UserError(
            f"{folder / PROCESSOR} does not say how to make images ready for the network ({reason})."
        ) from None
    return size, mean, std


def _side(given: Any) -> int:
    if isinstance(given, dict):
        sides = {int(given[key]) for key in ("height", "width", "shortest_edge") if given.get(key) is not None}
        if len(sides) != 1:
            raise ValueError(f"a square is needed, and size is {given}")
        return sides.pop()
    return int(given)


def _channels(given: Any, unit: float) -> Channels:
    values = [float(each) / unit for each in (given if isinstance(given, list) else [given] * 3)]
    if len(values) != 3:
        raise ValueError(f"{len(values)} channels")
    return values[0], values[1], values[2]


def _checksum(config: dict[str, Any], files: list[Path], named: dict[str, str]) -> str:
    """Of all that decides what the network computes: its settings, its weights, and which file each tensor is from."""
    settings = {key: value for key, value in config.items() if key not in _VOLATILE}
    found = hashlib.sha256(json.dumps([VERSION, settings, *([named] if named else [])], sort_keys=True).encode())
    for file in files:
        try:
            with open_plain(file, links=True) as content:
                found.update(hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise UserError(f"The weights {file} cannot be read: {error.strerror or error}.") from None
    return found.hexdigest()


def _license(folder: Path, known_as: str) -> str:
    """What the model card or a license file beside the weights says."""
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        if (folder / name).is_file():
            return f"{known_as}:\n{_beginning(folder / name)}"
    card = folder / "README.md"
    if card.is_file():
        head = re.match(r"---\n(.*?)\n---", _beginning(card), re.DOTALL)
        said = re.search(r"^license:\s*(.+)$", head[1], re.MULTILINE) if head else None
        if said:
            return f"{known_as}: license {said[1].strip()}, as its model card says."
    return f"{known_as}: the license is not stated beside the weights; ask where you got them."


def _beginning(path: Path) -> str:
    with open_plain(path, links=True) as file:
        return file.read(20_000).decode("utf-8", "replace")


def _first_line(error: BaseException) -> str:
    return printable(first_line(error).rstrip(".")[:300])
