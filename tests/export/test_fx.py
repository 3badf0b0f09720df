"""Every module, traced with ``torch.fx.symbolic_trace``, copied and pickled."""

import copy
import pickle

import pytest
import torch
from torch import nn

import detops

X = torch.linspace(-1, 1, 2 * 16 * 16 * 16).view(2, 16, 16, 16)
BOXES = torch.tensor([[1.0, 2, 20, 25], [0, 0, 31, 31], [5, 5, 9, 8]])
ROIS = torch.cat([torch.tensor([[0.0], [1], [1]]), BOXES], 1)
ROTATED = torch.cat([BOXES, torch.tensor([[0.0], [30], [60]])], 1)
STATE = (torch.rand(3, 5), torch.rand(3, 5))
PYRAMID = {"a": X, "b": X[..., ::2, ::2].contiguous()}
LEVELS = (torch.tensor([[3, 4]]), torch.tensor([0]))
ATTENTION = (torch.rand(1, 3, 16), torch.rand(1, 3, 1, 2), torch.rand(1, 12, 16), *LEVELS)
PADDING = torch.arange(12)[None] > 8
TRACED = {
    "RoIAlign": (detops.RoIAlign(2, 0.5, 2), (X, ROIS)),
    "RoIAlign, list": (detops.RoIAlign((2, 3), 0.5, -1, aligned=True), (X, [BOXES, BOXES])),
    "RoIAlignMax": (detops.RoIAlignMax(2, 0.5, 2), (X, ROIS)),
    "BorderAlign": (detops.BorderAlign(3), (X, torch.rand(len(X), 5, 4))),
    "PrRoIPool": (detops.PrRoIPool(2, 0.5), (X, ROIS)),
    "RoIPool": (detops.RoIPool(2, 0.5), (X, ROIS)),
    "RoIPool, list": (detops.RoIPool(2, 0.5), (X, [BOXES, BOXES])),
    "PSRoIAlign": (detops.PSRoIAlign(2, 0.5, 2), (X, ROIS)),
    "PSRoIPool": (detops.PSRoIPool(2, 0.5), (X, ROIS)),
    "RoIAlignRotated": (detops.RoIAlignRotated(2, 0.5, 2), (X, [ROTATED, ROTATED])),
    "RiRoIAlignRotated": (detops.RiRoIAlignRotated(2, 0.5, 2), (X, [ROTATED, ROTATED])),
    "DeformPSRoIPooling": (detops.DeformPSRoIPooling(2, 0.5, 16), (X, ROIS)),
    "DeformPSRoIPooling, offsets": (
        detops.DeformPSRoIPooling(2, 0.5, 16, trans_std=0.1), (X, ROIS, torch.rand(3, 2, 2, 2))
    ),
    "DeformRoIPool": (detops.DeformRoIPool(2, 0.5), (X, ROIS)),
    "DeformRoIPool, offsets": (detops.DeformRoIPool(2, 0.5, 2), (X, ROIS, torch.rand(3, 2, 2, 2))),
    "WinogradConv2d": (detops.WinogradConv2d(16, 4), (X,)),
    "CARAFE": (detops.CARAFE(3, 1, 2), (X, torch.rand(2, 9, 32, 32))),
    "CornerPool": (detops.CornerPool("left"), (X,)),
    "MaskedConv2d": (detops.MaskedConv2d(16, 4, 3, padding=1), (X, torch.rand(2, 16, 16) > 0.5)),
    "MultiScaleRoIAlign": (
        detops.MultiScaleRoIAlign(["a", "b", "c"], 2, 2, canonical_scale=30),
        (PYRAMID, [BOXES, BOXES], [(32, 32), (30, 31)]),
    ),
    "DeformConv2d": (detops.DeformConv2d(16, 4, 3, padding=1), (X, torch.rand(2, 18, 16, 16))),
    "DeformConv2d, mask": (
        detops.DeformConv2d(16, 4, 3, padding=1, bias=False),
        (X, torch.rand(2, 18, 16, 16), torch.rand(2, 9, 16, 16)),
    ),
    "MultiScaleDeformableAttention": (detops.MultiScaleDeformableAttention(16, 1, 2, 2), ATTENTION),
    "MultiScaleDeformableAttention, padded": (
        detops.MultiScaleDeformableAttention(16, 1, 2, 2), (*ATTENTION, PADDING)
    ),
    "Axpy": (detops.Axpy(), (X, X)),
    "MLP": (detops.MLP(), (torch.rand(3, 5),)),
    "LLTM": (detops.LLTM(4, 5), (torch.rand(3, 4), STATE)),
    "LLTMSequence": (detops.LLTMSequence(4, 5), (torch.rand(2, 3, 4), STATE)),
}  # fmt: skip


def test_cases_cover_every_module():
    classes = {name: getattr(detops, name) for name in detops.ops.__all__}
    modules = {n for n, c in classes.items() if isinstance(c, type) and issubclass(c, nn.Module)}
    assert modules == {name.split(",")[0] for name in TRACED}


class Head(nn.Module):
    """A user module that contains a detops module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, boxes):
        return self.module(x, boxes).relu()


def flatten(x):
    return [x] if isinstance(x, torch.Tensor) else [t for part in x for t in flatten(part)]


@pytest.mark.parametrize("name", TRACED)
def test_traced_module_equals_the_original(name):
    module, args = TRACED[name]
    expected = flatten(module(*args))
    traced = torch.fx.symbolic_trace(module)
    assert all(torch.equal(a, b) for a, b in zip(flatten(traced(*args)), expected, strict=True))
    # The trace also accepts other values and passes gradients.
    x = (args[0]["a"] if isinstance(args[0], dict) else args[0]) + 1
    others = ({**args[0], "a": x} if isinstance(args[0], dict) else x, *args[1:])
    x.requires_grad_()
    found, expected = flatten(traced(*others)), flatten(module(*others))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    (gradient,) = torch.autograd.grad(sum(t.square().sum() for t in found), x)
    assert torch.equal(gradient, *torch.autograd.grad(sum(t.square().sum() for t in expected), x))


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize(
    "copy_module", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))]
)
def test_copied_module_gives_the_same_results(name, copy_module):
    module, args = TRACED[name]
    other = copy_module(module)
    assert str(other) == str(module)
    pairs = zip(flatten(other(*args)), flatten(module(*args)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_traced_user_module_calls_roi_align():
    head = Head(detops.RoIAlign(2, 0.5, 2))
    traced = torch.fx.symbolic_trace(head)
    assert torch.equal(traced(X, [BOXES, BOXES]), head(X, [BOXES, BOXES]))
    assert any(node.target is detops.roi_align for node in traced.graph.nodes)
