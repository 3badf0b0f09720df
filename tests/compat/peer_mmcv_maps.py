"""Feature map functions of mmcv on detops; test_compat_mmcv.py runs this in its own process."""

import pytest
import reference as reference_ops
import reference_mmcv as reference
import torch
import torchvision
from peer_mmcv_inputs import close, random, random_boxes
from reference_deform_conv2d import deform_conv2d as deform_conv2d_reference

import detops

ops = pytest.importorskip("mmcv.ops")

ROIS = torch.tensor([[0.0, 2, 3, 11, 14], [1, -3, 0.4, 30, 6.6], [0, 5, 5, 5.5, 5.2]])


@pytest.mark.parametrize("aligned", [None, True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_matches_torchvision(aligned, sampling_ratio):
    x = random(2, 3, 10, 12).requires_grad_()
    y = x.detach().clone().requires_grad_()
    choice = {} if aligned is None else {"aligned": aligned}
    layer = ops.RoIAlign((3, 4), 0.5, sampling_ratio, **choice)
    ours = layer(x, ROIS)
    theirs = torchvision.ops.roi_align(y, ROIS, (3, 4), 0.5, sampling_ratio, aligned is not False)
    close(ours, theirs)
    ours.cos().sum().backward()
    theirs.cos().sum().backward()
    close(x.grad, y.grad)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_max_roi_align_matches_the_reference(aligned, sampling_ratio):
    x = random(2, 3, 10, 12).double().requires_grad_()
    layer = ops.RoIAlign((3, 4), 0.5, sampling_ratio, "max", aligned)
    ours = layer(x, ROIS.double())
    args = (ROIS.double(), (3, 4), 0.5, sampling_ratio, aligned)
    expected, grad = reference.roi_align_max(x.detach(), *args, lambda value: -value.sin())
    close(ours, expected, 1e-9)
    ours.cos().sum().backward()
    close(x.grad, grad, 1e-9)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_rotated_matches_the_reference(aligned, clockwise, sampling_ratio):
    x = random(2, 2, 10, 12).requires_grad_()
    rois = torch.tensor(
        [[0.0, 9, 8, 12, 6, 0.7], [1, 20, 4, 9, 15, -2.5], [0, 6, 6, 0.5, 0.4, 1.0]]
    )
    bins = ((3, 2), 0.5, sampling_ratio, aligned, clockwise)
    ours = ops.RoIAlignRotated(*bins)(x, rois)
    close(ours, reference.roi_align_rotated(x.detach(), rois, *bins), 1e-4)
    ours.cos().sum().backward()
    # The op is linear in the feature map: <grad, x> is the derivative along x.
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("samples", [0, 2])
def test_riroi_align_rotated_matches_the_reference(clockwise, samples):
    x = random(2, 8, 10, 12).requires_grad_()
    rois = torch.tensor(
        [[0.0, 9, 8, 12, 6, 0.7], [1, 20, 4, 9, 15, -2.5], [0, 6, 6, 0.5, 0.4, 1.0]]
    )
    bins = ((3, 2), 0.5, samples, 4, clockwise)
    ours = ops.RiRoIAlignRotated(*bins)(x, rois)
    close(ours, reference.riroi_align_rotated(x.detach(), rois, *bins), 1e-4)
    ours.cos().sum().backward()
    # The op is linear in the feature map: <grad, x> is the derivative along x.
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


@pytest.mark.parametrize("points", [1, 5])
def test_rotated_feature_align_matches_the_reference(points):
    x = random(2, 3, 6, 7).requires_grad_()
    g = torch.Generator().manual_seed(1)
    size = torch.tensor([48.0, 56, 30, 20, 6])
    boxes = torch.rand(2, 6, 7, 5, generator=g) * size - torch.tensor([4.0, 4, 0, 0, 3])
    ours = ops.rotated_feature_align(x, boxes, 1 / 8, points)
    expected = reference.rotated_feature_align(x.detach(), boxes, 1 / 8, points)
    close(ours, expected, 1e-4)
    ours.cos().sum().backward()
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


def test_active_rotated_filter_matches_the_reference():
    x = random(3, 2, 4, 3, 3).requires_grad_()
    g = torch.Generator().manual_seed(1)
    permutations = torch.stack([torch.randperm(36, generator=g) + 1 for _ in range(8)], 1)
    indices = permutations.to(torch.int32).view(4, 3, 3, 8)
    ours = ops.active_rotated_filter(x, indices)
    close(ours, reference.active_rotated_filter(x.detach(), indices), 0)
    ours.cos().sum().backward()
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


def test_roi_pool_matches_the_reference():
    x = random(2, 3, 10, 12)
    x[0, 0, 4:8] = 0.25  # the first of equal maxima counts
    rois = torch.cat(
        [ROIS, torch.tensor([[1.0, 8, 8, 2, 2], [0, 40, 40, 50, 50], [0, 0, 0, 23, 19]])]
    )
    expected, argmax = reference.roi_pool(x, rois, (3, 4), 0.5)
    x.requires_grad_()
    ours = ops.RoIPool((3, 4), 0.5)(x, rois)
    assert torch.equal(ours, expected)
    ours.backward(torch.ones_like(ours))
    count = torch.zeros(2, 3, 120)
    for k, c, i, j in torch.cartesian_prod(*map(torch.arange, expected.shape)).tolist():
        written = k != 3  # an inverted box keeps the zeros of mmcv's buffer
        if written and argmax[k, c, i, j] >= 0:
            count[int(rois[k, 0]), c, argmax[k, c, i, j]] += 1
    count[1, :, 0] += 12  # so its argmax is pixel 0, as in mmcv
    assert torch.equal(x.grad.flatten(2), count)
    assert ops.roi_pool(x, rois[:0], (3, 4), 0.5).shape == (0, 3, 3, 4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 2.0, 1.5])
def test_focal_losses_match_the_reference(weighted, gamma):
    x = random(9, 4, scale=3).double().requires_grad_()
    y = x.detach().clone().requires_grad_()
    weight = torch.tensor([0.5, 2, 1, 3], dtype=torch.double) if weighted else None
    target = torch.tensor([0, 1, 2, 3, 4, 4, 0, 3, 2])
    for kind in ("sigmoid", "softmax"):
        t = target if kind == "sigmoid" else target.where(target < 4, -1)
        if kind == "softmax" and weighted:
            t = target % 4  # for an ignored class, mmcv reads a weight that does not exist
        loss = getattr(reference, f"{kind}_focal_loss")(y, t, gamma, 0.3, weight)
        function = getattr(ops, f"{kind}_focal_loss")
        close(function(x, t, gamma, 0.3, weight, "none"), loss, 1e-6)
        close(function(x, t, gamma, 0.3, weight, "sum"), loss.sum(), 1e-6)
        if kind == "softmax":
            ours = detops.softmax_focal_loss(x.detach(), t, 0.3, gamma, weight)
            close(ours, loss.detach(), 1e-6)
        mean = function(x, t, gamma, 0.3, weight)  # over the rows
        close(mean, loss.sum() / 9, 1e-6)
        x.grad = y.grad = None
        mean.backward()
        (loss.sum() / 9).backward()
        close(x.grad, y.grad, 1e-6)


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("images", [1, 3])
def test_deform_conv2d_matches_the_reference(modulated, images):
    x, weight = random(images, 4, 7, 8), random(6, 2, 3, 3, seed=1)
    offset, mask = random(images, 2 * 18, 4, 4, seed=2), random(images, 2 * 9, 4, 4, seed=3)
    bias = random(6, seed=4)
    tensors = [x, offset, mask, weight, bias] if modulated else [x, offset, weight]
    theirs = [t.clone().requires_grad_() for t in tensors]
    ours = [t.requires_grad_() for t in tensors]
    window = ((2, 2), (1, 1), (1, 1))
    function = ops.modulated_deform_conv2d if modulated else ops.deform_conv2d
    result = function(*ours, *window, 2, 2)
    if modulated:
        a, o, m, w, b = theirs
        expected = deform_conv2d_reference(a, o, w, b, *window, mask=m, edge_gradient=False)
    else:
        a, o, w = theirs
        expected = deform_conv2d_reference(a, o, w, None, *window, edge_gradient=False)
    close(result, expected, 1e-4)
    result.cos().sum().backward()
    expected.cos().sum().backward()
    for ours_t, theirs_t in zip(ours, theirs, strict=True):
        close(ours_t.grad, theirs_t.grad, 1e-4)


def test_offset_larger_than_the_output_is_read_in_memory_order():
    """DyHead passes the offset of the full feature map to a convolution of stride 2."""
    x, weight = random(2, 3, 8, 8), random(5, 3, 3, 3, seed=1)
    offset_and_mask = random(2, 27, 8, 8, seed=2).requires_grad_()
    offset, mask = offset_and_mask[:, :18], offset_and_mask[:, 18:].sigmoid()
    result = ops.modulated_deform_conv2d(x, offset, mask, weight, None, 2, 1)
    assert result.shape == (2, 5, 4, 4)
    reference_input = offset_and_mask.detach().clone().requires_grad_()
    rows = [
        tensor.reshape(2, -1)[:, : planes * 16].view(2, planes, 4, 4)
        for tensor, planes in (
            (reference_input[:, :18], 18),
            (reference_input[:, 18:].sigmoid(), 9),
        )
    ]
    expected = deform_conv2d_reference(
        x, rows[0], weight, None, (2, 2), (1, 1), mask=rows[1], edge_gradient=False
    )
    close(result, expected, 1e-4)
    result.cos().sum().backward()
    expected.cos().sum().backward()
    assert (reference_input.grad == 0).any()
    close(offset_and_mask.grad, reference_input.grad, 1e-4)
    with pytest.raises(RuntimeError, match="must have 18 planes of 8 x 8"):
        ops.modulated_deform_conv2d(x, offset[..., :4], mask, weight, None, 1, 1)


@pytest.mark.parametrize("function", ["compiled", "python"])
def test_multi_scale_deformable_attention_matches_reference(function):
    """This includes the Python loop that mmcv runs on a CPU."""
    from mmcv.ops import multi_scale_deform_attn as mmcv_attention

    shapes = torch.tensor([[4, 5], [2, 3]])
    start = torch.tensor([0, 20])
    tensors = [random(2, 26, 2, 4), torch.rand(2, 7, 2, 2, 3, 2), torch.rand(2, 7, 2, 2, 3)]
    first = [t.clone().requires_grad_() for t in tensors]
    second = [t.clone().requires_grad_() for t in tensors]
    if function == "compiled":
        attend = mmcv_attention.MultiScaleDeformableAttnFunction.apply
        result = attend(first[0], shapes, start, *first[1:], 64)
    else:
        result = mmcv_attention.multi_scale_deformable_attn_pytorch(first[0], shapes, *first[1:])
    assert "REPLACEMENTS" in mmcv_attention.multi_scale_deformable_attn_pytorch.__code__.co_names
    expected = reference_ops.ms_deform_attn(second[0], shapes, *second[1:])
    close(result, expected)
    result.cos().sum().backward()
    expected.cos().sum().backward()
    for a, b in zip(first, second, strict=True):
        close(a.grad, b.grad, 1e-4)


def test_compiler_versions_are_reported():
    assert ops.get_compiler_version().startswith("detops ")
    assert ops.get_compiling_cuda_version()


def test_carafe_matches_the_unfolded_sum():
    features, masks = random(2, 6, 5, 4).requires_grad_(), random(2, 18, 10, 8, seed=1)
    masks = masks.softmax(1).requires_grad_()
    grad = random(2, 6, 10, 8, seed=2)
    ours = torch.autograd.grad(ops.carafe(features, masks, 3, 2, 2), (features, masks), grad)
    neighbours = torch.nn.functional.unfold(features, 3, padding=1).view(2, 2, 3, 9, 5, 4)
    larger = neighbours.repeat_interleave(2, -2).repeat_interleave(2, -1)
    expected = (larger * masks.view(2, 2, 1, 9, 10, 8)).sum(3).flatten(1, 2)
    close(ops.carafe(features, masks, 3, 2, 2), expected)
    for a, b in zip(ours, torch.autograd.grad(expected, (features, masks), grad), strict=True):
        close(a, b)


@pytest.mark.parametrize("padding", [0, 1, (2, 1)])
def test_masked_conv2d_matches_the_masked_convolution(padding):
    x, weight, bias = random(1, 3, 9, 7), random(4, 3, 3, 3, seed=1), random(4, seed=2)
    full = torch.nn.functional.conv2d(x, weight, bias, padding=padding)
    mask = torch.zeros(1, 9, 7)
    height, width = min(full.size(2), 9), min(full.size(3), 7)
    mask[0, :height, :width] = random(height, width, seed=3)
    kept = torch.zeros(full.shape[2:], dtype=torch.bool)
    kept[:height, :width] = mask[0, :height, :width] > 0
    close(ops.masked_conv2d(x, mask, weight, bias, padding), full * kept)
    assert not ops.masked_conv2d(x, -mask.abs(), weight, bias, padding).any()


def test_border_align_matches_the_reference():
    x = random(2, 12, 7, 6).double().requires_grad_()
    boxes = random_boxes(8).view(2, 4, 4).double() / 8
    ours = ops.border_align(x, boxes, 4)
    expected, grad = reference.border_align(x.detach(), boxes, 4, lambda value: -value.sin())
    close(ours, expected, 1e-9)
    ours.cos().sum().backward()
    close(x.grad, grad, 1e-9)


def test_prroi_pool_matches_the_reference():
    x, rois = random(2, 3, 10, 12).requires_grad_(), ROIS.clone().requires_grad_()
    ours = ops.PrRoIPool((3, 4), 0.5)(x, rois)
    close(ours, reference.prroi_pool(x.detach(), ROIS, (3, 4), 0.5), 1e-4)
    grad = random(*ours.shape, seed=1)
    to_x, to_rois = torch.autograd.grad(ours, (x, rois), grad)
    # The op is linear in the feature map; boxes need finite differences of the reference.
    close((to_x * x).sum(), (grad * ours).sum(), 1e-4)
    assert not to_rois[:, 0].any()
    for k, column in torch.cartesian_prod(torch.arange(3), torch.arange(1, 5)).tolist():
        shifted = [ROIS.double(), ROIS.double()]
        for sign, boxes in zip((1, -1), shifted, strict=True):
            boxes[k, column] += sign * 1e-4
        high, low = (reference.prroi_pool(x.detach(), boxes, (3, 4), 0.5) for boxes in shifted)
        close(to_rois[k, column], ((high - low) * grad).sum() / 2e-4, 1e-3)


def test_deform_roi_pool_matches_shifted_roi_align():
    x = random(2, 3, 12, 10).requires_grad_()
    boxes = random_boxes(4)
    rois = torch.cat([torch.tensor([0.0, 1, 0, 1])[:, None], boxes / 5], 1)
    without_offset = ops.deform_roi_pool(x, rois, None, (3, 2), 0.9, 2)
    close(without_offset, torchvision.ops.roi_align(x, rois, (3, 2), 0.9, 2, aligned=True))
    # The same offset in every bin moves the whole RoI.
    offset = torch.tensor([0.3, -0.2]).view(1, 2, 1, 1).expand(4, 2, 3, 2).clone()
    size = rois[:, 3:] - rois[:, 1:3]
    shifted = rois.clone()
    shifted[:, 1:] += (size * 0.1 * torch.tensor([0.3, -0.2])).repeat(1, 2)
    expected = torchvision.ops.roi_align(x, shifted, (3, 2), 0.9, 2, aligned=True)
    pooled = ops.deform_roi_pool(x, rois, offset.requires_grad_(), (3, 2), 0.9, 2, 0.1)
    close(pooled, expected, 1e-4)
    grad = random(4, 3, 3, 2, seed=5)
    to_x, to_offset = torch.autograd.grad(pooled, (x, offset), grad)
    close(to_x, torch.autograd.grad(expected, x, grad)[0], 1e-4)
    assert to_offset.abs().sum() > 0
