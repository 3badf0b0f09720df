import math

import pytest
import reference_masks
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import detops

SHAPE = (37, 53)
BOXES = torch.tensor(
    [
        [5.3, 4.1, 30.9, 29.2],
        [-12.5, -7.25, 20.0, 15.5],  # over the first corner
        [40.1, 20.6, 70.0, 60.0],  # over the last
        [-100.0, -80.0, 140.0, 120.0],  # around the image
        [10.0, 10.0, 13.0, 12.0],  # smaller than the mask
        [20.2, 3.0, 20.9, 30.0],  # thinner than a pixel
        [60.0, 3.0, 90.0, 30.0],  # outside
        [54.0, 3.0, 84.0, 30.0],  # outside except for half a cell
        [0.0, 0.0, 53.0, 37.0],
    ]
)


def random_masks(count, height=7, width=9, seed=0):
    return torch.rand(count, height, width, generator=torch.Generator().manual_seed(seed))


def assert_matches(ours, values, threshold, tolerance=2e-6):
    """Asserts equality where rounding cannot decide."""
    is_decided = (values - threshold).abs() > tolerance
    assert is_decided.double().mean() > 0.99
    assert torch.equal(ours.cpu()[is_decided], (values >= threshold)[is_decided])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threshold", [0.5, 0.25, 0.9])
def test_pasted_masks_match_the_reference(device, isa, dtype, threshold):
    masks = random_masks(len(BOXES)).to(dtype)
    boxes = BOXES.to(dtype)
    ours = detops.paste_masks_in_image(masks.to(device), boxes.to(device), SHAPE, threshold)
    assert ours.dtype == torch.bool and ours.shape == (len(BOXES), *SHAPE)
    assert_matches(ours, reference_masks.paste(masks, boxes, *SHAPE), threshold)


def test_pasted_masks_match_grid_sample():
    masks = random_masks(len(BOXES), 28, 28)
    y = torch.arange(SHAPE[0]) + 0.5
    x = torch.arange(SHAPE[1]) + 0.5
    boxes = BOXES.double()
    y = (y - boxes[:, 1:2]) / (boxes[:, 3:] - boxes[:, 1:2]) * 2 - 1
    x = (x - boxes[:, :1]) / (boxes[:, 2:3] - boxes[:, :1]) * 2 - 1
    shape = (len(BOXES), *SHAPE)
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], -1)
    values = F.grid_sample(masks[:, None].double(), grid, align_corners=False)[:, 0]
    assert_matches(detops.paste_masks_in_image(masks[:, None], BOXES, SHAPE), values, 0.5)


def test_soft_masks_match_the_reference(device, isa):
    masks = random_masks(len(BOXES))
    soft = detops.paste_masks_in_image(masks.to(device), BOXES.to(device), SHAPE, -1)
    assert soft.dtype == torch.uint8
    exact = reference_masks.paste(masks, BOXES, *SHAPE).clamp(min=0) * 255
    is_decided = (exact - exact.round()).abs() > 1e-3
    assert torch.equal(soft.cpu()[is_decided], exact.to(torch.uint8)[is_decided])
    assert ((soft.cpu().double() - exact).abs() < 1 + 1e-3).all()


def test_soft_values_are_bounded(device, isa):
    for value, expected in ((2.0, 255), (1.0, 255), (-3.0, 0), (math.nan, 0), (math.inf, 255)):
        masks = torch.full((1, 3, 3), value, device=device)
        box = torch.tensor([[0.0, 0, 30, 30]], device=device)
        soft = detops.paste_masks_in_image(masks, box, (30, 30), -1)
        assert (soft[0, 8:22, 8:22] == expected).all()


def test_threshold_zero_sets_all_pixels_that_a_mask_reaches(device):
    masks = torch.zeros(len(BOXES), 7, 9)
    ours = detops.paste_masks_in_image(masks.to(device), BOXES.to(device), SHAPE, 0.0)
    reached = reference_masks.paste(masks, BOXES, *SHAPE) == 0
    assert torch.equal(ours.cpu(), reached)
    # The mask reaches exactly half a cell beyond its box.
    box = torch.tensor([[10.0, 10, 20, 20]], device=device)
    ours = detops.paste_masks_in_image(torch.zeros(1, 5, 5, device=device), box, (40, 40), 0.0)
    assert detops.masks_to_boxes(ours).tolist() == [[9, 9, 20, 20]]


def test_full_mask_sets_its_box(device, isa):
    """Away from the corners, a pixel is set if its centre lies in the box."""
    boxes = torch.tensor([[3.0, 5, 20, 30], [3.4, 5.6, 20.4, 30.6], [-5, -5, 8, 9]], device=device)
    ours = detops.paste_masks_in_image(torch.ones(3, 28, 28, device=device), boxes, (40, 50))
    assert detops.masks_to_boxes(ours).tolist() == [
        [3, 5, 19, 29],
        [3, 6, 19, 30],
        [0, 0, 7, 8],
    ]
    first = torch.zeros(40, 50, dtype=torch.bool)
    first[6:29, 4:19] = True
    assert ours[0].cpu()[first].all() and not ours[0].cpu()[31:].any()


def test_instruction_sets_set_the_same_pixels():
    masks, results = random_masks(40, 28, 28), []
    generator = torch.Generator().manual_seed(1)
    corner = torch.rand(40, 2, generator=generator) * 300 - 50
    boxes = torch.cat([corner, corner + torch.rand(40, 2, generator=generator) * 300], 1)
    for name in ("baseline", "avx2", "avx512"):
        try:
            detops._C.set_cpu_isa(name)
        except ValueError:
            continue
        results += [detops.paste_masks_in_image(masks, boxes, (321, 477), t) for t in (0.5, -1)]
    detops._C.set_cpu_isa("auto")
    for result in results[2:]:
        assert torch.equal(result, results[0 if result.dtype == torch.bool else 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(device, dtype):
    masks, boxes = random_masks(len(BOXES)).to(device), BOXES.to(device)
    half = masks.to(dtype)
    expected = detops.paste_masks_in_image(half.float(), boxes, SHAPE)
    assert torch.equal(detops.paste_masks_in_image(half, boxes, SHAPE), expected)
    expected = detops.paste_masks_in_image(masks, boxes.to(dtype).float(), SHAPE)
    assert torch.equal(detops.paste_masks_in_image(masks, boxes.to(dtype), SHAPE), expected)
    expected = detops.paste_masks_in_image(masks.double(), boxes.double(), SHAPE)
    assert torch.equal(detops.paste_masks_in_image(masks, boxes.double(), SHAPE), expected)


EXTREME_COORDINATES = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, 1e-40, 0.0, 5.0, 20.0]


def test_boxes_without_extent_give_zeros(device, isa):
    boxes = [[math.nan, 0, 9, 9], [0, 0, math.inf, 9], [-math.inf, 0, 9, 9], [9, 0, 3, 9]]
    boxes += [[4, 0, 4, 9], [0, 9, 9, 2], [-3e38, 0, 3e38, 9], [math.inf] * 4, [math.nan] * 4]
    boxes = torch.tensor(boxes, device=device)
    masks = torch.ones(len(boxes), 4, 4, device=device)
    for threshold in (0.5, 0.0, -1):
        assert not detops.paste_masks_in_image(masks, boxes, (12, 15), threshold).any()


@settings(max_examples=80)
@given(
    st.lists(st.sampled_from(EXTREME_COORDINATES), min_size=4, max_size=4),
    st.sampled_from([0.5, 0.0, -1]),
)
def test_malformed_boxes_do_not_affect_neighbouring_masks(sides, threshold):
    """Neighbouring masks keep their pixels, and the op writes only inside its output."""
    boxes = torch.tensor([[2.0, 2, 8, 8], sides, [2.0, 2, 8, 8]])
    masks = torch.ones(3, 5, 5)
    ours = detops.paste_masks_in_image(masks, boxes, (11, 13), threshold)
    single = detops.paste_masks_in_image(masks[:1], boxes[:1], (11, 13), threshold)
    assert torch.equal(ours[0], single[0]) and torch.equal(ours[2], single[0])
    if ours.dtype == torch.bool:
        assert ours.view(torch.uint8).max() <= 1
    neighbour = reference_masks.paste(masks[1:2], boxes[1:2].float(), 11, 13) >= max(threshold, 0)
    if max(map(abs, sides)) < 100:
        assert ((ours[1] > 0) == neighbour[0]).double().mean() > 0.9


def test_nan_in_a_mask_clears_only_pixels_that_sample_it(device):
    masks = torch.ones(1, 6, 6)
    masks[0, 2, 3] = math.nan
    box = torch.tensor([[0.0, 0, 30, 30]])
    ours = detops.paste_masks_in_image(masks.to(device), box.to(device), (30, 30)).cpu()
    values = reference_masks.paste(masks, box, 30, 30)
    # A pixel may be set or unset where the NaN has a weight of zero.
    touched = values.isnan()
    assert torch.equal(ours[~touched], (values >= 0.5)[~touched])


def test_layouts_give_the_same_pixels_and_empty_inputs_work(device):
    masks, boxes = random_masks(len(BOXES)).to(device), BOXES.to(device)
    expected = detops.paste_masks_in_image(masks, boxes, SHAPE)
    for other in (masks[:, None], masks.mT.contiguous().mT, masks.mT.contiguous().mT[:, None]):
        assert torch.equal(detops.paste_masks_in_image(other, boxes, SHAPE), expected)
    strided = boxes.t().contiguous().t()
    assert torch.equal(detops.paste_masks_in_image(masks, strided, SHAPE), expected)
    assert torch.equal(detops.paste_masks_in_image(masks[::2], boxes[::2], SHAPE), expected[::2])
    assert detops.paste_masks_in_image(masks[:0], boxes[:0], SHAPE).shape == (0, *SHAPE)
    assert detops.paste_masks_in_image(masks, boxes, (0, 5)).shape == (len(boxes), 0, 5)
    assert detops.paste_masks_in_image(masks, boxes, (5, 0)).shape == (len(boxes), 5, 0)


def test_two_threads_give_the_same_pixels(two_threads):
    masks = random_masks(3, 28, 28)
    boxes = torch.tensor([[-20.0, 10, 400, 500], [100, 3, 380, 90], [0, 0, 10, 10]])
    first, second = two_threads(lambda: detops.paste_masks_in_image(masks, boxes, (511, 397)))
    assert torch.equal(first, second) and first.any()


@pytest.mark.slow
def test_op_passes_opcheck_compiles_and_supports_vmap():
    masks = random_masks(len(BOXES))
    for threshold in (0.5, -1.0):
        torch.library.opcheck(
            torch.ops.detops.paste_masks_in_image.default, (masks, BOXES, *SHAPE, threshold)
        )
    expected = detops.paste_masks_in_image(masks, BOXES, SHAPE)
    compiled = torch.compile(
        detops.paste_masks_in_image, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    assert torch.equal(compiled(masks, BOXES, SHAPE), expected)
    batched = torch.vmap(lambda m, b: detops.paste_masks_in_image(m, b, SHAPE))(
        masks.view(3, 3, 7, 9), BOXES.view(3, 3, 4)
    )
    assert torch.equal(batched.flatten(0, 1), expected)


def test_pasted_masks_do_not_require_gradients():
    masks = random_masks(len(BOXES)).requires_grad_()
    assert not detops.paste_masks_in_image(masks, BOXES, SHAPE).requires_grad


M, B = torch.rand(2, 4, 4), torch.rand(2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((M[0], B, (5, 5)), r"masks must be \[N, h, w\] or \[N, 1, h, w\].*got \[4, 4\]"),
        ((M[:, None].expand(2, 3, 4, 4), B, (5, 5)), r"masks must be.*got \[2, 3, 4, 4\]"),
        ((M[:, :0], B, (5, 5)), r"masks must be.*h >= 1, w >= 1.*got \[2, 0, 4\]"),
        ((M.long(), B, (5, 5)), "masks must be float32.*got int64"),
        ((M, B[:, :3], (5, 5)), r"boxes must be \[2, 4\], got \[2, 3\]"),
        ((M, B.long(), (5, 5)), "boxes must be float32.*got int64"),
        ((M, B[:1], (5, 5)), r"boxes must be \[2, 4\], got \[1, 4\]"),
        ((M, B.to("meta"), (5, 5)), "boxes must be on the device of masks"),
        ((M, B, (-1, 5)), "image_shape must be at least 0 x 0, got -1 x 5"),
        ((M, B, (5, 5), math.nan), "threshold must be a number, got nan"),
    ],
)
def test_errors_name_the_bad_argument(arguments, message):
    with pytest.raises(RuntimeError, match=f"detops.paste_masks_in_image: {message}"):
        detops.paste_masks_in_image(*arguments)
