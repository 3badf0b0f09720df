"""Rules for the layers of a detector that are packed."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from ..modeling.backbone.norm import FrozenBatchNorm2d
from ..packed import (
    PackedConv2d,
    PackedDeconv2d,
    PackedLinear,
    has_hooks,
    join_convolutions,
    packable,
)

Affine = tuple[Tensor, Tensor] | None


def affine_parameters(norm: nn.Module) -> Affine:
    """Returns the scale and the shift of each channel, or None if a normalisation is not affine."""
    if isinstance(norm, FrozenBatchNorm2d):
        return norm.affine()
    if type(norm) is not nn.BatchNorm2d or norm.running_var is None:
        return None
    return scale_and_shift(norm)


def scale_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    """Computes scale and shift from statistics, an epsilon, and optional weights."""
    scale = (norm.running_var + norm.eps).rsqrt()
    shift = -norm.running_mean * scale
    if norm.weight is None:
        return scale, shift
    return scale * norm.weight, shift * norm.weight + norm.bias


class ProposalHead(nn.Module):
    """A proposal head for inference that computes both of its results in one convolution.

    Args:
        head: a head with a convolution followed by ``cls_logits`` and ``bbox_pred``.
        both: ``cls_logits`` and ``bbox_pred`` as one convolution.
    """

    def __init__(self, head: Any, both: nn.Conv2d) -> None:
        super().__init__()
        self.conv = head.conv
        self.sizes = [head.cls_logits.out_channels, head.bbox_pred.out_channels]
        self.both = PackedConv2d(both)

    @classmethod
    def replace(cls, head: Any) -> nn.Module:
        """Returns a replacement for a head, or the head itself if it must stay."""
        both = None if has_hooks(head) else join_convolutions(head.cls_logits, head.bbox_pred)
        return head if both is None else cls(head, both)  # type: ignore[no-any-return]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits ``[N, A, H, W]`` and deltas ``[N, 4 A, H, W]`` for a feature map."""
        logits, deltas = self.both(x).split(self.sizes, 1)
        return logits, deltas


class Packer:
    """Replaces layers inside modules by packed ones, and fuses layers that follow each other.

    Args:
        exact: do not use Winograd's algorithm.
        affine: returns the scale and the shift of a normalisation, or None.
    """

    def __init__(
        self, exact: bool, affine: Callable[[nn.Module], Affine] = affine_parameters
    ) -> None:
        self.exact = exact
        self.affine = affine

    def pack_layer(
        self, layer: nn.Module, affine: Affine = None, relu: bool = False
    ) -> nn.Module | None:
        """Returns the packed layer, or None if it cannot be packed."""
        if not isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear) or not packable(layer):
            return None
        if isinstance(layer, nn.Conv2d):
            return PackedConv2d(layer, *(affine or ()), relu=relu, exact=self.exact)
        if affine is not None:
            return None
        if isinstance(layer, nn.Linear):
            return PackedLinear(layer, relu=relu)
        return PackedDeconv2d(layer, relu=relu)

    def pack_chain(self, module: nn.Module, names: Iterable[str]) -> None:
        """Packs a chain of children: the only input of each is the output of the one before."""
        remaining = list(names)
        while remaining:
            name = remaining.pop(0)
            layer = module.get_submodule(name)
            fused, affine, relu = [], None, False
            if (
                remaining
                and (affine := self.affine(module.get_submodule(remaining[0]))) is not None
            ):
                fused.append(remaining[0])
            next_names = remaining[len(fused) :]
            if next_names and type(module.get_submodule(next_names[0])) is nn.ReLU:
                fused.append(next_names[0])
                relu = True
            packed = self.pack_layer(layer, affine, relu)
            if packed is None:
                continue
            module.add_module(name, packed)
            for other in fused:
                module.add_module(other, nn.Identity())
                remaining.remove(other)

    def pack_pairs(self, module: nn.Module) -> None:
        """Packs conv1 with bn1, and so on."""
        for name, _ in list(module.named_children()):
            norm = name.replace("conv", "bn", 1)
            if name.startswith("conv") and norm in module._modules:
                self.pack_chain(module, (name, norm))

    def walk(self, module: nn.Module) -> None:
        """Packs a module and everything below it."""
        for child in module.children():
            self.walk(child)
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            self.pack_chain(module, [name for name, _ in module.named_children()])
            return
        self.pack_pairs(module)
        for name, child in list(module.named_children()):
            packed = self.pack_layer(child)
            if packed is not None:
                module.add_module(name, packed)
