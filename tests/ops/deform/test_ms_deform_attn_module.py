import math

import pytest
import reference
import torch
from test_ms_deform_attn import inputs
from torch import nn

import detops


def plain_module(module, query, points, maps, shapes, mask):
    """Computes the module of the paper with PyTorch ops."""
    n, q, _ = query.shape
    m, levels, p = module.n_heads, module.n_levels, module.n_points
    value = module.value_proj(maps)
    value = (value * ~mask[..., None]).view(n, -1, m, module.d_model // m)
    offsets = module.sampling_offsets(query).view(n, q, m, levels, p, 2)
    weights = module.attention_weights(query).view(n, q, m, levels * p).softmax(-1)
    if points.size(-1) == 2:
        sizes = torch.stack([shapes[:, 1], shapes[:, 0]], -1)
        sampling_locations = (
            points[:, :, None, :, None] + offsets / sizes[None, None, None, :, None]
        )
    else:
        sampling_locations = (
            points[:, :, None, :, None, :2] + offsets / p * points[:, :, None, :, None, 2:] / 2
        )
    weights = weights.view(n, q, m, levels, p)
    return module.output_proj(
        reference.ms_deform_attn(value, shapes, sampling_locations, weights).float()
    )


@pytest.mark.parametrize("coordinates", [2, 4])
def test_module_matches_plain_pytorch(device, coordinates):
    torch.manual_seed(0)
    module = detops.MultiScaleDeformableAttention(48, 4, 6, 3).to(device)
    names = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert names == {
        "sampling_offsets.weight": (144, 48), "sampling_offsets.bias": (144,),
        "attention_weights.weight": (72, 48), "attention_weights.bias": (72,),
        "value_proj.weight": (48, 48), "value_proj.bias": (48,),
        "output_proj.weight": (48, 48), "output_proj.bias": (48,),
    }  # fmt: skip
    nn.init.normal_(module.sampling_offsets.weight)
    nn.init.normal_(module.attention_weights.weight)
    _, shapes, starts, *_ = inputs(device=device)
    maps = torch.randn(2, 78, 48, device=device)
    query = torch.randn(2, 5, 48, device=device, requires_grad=True)
    points = torch.rand(2, 5, 4, coordinates, device=device)
    mask = torch.rand(2, 78, device=device) > 0.7
    ours = module(query, points, maps, shapes, starts, mask)
    theirs = plain_module(module, query, points, maps, shapes, mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    leaves = [query, *module.parameters()]
    for a, b in zip(
        torch.autograd.grad(ours.sum(), leaves), torch.autograd.grad(theirs.sum(), leaves),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert module(query, points, maps, shapes, starts).shape == (2, 5, 48)
    assert "n_points=3" in repr(module)


def test_module_is_initialized_as_in_the_paper():
    module = detops.MultiScaleDeformableAttention()
    assert (module.d_model, module.n_levels, module.n_heads, module.n_points) == (256, 4, 8, 4)
    bias = module.sampling_offsets.bias.detach().view(8, 4, 4, 2)
    # Eight directions on a square around the reference point; the square grows with every point.
    ring = [[1, 0], [1, 1], [0, 1], [-1, 1], [-1, 0], [-1, -1], [0, -1], [1, -1]]
    for point in range(4):
        expected = (point + 1) * torch.tensor(ring).float()[:, None].expand(8, 4, 2)
        torch.testing.assert_close(bias[:, :, point], expected)
    assert not module.sampling_offsets.weight.any()
    assert not any(p.any() for p in module.attention_weights.parameters())
    assert not module.value_proj.bias.any() and not module.output_proj.bias.any()
    limit = math.sqrt(6 / 512)
    for layer in (module.value_proj, module.output_proj):
        assert 0.95 * limit < layer.weight.abs().max() <= limit


def test_module_rejects_bad_arguments():
    for heads in (7, 0, -8):
        message = f"d_model must be divisible by n_heads, got 256 and {heads}"
        with pytest.raises(ValueError, match=message):
            detops.MultiScaleDeformableAttention(256, 4, heads)
    module = detops.MultiScaleDeformableAttention(16, 4, 2)
    _, shapes, starts, *_ = inputs()
    with pytest.raises(ValueError, match=r"reference_points must be .*, got \[2, 5, 4, 3\]"):
        module(torch.ones(2, 5, 16), torch.ones(2, 5, 4, 3), torch.ones(2, 78, 16), shapes, starts)
