import numpy as np
import pytest
import torch
from test_nms import odd_case

import detops


def padded(indices, size):
    whole = torch.full((max(size, len(indices)),), -1, dtype=torch.int64)
    whole[: len(indices)] = indices
    return whole[:size]


@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_nms_padded_is_nms_with_padding(device, with_labels, dtype):
    rng = np.random.default_rng(0)
    for count in (0, 1, 40, 300, 700, 1500):
        boxes, scores = odd_case(rng, count, dtype)
        labels = torch.from_numpy(rng.integers(0, 3, count))
        if with_labels:
            expected = detops.batched_nms(boxes, scores, labels, 0.5)
        else:
            expected = detops.nms(boxes, scores, 0.5)
        kept = len(expected)
        for limit in (None, 0, 1, kept // 2, max(0, kept - 1), kept, kept + 1, count, count + 300):
            keep, number = detops.nms_padded(
                boxes.to(device),
                scores.to(device),
                0.5,
                max_output=limit,
                idxs=labels.to(device) if with_labels else None,
            )
            size = count if limit is None else limit
            assert torch.equal(keep.cpu(), padded(expected, size))
            assert number.shape == () and number.dtype == torch.int64 and number == min(kept, size)
            assert keep.device.type == number.device.type == device


B, S, L = torch.rand(3, 4), torch.rand(3), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.nms_padded(B[:, :3], S, 0.5), r"boxes must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.nms_padded(B, S[:2], 0.5), "scores must be \\[3\\], got \\[2\\]"),
        (lambda: detops.nms_padded(B, S, float("nan")), "iou_threshold must be a number, got nan"),
        (lambda: detops.nms_padded(B, S, 0.5, -2), "max_output must be at least 0, got -2"),
        (
            lambda: detops.nms_padded(B, S, 0.5, idxs=S),
            "idxs must be integers or bool, got float32",
        ),
        (lambda: detops.nms_padded(B, S, 0.5, idxs=L[:1]), "idxs must be \\[3\\], got \\[1\\]"),
    ],
)
def test_nms_padded_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.nms_padded: {message}"):
        call()


@pytest.mark.slow
def test_nms_padded_passes_opcheck():
    torch.library.opcheck(torch.ops.detops.nms_padded.default, (B, S, L, 0.5, 2))
    torch.library.opcheck(torch.ops.detops.nms_padded.default, (B, S, None, 0.5, 5))


@pytest.mark.slow
def test_compiled_nms_padded_matches_eager():
    def call(boxes, scores):
        keep, count = detops.nms_padded(boxes, scores, 0.5, 4)
        valid = torch.arange(4, device=boxes.device) < count
        return boxes[keep] * valid[:, None]

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 30):
        boxes, scores = odd_case(np.random.default_rng(count), count)
        boxes = boxes.nan_to_num()
        assert torch.equal(compiled(boxes, scores), call(boxes, scores))
