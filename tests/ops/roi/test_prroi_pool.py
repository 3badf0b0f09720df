import reference_prroi_pool as reference
import torch
from cases_prroi_pool import CASES

import detops
from detops.bench.prroi_pool import plain_prroi_pool

CASE = CASES[0]


def test_short_bins_keep_precision(isa, device):
    x = CASE.tensors(device=device)["input"]
    box = torch.tensor([[0.0, 8.3, 6.1, 8.3005, 6.1005]], device=device)
    found = detops.prroi_pool(x, box, 1, 0.5)
    expected = reference.prroi_pool(x.detach().cpu(), box.double().cpu(), (1, 1), 0.5)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-3, atol=1e-3)


def test_benchmark_baseline_matches_prroi_pool():
    x, boxes = CASE.tensors(images=1).values()
    boxes = boxes[(boxes[:, 1:3] < boxes[:, 3:]).all(1)].detach()
    found = detops.prroi_pool(x, boxes, 7, 1 / 16)
    torch.testing.assert_close(found, plain_prroi_pool(x, boxes), rtol=1e-4, atol=1e-4)


def test_bilinear_surface_decays_to_zero_next_to_the_map(device):
    x = torch.ones(1, 1, 4, 4, device=device)
    boxes = torch.tensor([[0.0, -1, 0, 0, 1], [0, 3, 1, 4, 2], [0, 4, 0, 5, 1]], device=device)
    assert detops.prroi_pool(x, boxes, 1).flatten().tolist() == [0.5, 0.5, 0]
