import pytest
import reference
import torch
import torchvision
from torchvision.ops import roi_align as torchvision_roi_align

import detops

LAYOUTS = [torch.contiguous_format, torch.channels_last]
SCALES = [1 / 4, 1 / 8, 1 / 16, 1 / 32]


def pyramid(images, channels, image, layout=torch.contiguous_format, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(
            images, channels, image[0] // 2**i, image[1] // 2**i, generator=generator, dtype=dtype
        )
        .contiguous(memory_format=layout)
        .requires_grad_()
        for i in (2, 3, 4, 5)
    ]


def boxes_of_all_sizes(images, per_image, size):
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(images):
        corner = torch.rand(per_image, 2, generator=generator) * size
        side = size * 2 ** (-6 * torch.rand(per_image, 2, generator=generator))
        found.append(torch.cat([corner, corner + side], 1))
    return found


def level_by_level(maps, boxes, size, sampling_ratio, aligned):
    index = torch.cat([b.new_full((len(b), 1), i) for i, b in enumerate(boxes)])
    rois = torch.cat([index, torch.cat(boxes)], 1)
    levels = reference.roi_levels(rois[:, 1:], len(maps))
    out = maps[0].new_zeros(len(rois), maps[0].size(1), size, size)
    for level, (x, scale) in enumerate(zip(maps, SCALES, strict=True)):
        indices = torch.nonzero(levels == level).squeeze(1)
        pooled = torchvision_roi_align(x, rois[indices], size, scale, sampling_ratio, aligned)
        out = out.index_put((indices,), pooled)
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_multiscale_roi_align_matches_level_by_level_pooling(
    isa, device, layout, sampling_ratio, aligned
):
    maps = [m.to(device) for m in pyramid(2, 20, (256, 320), layout)]
    boxes = [b.to(device) for b in boxes_of_all_sizes(2, 60, 700)]
    ours = detops.multiscale_roi_align(maps, boxes, 7, SCALES, sampling_ratio, aligned)
    expected = level_by_level(maps, boxes, 7, sampling_ratio, aligned)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    grad = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(ours, maps, grad),
        torch.autograd.grad(expected, maps, grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


@pytest.mark.parametrize("image", [(256, 320), (416, 96), (96, 416)])
def test_module_matches_torchvision(image):
    names = ["a", "b", "c", "d"]
    maps = dict(zip(names, pyramid(2, 8, image), strict=True)) | {"pool": torch.zeros(2, 8, 1, 1)}
    boxes, shapes = boxes_of_all_sizes(2, 40, 300), [image, (image[0] - 3, image[1] - 7)]
    ours = detops.MultiScaleRoIAlign(names, 7, 2)(maps, boxes, shapes)
    theirs = torchvision.ops.MultiScaleRoIAlign(names, 7, 2)(maps, boxes, shapes)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_module_infers_scales_on_every_call():
    # The image is narrow: rounding by the strides distorts its shorter side most.
    module = detops.MultiScaleRoIAlign(["a"], 2, 2)
    for stride in (4, 8):
        x = torch.randn(1, 2, 800 // stride, -(-50 // stride))
        boxes = [torch.tensor([[4.0, 100, 40, 700]])]
        expected = detops.roi_align(x, boxes, 2, 1 / stride, 2)
        assert torch.equal(module({"a": x}, boxes, [(800, 50)]), expected)
    with pytest.raises(ValueError, match=r"x must contain one of \['a'\], got \['b'\]"):
        module({"b": x}, boxes, [(800, 50)])


def test_box_size_selects_the_level():
    # Every feature map holds its level number and contains every box.
    maps = [torch.full((1, 1, 512 >> i, 512 >> i), float(i)) for i in range(4)]
    sides = [1.0, 111.9, 112, 223.9, 224, 447.9, 448, 895.9, 896]
    boxes = [torch.tensor([[0.0, 0, side, side] for side in sides])]
    pooled = detops.multiscale_roi_align(maps, boxes, 1, SCALES, 1)
    assert pooled.flatten().tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert pooled.flatten().tolist() == reference.roi_levels(boxes[0], 4).tolist()


M, R = torch.zeros(1, 2, 4, 4), torch.zeros(3, 5)


@pytest.mark.parametrize(
    ("maps", "scales", "message"),
    [
        ([], [], "inputs must hold 1 to 16 feature maps, got 0"),
        ([M, M], [0.5], "spatial_scales must have one entry per feature map .2., got 1"),
        ([M, M.double()], [0.5, 0.25], "inputs must share one dtype .float32., got float64"),
        ([M, M[:, :1]], [0.5, 0.25], r"inputs must be \[1, 2, _, _\], got \[1, 1, 4, 4\]"),
        ([M, M[0]], [0.5, 0.25], r"inputs must be \[1, 2, _, _\], got \[2, 4, 4\]"),
        ([M], [-1.0], "spatial_scales must be positive"),
    ],
)
def test_multiscale_roi_align_rejects_bad_input(maps, scales, message):
    with pytest.raises(RuntimeError, match=f"detops.multiscale_roi_align: {message}"):
        detops.multiscale_roi_align(maps, R, 2, scales)
    rois = R.clone()
    rois[2, 0] = 1
    with pytest.raises(RuntimeError, match=r"detops.multiscale_roi_align: boxes\[2, 0\]"):
        detops.multiscale_roi_align([M], rois, 2, [1.0])
