"""torchvision inside and outside ``detops.patch_torchvision()``."""

import functools
import inspect
import sys

import pytest
import reference
import torch
import torchvision
from patched import BOXES, PATCHED_FUNCTIONS, SCORES, random_boxes, record_ops
from torch import nn
from torch.torch_version import TorchVersion
from torchvision.models.detection import roi_heads
from torchvision.ops import box_iou, nms, roi_align
from torchvision.ops import boxes as box_ops

import detops
from detops.compat.torchvision.functions import FUNCTIONS
from detops.compat.torchvision.kernels import KERNELS


class Holder(nn.Module):
    """Stores functions where a search through modules would miss them."""

    def __init__(self):
        super().__init__()
        self.iou = box_ops.box_iou
        self.align = torchvision.ops.RoIAlign(3, 1.0, 2)
        self.pooler = torchvision.ops.MultiScaleRoIAlign(["a", "b"], 3, 2)


@torch.jit.script
def scripted_nms(boxes: torch.Tensor, scores: torch.Tensor):
    return torch.ops.torchvision.nms(boxes, scores, 0.5)


MAP = torch.arange(64.0).view(1, 1, 8, 8)
MAPS = {"a": torch.rand(1, 1, 16, 16), "b": torch.rand(1, 1, 8, 8)}
HOLDER = Holder()
CALLS = {
    "attribute of the package": ("nms", lambda: torchvision.ops.nms(BOXES, SCORES, 0.5)),
    "attribute of a module": ("nms", lambda: box_ops.nms(BOXES, SCORES, 0.5)),
    "imported by name": ("nms", lambda: nms(BOXES, SCORES, 0.5)),
    "packet": ("nms", lambda: torch.ops.torchvision.nms(BOXES, SCORES, 0.5)),
    "overload": ("nms", lambda: torch.ops.torchvision.nms.default(BOXES, SCORES, 0.5)),
    "partial": ("nms", functools.partial(nms, BOXES, SCORES, 0.5)),
    "script": ("nms", lambda: scripted_nms(BOXES, SCORES)),
    "batched": ("nms", lambda: torchvision.ops.batched_nms(BOXES, SCORES, torch.ones(3), 0.5)),
    "module": ("roi_align_forward", lambda: HOLDER.align(MAP, [BOXES])),
    "function": ("roi_align_forward", lambda: roi_align(MAP, [BOXES], 3)),
    "pooler": (
        "multiscale_roi_align_forward", lambda: HOLDER.pooler(MAPS, [BOXES], [(32, 32)])
    ),
    "python, by name": ("box_iou_forward", lambda: box_iou(BOXES, BOXES)),
    "python, held": ("box_iou_forward", lambda: HOLDER.iou(BOXES, boxes2=BOXES)),
    "python, class": ("box_iou_forward", lambda: roi_heads.box_ops.box_iou(BOXES, BOXES, "xyxy")),
}  # fmt: skip


@pytest.mark.parametrize("style", CALLS)
def test_patch_reaches_functions_imported_in_any_way(style):
    op, call = CALLS[style]
    unpatched, ran_unpatched = record_ops(call)
    with detops.patch_torchvision():
        patched, ran = record_ops(call)
    assert ran_unpatched == set() and op in ran
    torch.testing.assert_close(patched, unpatched)


def test_functions_imported_while_patched_are_unpatched_afterwards():
    with detops.patch_torchvision():
        from torchvision.ops import box_iou as imported

        holder = Holder()
    assert imported is box_iou and holder.iou is box_iou
    assert record_ops(lambda: imported(BOXES, BOXES))[1] == set()


ROIS = torch.cat([torch.randint(0, 2, (9, 1)), random_boxes(9, 20)], 1)
X = torch.rand(2, 12, 16, 20)
POOLINGS = {
    "roi_align": lambda x: torchvision.ops.roi_align(x, ROIS, (3, 2), 0.9, 2, True),
    "adaptive": lambda x: torchvision.ops.roi_align(x, ROIS, (3, 2), 0.5),
    "roi_pool": lambda x: torchvision.ops.roi_pool(x, ROIS, (3, 2), 0.9),
    "ps_roi_align": lambda x: torchvision.ops.ps_roi_align(x, ROIS, (3, 2), 0.9, 2),
    "ps_roi_pool": lambda x: torchvision.ops.ps_roi_pool(x, ROIS, (3, 2), 0.3),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", POOLINGS)
def test_poolings_match_torchvision(name, layout):
    def run():
        x = X.clone(memory_format=layout).requires_grad_()
        pooled = POOLINGS[name](x)
        (pooled * torch.linspace(0, 1, pooled.numel()).view_as(pooled)).sum().backward()
        return pooled, x.grad

    (pooled, gradient), ran_unpatched = record_ops(run)
    with detops.patch_torchvision():
        (our_pooled, our_gradient), ran = record_ops(run)
    op = "roi_align" if name == "adaptive" else name
    assert ran_unpatched == set() and ran == {f"{op}_forward", f"{op}_backward"}
    assert our_pooled.stride() == pooled.stride()
    torch.testing.assert_close(our_pooled, pooled)
    torch.testing.assert_close(our_gradient, gradient)


@pytest.mark.parametrize("count", [len(ROIS), 0])
@pytest.mark.parametrize("op", ["ps_roi_align", "ps_roi_pool"])
def test_channel_mappings_match_torchvision(op, count):
    ratio = [2] if op == "ps_roi_align" else []
    call = functools.partial(getattr(torch.ops.torchvision, op), X, ROIS[:count], 1.0, 3, 2, *ratio)
    unpatched = call()[1]
    with detops.patch_torchvision():
        patched = call()[1]
    assert patched.dtype == unpatched.dtype and torch.equal(patched, unpatched)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_deform_conv2d_matches_torchvision(masked, with_bias):
    torch.manual_seed(0)
    offset, mask = torch.randn(2, 2 * 2 * 9, 8, 10), torch.rand(2, 2 * 9, 8, 10)
    weight, bias = torch.randn(6, 4, 3, 3), torch.randn(6)

    def run():
        inputs = [t.clone().requires_grad_() for t in (X, offset, weight, bias, mask)]
        x, o, w, b, m = inputs
        y = torchvision.ops.deform_conv2d(
            x, o, w, b if with_bias else None, (2, 2), (1, 1), mask=m if masked else None
        )
        (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum().backward()
        return y, [t.grad for t in inputs]

    unpatched, _ = record_ops(run)
    with detops.patch_torchvision():
        patched, ran = record_ops(run)
    assert ran == {"deform_conv2d_forward", "deform_conv2d_backward"}
    torch.testing.assert_close(patched, unpatched, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 900, 3000])
def test_batched_nms_returns_the_same_indices(count):
    boxes = random_boxes(count, 1000)
    labels = torch.randint(0, 7, (count,))
    # Many scores are equal; torchvision orders them with an unstable sort.
    scores = torch.randint(0, 50, (count,)).float()
    unpatched = torchvision.ops.batched_nms(boxes, scores, labels, 0.4)
    with detops.patch_torchvision():
        patched, ran = record_ops(lambda: torchvision.ops.batched_nms(boxes, scores, labels, 0.4))
    assert torch.equal(patched, unpatched)
    assert ran == ({"batched_nms"} if count == 3000 else {"nms"} if count else set())


def test_pasted_masks_are_bit_identical():
    boxes = torch.cat(
        [random_boxes(9), torch.tensor([[-9.0, -9, 5, 5], [120, 90, 140, 130], [-5, -5, 200, 200],
         [3, 3, 3, 3], [5, 5, 2, 2]])]
    )  # fmt: skip
    masks = torch.rand(len(boxes), 1, 28, 28)
    for padding in (1, 2):
        unpatched = roi_heads.paste_masks_in_image(masks, boxes, (100, 128), padding=padding)
        with detops.patch_torchvision():
            patched = roi_heads.paste_masks_in_image(masks, boxes, (100, 128), padding=padding)
            empty = roi_heads.paste_masks_in_image(masks[:0], boxes[:0], (100, 128))
        assert torch.equal(patched, unpatched) and empty.shape == (0, 1, 100, 128)


def positive(*shape):
    return torch.rand(*shape).cumsum(-1) * 10


LOGITS = torch.randn(40, 5)
LABELS = (torch.rand(40, 5) > 0.8).float()
ops = torchvision.ops
FLOATING = {
    "box_iou": lambda a, b: ops.box_iou(a, b),
    "box_iou in a format": lambda a, b: ops.box_iou(a, b, fmt="cxcywh"),
    "generalized_box_iou": lambda a, b: ops.generalized_box_iou(a, b),
    "distance_box_iou": lambda a, b: ops.distance_box_iou(a, b),
    "complete_box_iou": lambda a, b: ops.complete_box_iou(a, boxes2=b, eps=1e-6),
    "generalized_box_iou_loss": lambda a, b: ops.generalized_box_iou_loss(a, b, reduction="sum"),
    "distance_box_iou_loss": lambda a, b: ops.distance_box_iou_loss(a, b, "mean"),
    "complete_box_iou_loss": lambda a, b: ops.complete_box_iou_loss(a, b),
    "sigmoid_focal_loss": lambda a, b: ops.sigmoid_focal_loss(a - 6, b.sigmoid(), reduction="mean"),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FLOATING)
def test_overlaps_and_losses_match_torchvision(name, dtype):
    if dtype == torch.bfloat16 and not reference.clamp_has_zero_gradient_at_bound():
        pytest.skip("coarse numbers make boxes that just touch, where this PyTorch has a slope")
    a, b = positive(20, 4).to(dtype), positive(20, 4).to(dtype)

    def run():
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        result = FLOATING[name](x, y)
        result.sum().backward()
        return result, x.grad, y.grad

    unpatched, ran_unpatched = record_ops(run)
    with detops.patch_torchvision():
        patched, ran = record_ops(run)
    assert ran_unpatched == set() and (ran or dtype == torch.bfloat16)
    assert [t.dtype for t in patched] == [t.dtype for t in unpatched]
    torch.testing.assert_close(patched, unpatched, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda: ops.box_iou(BOXES.int(), BOXES.int()), False),
        (lambda: ops.box_iou(BOXES.expand(2, 3, 4), BOXES), True),
        (lambda: ops.box_iou(BOXES[:0], BOXES), True),
        (lambda: ops.masks_to_boxes(torch.eye(6).roll(1, 0)[None] > 0), True),
        pytest.param(
            lambda: ops.masks_to_boxes(torch.zeros(3, 5, 6)),
            True,
            marks=pytest.mark.skipif(
                TorchVersion(torchvision.__version__) < "0.26",
                reason="torchvision refuses an empty mask",
            ),
        ),
        (lambda: ops.masks_to_boxes(torch.zeros(3, 0, 6)), False),
        (lambda: ops.generalized_box_iou_loss(BOXES, BOXES[:1]), False),
        (lambda: ops.batched_nms(BOXES[:0], SCORES[:0], SCORES[:0], 0.5), False),
        (lambda: ops.nms(BOXES[:0], SCORES[:0], 0.5), True),
        (lambda: ops.roi_align(MAP, [BOXES[:0]], 2), True),
        (lambda: HOLDER.pooler(MAPS, [BOXES[:0]], [(32, 32)]), True),
    ],
)
def test_unusual_inputs_give_the_results_of_torchvision(call, ours):
    unpatched = call()
    with detops.patch_torchvision():
        patched, ran = record_ops(call)
    assert bool(ran) == ours and patched.dtype == unpatched.dtype
    torch.testing.assert_close(patched, unpatched)


def parameters(module, name):
    function = getattr(sys.modules[module], name)
    signatures = inspect.signature(function), inspect.signature(inspect.unwrap(function))
    return [[(p.name, p.kind, p.default) for p in s.parameters.values()] for s in signatures]


def test_patched_functions_keep_their_parameters():
    unpatched = {key: parameters(*key) for key in PATCHED_FUNCTIONS}
    with detops.patch_torchvision():
        assert {key: parameters(*key) for key in PATCHED_FUNCTIONS} == unpatched


MASKS = torch.eye(6).roll(1, 0)[None]
MAPPER = torchvision.ops.poolers.LevelMapper(0, 1)
KEYWORDS = {
    "_batched_nms_vanilla": dict(boxes=BOXES, scores=SCORES, idxs=torch.ones(3), iou_threshold=0.5),
    "_multiscale_roi_align": dict(
        x_filtered=[torch.rand(1, 1, 16, 16), torch.rand(1, 1, 8, 8)],
        boxes=[BOXES],
        output_size=(3, 3),
        sampling_ratio=2,
        scales=[1.0, 0.5],
        mapper=MAPPER,
    ),
    "paste_masks_in_image": dict(masks=MASKS[None], boxes=BOXES[:1], img_shape=(9, 9), padding=1),
    "masks_to_boxes": dict(masks=MASKS),
    "sigmoid_focal_loss": dict(inputs=LOGITS, targets=LABELS, gamma=2, reduction="sum"),
    **{
        f"{name}_box_iou_loss": dict(boxes1=BOXES, boxes2=BOXES.flip(0), reduction="mean", eps=1e-7)
        for name in ("generalized", "distance", "complete")
    },
    "box_iou": dict(boxes1=BOXES, boxes2=BOXES, fmt="xywh"),
    "generalized_box_iou": dict(boxes1=BOXES, boxes2=BOXES),
    "distance_box_iou": dict(boxes1=BOXES, boxes2=BOXES, eps=1e-7),
    "complete_box_iou": dict(boxes1=BOXES, boxes2=BOXES, eps=1e-7),
}


@pytest.mark.parametrize(
    ("module", "name"), PATCHED_FUNCTIONS, ids=[name for _, name in PATCHED_FUNCTIONS]
)
def test_patched_functions_accept_keywords(module, name):
    function = getattr(sys.modules[module], name)
    unpatched = function(**KEYWORDS[name])
    with detops.patch_torchvision():
        patched, ran = record_ops(lambda: function(**KEYWORDS[name]))
    assert ran or name == "paste_masks_in_image"  # this one calls no op
    torch.testing.assert_close(patched, unpatched)


@pytest.mark.slow
def test_patched_pooler_compiles():
    boxes = [random_boxes(5), random_boxes(3)]
    pooler = torchvision.ops.MultiScaleRoIAlign(["a", "b"], 3, 2)
    maps = {"a": torch.rand(2, 3, 32, 32), "b": torch.rand(2, 3, 16, 16)}
    expected = pooler(maps, boxes, [(128, 128)] * 2)
    with detops.patch_torchvision():
        compiled = torch.compile(
            lambda maps, boxes: pooler(maps, boxes, [(128, 128)] * 2),
            fullgraph=True,
            dynamic=True,
            backend="aot_eager",
        )
        for gradient in (False, True):
            x = {name: m.clone().requires_grad_(gradient) for name, m in maps.items()}
            with torch.set_grad_enabled(gradient):
                found, ran = record_ops(lambda x=x: compiled(x, boxes))
            assert "multiscale_roi_align" in ran
            torch.testing.assert_close(found, expected)
        gradients = torch.autograd.grad(found.sum(), list(x.values()))
    pooler(x, boxes, [(128, 128)] * 2).sum().backward()
    torch.testing.assert_close(gradients, tuple(m.grad for m in x.values()))


def test_pyramid_with_a_gap_uses_the_torchvision_levels():
    maps = {"a": torch.rand(1, 2, 32, 32), "b": torch.rand(1, 2, 8, 8)}
    boxes = [torch.tensor([[0.0, 0, 20, 20], [0, 0, 120, 120], [0, 0, 200, 200], [0, 0, 480, 480]])]

    def run():
        return torchvision.ops.MultiScaleRoIAlign(["a", "b"], 3, 2)(maps, boxes, [(512, 512)])

    try:
        unpatched = run()
    except Exception as error:
        unpatched = error
    with detops.patch_torchvision():
        torch.testing.assert_close(run(), unpatched)


def test_traces_contain_torchvision_ops():
    def traced():
        graph = torch.jit.trace(lambda a, b: box_iou(a, b), (BOXES, BOXES)).graph
        return {node.kind() for node in graph.nodes()}

    unpatched = traced()
    with detops.patch_torchvision():
        assert traced() == unpatched


def test_invalid_arguments_still_raise():
    with detops.patch_torchvision():
        with pytest.raises(ValueError, match="reduction"):
            ops.sigmoid_focal_loss(LOGITS, LABELS, reduction="x")
        with pytest.raises(RuntimeError, match="scores"):
            nms(BOXES, SCORES[:2], 0.5)
        with pytest.raises(TypeError):
            box_iou(BOXES)


# Ops of quantized tensors, and the CUDA version.
NOT_REPLACED = {"qnms", "qroi_align", "_cuda_version"}


def test_every_torchvision_op_is_replaced_or_listed():
    """A new op in a later torchvision fails this test."""
    names = torch._C._dispatch_get_all_op_names()
    theirs = {n.removeprefix("torchvision::") for n in names if n.startswith("torchvision::")}
    assert theirs - NOT_REPLACED <= set(KERNELS)


# Replaced by our kernels alone, or composed of ATen ops and unrelated to boxes and RoIs.
NOT_PATCHED = {
    *("nms", "batched_nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"),
    *("deform_conv2d", "box_area", "box_convert", "clip_boxes_to_image", "remove_small_boxes"),
    *("stochastic_depth", "drop_block2d", "drop_block3d"),
}


def test_every_torchvision_function_is_patched_or_listed():
    functions = {
        n for n in torchvision.ops.__all__ if inspect.isfunction(getattr(torchvision.ops, n))
    }
    assert functions - NOT_PATCHED <= {name for _, name in FUNCTIONS}
    assert functions >= NOT_PATCHED


def test_rotated_overlaps_match_torchvision():
    if not torch._C._dispatch_has_kernel("torchvision::box_iou_rotated"):
        pytest.skip("this torchvision has no rotated boxes")
    boxes = torch.rand(20, 5, generator=torch.Generator().manual_seed(0)) * 40 + 5
    for dtype in (torch.float32, torch.float64):
        inputs = boxes.to(dtype), (boxes + 1).to(dtype)
        expected = torchvision.ops.box_iou(*inputs, fmt="cxcywhr")
        with detops.patch_torchvision():
            found, ran = record_ops(
                lambda inputs=inputs: torchvision.ops.box_iou(*inputs, fmt="cxcywhr")
            )
        assert "box_iou_rotated" in ran
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
