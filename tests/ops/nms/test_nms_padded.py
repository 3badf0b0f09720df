import numpy as np
import pytest
import torch
from nms_inputs import mixed_case

import detops


def padded(indices, size):
    padded_indices = torch.full((max(size, len(indices)),), -1, dtype=torch.int64)
    padded_indices[: len(indices)] = indices
    return padded_indices[:size]


@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_nms_padded_equals_nms_with_padding(device, with_labels, dtype):
    rng = np.random.default_rng(0)
    for count in (0, 1, 40, 300, 700, 1500):
        boxes, scores = mixed_case(rng, count, dtype)
        labels = torch.from_numpy(rng.integers(0, 3, count))
        if with_labels:
            expected = detops.batched_nms(boxes, scores, labels, 0.5)
        else:
            expected = detops.nms(boxes, scores, 0.5)
        kept = len(expected)
        for limit in (None, 0, 1, kept // 2, max(0, kept - 1), kept, kept + 1, count, count + 300):
            keep, valid_count = detops.nms_padded(
                boxes.to(device),
                scores.to(device),
                0.5,
                max_output=limit,
                idxs=labels.to(device) if with_labels else None,
            )
            size = count if limit is None else limit
            assert torch.equal(keep.cpu(), padded(expected, size))
            assert (
                valid_count.shape == ()
                and valid_count.dtype == torch.int64
                and valid_count == min(kept, size)
            )
            assert keep.device.type == valid_count.device.type == device


def test_nms_padded_rejects_bad_size_and_labels():
    boxes, scores = torch.rand(3, 4), torch.rand(3)
    with pytest.raises(RuntimeError, match="nms_padded: max_output must be at least 0, got -2"):
        detops.nms_padded(boxes, scores, 0.5, -2)
    with pytest.raises(RuntimeError, match="nms_padded: idxs must be integers or bool, got float"):
        detops.nms_padded(boxes, scores, 0.5, idxs=scores)


@pytest.mark.slow
def test_compiled_nms_padded_matches_eager():
    def call(boxes, scores):
        keep, count = detops.nms_padded(boxes, scores, 0.5, 4)
        valid = torch.arange(4, device=boxes.device) < count
        return boxes[keep] * valid[:, None]

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 30):
        boxes, scores = mixed_case(np.random.default_rng(count), count)
        boxes = boxes.nan_to_num()
        assert torch.equal(compiled(boxes, scores), call(boxes, scores))
