"""For the classic methods: one of them by hand on random images."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from osp.methods import Method, Sample, Stage, Step, Task, get
from osp.nets import BATCH_NORMS, build_network

VIEWS = ("weak", "weak2", "strong")


def build(
    name: str, network: str | nn.Module = "small", num_classes: int = 3, channels: int = 1, **options: Any
) -> Method:
    """A method on a network with random weights, for images of 8x8."""
    torch.manual_seed(0)
    kind, shape = get(name), (channels, 8, 8)
    task = Task(num_classes, shape, num_labeled=6, num_unlabeled=40, num_val=0)
    return kind(kind.Options.model_validate(options), build_network(network, shape, num_classes), task)


def confident(method: Method, factor: float = 30.0) -> Method:
    """With the logits of a trained network in size."""
    method.net.classifier.weight.data *= factor
    return method


def batch(num_classes: int = 3, channels: int = 1, labeled: int = 4, unlabeled: int = 12) -> dict[str, Sample]:
    draws = torch.Generator().manual_seed(1)

    def images(n: int) -> Tensor:
        return torch.randn(n, channels, 8, 8, generator=draws)

    targets = torch.arange(labeled) % num_classes
    views = {view: images(unlabeled) for view in VIEWS}
    return {
        "labeled": Sample(torch.arange(labeled), {"weak": images(labeled)}, targets),
        "unlabeled": Sample(torch.arange(unlabeled), views),
    }


def step_at(progress: float = 0.5, index: int = 0) -> Step:
    """A step of a run of 1000 of one stage; what it draws depends on the index alone."""
    return Step(index, 1000, Stage(), 0, round(1000 * progress), 1000, seed=0)


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Copies of what batch norms remember."""
    layers = [layer for layer in module.modules() if isinstance(layer, BATCH_NORMS)]
    tensors = [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var)]
    return [tensor.clone() for tensor in tensors if tensor is not None]


def remembered_after(method: Method, images: Tensor) -> list[Tensor]:
    """What batch norms would remember after one pass of these images."""
    net = copy.deepcopy(method.net)
    net(images)
    return running_statistics(net)


def gradients(method: Method, loss: Tensor) -> list[Tensor]:
    """Of all parameters of the network, zeros where there is none."""
    parameters = list(method.net.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def total(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack([term.float() for term in terms.values()]).sum()


def assert_half_precision_agrees(name: str, rtol: float = 0.05, **options: Any) -> None:
    """Two classes, three channels, bf16 autocast: the losses of single precision, and every weight learns."""
    found = []
    for half in (False, True):
        method = confident(build(name, "small", num_classes=2, channels=3, **options), 3.0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            terms = method.losses(batch(num_classes=2, channels=3), step_at())
        assert all(term.dtype == torch.float32 for term in terms.values())
        for gradient in gradients(method, total(terms)):
            assert gradient.isfinite().all()
            assert gradient.any()
        found.append(torch.stack([*terms.values()]).detach())
    assert (found[0] > 0).all()
    torch.testing.assert_close(found[1], found[0], rtol=rtol, atol=0.01)
