"""Backbone bodies and box heads, compared with torchvision and with their formulas."""

from functools import partial

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import Bottleneck as TorchvisionBottleneck
from torchvision.models.resnet import ResNet as TorchvisionResNet
from torchvision.ops import FrozenBatchNorm2d as TorchvisionFrozenBatchNorm2d

from detops.modeling.backbone.deform_conv import DeformConv
from detops.modeling.backbone.norm import FrozenBatchNorm2d, group_norm
from detops.modeling.backbone.resnet import Bottleneck, ResNet, Stem, stack
from detops.modeling.poolers import Pooler
from detops.modeling.roi_heads.box import (
    BoxPredictor,
    FPN2MLPFeatureExtractor,
    FPNXconv1fcFeatureExtractor,
    ResNet50Conv5ROIFeatureExtractor,
)

GN = partial(group_norm, num_groups=2, dim_per_gp=-1, eps=1e-5)


def randomised(module, seed=0):
    """Randomises buffers and parameters: with ones and zeros a skipped one would go unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        noise = torch.rand(tensor.shape, generator=generator)
        tensor.copy_(0.5 + noise if "var" in name or tensor.dim() == 1 else (noise - 0.5) * 0.2)
    return module


@pytest.mark.parametrize(("groups", "width", "first_output"), [(1, 8, 0), (4, 4, 3)])
def test_resnet_body_matches_torchvision(groups, width, first_output):
    def block(inputs, outputs, stride, stage):
        return Bottleneck(
            inputs,
            outputs,
            stride,
            FrozenBatchNorm2d,
            width=groups * width * 2**stage,
            groups=groups,
            stride_in_1x1=False,
        )

    ours = ResNet(
        stem=Stem(64, FrozenBatchNorm2d),
        stem_channels=64,
        block=block,
        depths=(1, 2, 1, 1),
        stage_channels=256,
        first_output=first_output,
    )
    theirs = TorchvisionResNet(
        TorchvisionBottleneck,
        [1, 2, 1, 1],
        groups=groups,
        width_per_group=width,
        norm_layer=partial(TorchvisionFrozenBatchNorm2d, eps=0.0),
    )
    state = randomised(ours).state_dict()
    renamed = {name.removeprefix("stem."): tensor for name, tensor in state.items()}
    missing = theirs.load_state_dict(renamed, strict=False)
    assert missing.missing_keys == ["fc.weight", "fc.bias"] and not missing.unexpected_keys
    x = torch.randn(1, 3, 33, 47)
    y, expected = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x)))), []
    for i in range(1, 5):
        y = getattr(theirs, f"layer{i}")(y)
        expected.append(y)
    maps = ours(x)
    assert ours.out_channels == [256, 512, 1024, 2048][first_output:]
    for a, b in zip(maps, expected[first_output:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_1x1", [True, False])
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("deformable", [0, 1])
def test_bottleneck_strides_in_the_configured_convolution(in_1x1, dilation, deformable):
    block = Bottleneck(
        8, 16, 2, GN, width=4, stride_in_1x1=in_1x1, dilation=dilation, deformable_groups=deformable
    )
    conv2 = block.conv2.conv if deformable else block.conv2
    stride = 2 if dilation == 1 else 1
    assert block.conv1.stride == ((stride,) * 2 if in_1x1 else (1, 1))
    assert conv2.stride == ((1, 1) if in_1x1 else (stride,) * 2)
    assert conv2.dilation == conv2.padding == (dilation, dilation)
    assert block.downsample[0].stride == (stride, stride)
    assert block(torch.randn(1, 8, 9, 12)).shape == (1, 16, *((5, 6) if stride == 2 else (9, 12)))


def test_freeze_at_freezes_the_first_stages():
    def body(freeze_at):
        return ResNet(
            stem=Stem(4, GN),
            stem_channels=4,
            block=lambda i, o, s, stage: Bottleneck(i, o, s, GN, width=4),
            depths=(1, 1),
            stage_channels=4,
            freeze_at=freeze_at,
        )

    def trained(freeze_at):
        names = {n for n, p in body(freeze_at).named_parameters() if p.requires_grad}
        return {n.split(".")[0] for n in names}

    assert trained(-1) == trained(0) == {"stem", "layer1", "layer2"}
    assert trained(1) == {"layer1", "layer2"}
    assert trained(2) == {"layer2"}
    assert trained(9) == set()


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize(("groups", "deformable_groups"), [(1, 1), (2, 4)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_deformable_convolution_matches_torchvision(modulated, groups, deformable_groups, layout):
    torch.manual_seed(0)
    layer = DeformConv(
        8, 6, stride=2, dilation=2, groups=groups, deformable_groups=deformable_groups,
        modulated=modulated,
    )  # fmt: skip
    x = torch.randn(2, 8, 9, 11).to(memory_format=layout)
    # Initially the layer is a plain convolution; if modulated, half of one.
    undeformed = nn.functional.conv2d(x, layer.conv.weight, None, 2, 2, 2, groups)
    torch.testing.assert_close(
        layer(x), undeformed * (0.5 if modulated else 1.0), rtol=1e-4, atol=1e-5
    )
    nn.init.normal_(layer.offset.weight, std=0.2)
    nn.init.normal_(layer.offset.bias)
    plan = layer.offset(x)
    assert plan.shape[1] == deformable_groups * (27 if modulated else 18)
    split = 18 * deformable_groups
    mask = plan[:, split:].sigmoid() if modulated else None
    expected = torchvision.ops.deform_conv2d(
        x, plan[:, :split].contiguous(), layer.conv.weight, None, 2, 2, 2, mask
    )
    result = layer(x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    result.sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 0, name


BOXES = [torch.tensor([[0.0, 0, 90, 60], [30, 20, 70, 100]]), torch.tensor([[5.0, 8, 40, 31]])]
POOLER = {"sampling_ratio": 2, "scales": (1 / 16,)}


@pytest.mark.parametrize(("dilation", "size"), [(1, 3), (2, 6)])
def test_conv5_head_matches_its_formula(dilation, size):
    block = partial(Bottleneck, width=4, dilation=dilation)
    head = nn.Sequential()
    head.layer4 = stack(lambda i, o, s, stage: block(i, o, s, FrozenBatchNorm2d), 8, 16, 3, 3)
    extractor = ResNet50Conv5ROIFeatureExtractor(
        pooler=Pooler(6, **POOLER), head=randomised(head), stride=6 // size, out_channels=16
    )
    features = [torch.randn(2, 8, 7, 6)]
    pooled = torchvision.ops.roi_align(features[0], BOXES, 6, 1 / 16, 2)
    expected = head.layer4(pooled)
    result = extractor(features, BOXES)
    assert result.shape == (3, 16, size, size)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    predictor = randomised(BoxPredictor(16, 3))
    mean = expected.mean((2, 3))
    for found, layer in zip(predictor(result), ("cls_score", "bbox_pred"), strict=True):
        torch.testing.assert_close(found, getattr(predictor, layer)(mean), rtol=1e-4, atol=1e-4)
    assert predictor(extractor(features, [torch.zeros(0, 4)] * 2))[1].shape == (0, 12)


@pytest.mark.parametrize("norm", [None, GN])
def test_vector_feature_extractors_match_their_formulas(norm):
    features = [torch.randn(2, 4, 7, 6)]
    pooled = torchvision.ops.roi_align(features[0], BOXES, 3, 1 / 16, 2)
    mlp = FPN2MLPFeatureExtractor(
        in_channels=4, pooler=Pooler(3, **POOLER), hidden_features=6, norm=norm
    )
    expected = mlp.fc7(mlp.fc6(pooled.flatten(1)).relu()).relu()
    torch.testing.assert_close(mlp(features, BOXES), expected)
    xconv = FPNXconv1fcFeatureExtractor(
        in_channels=4, pooler=Pooler(3, **POOLER), conv_channels=6, num_convs=2, hidden_features=8,
        dilation=2, norm=norm,
    )  # fmt: skip
    x = pooled
    for conv in (m for m in xconv.xconvs if isinstance(m, nn.Conv2d)):
        x = nn.functional.conv2d(x, conv.weight, conv.bias, padding=2, dilation=2)
        x = (x if norm is None else nn.functional.group_norm(x, 2)).relu()
    expected = xconv.fc6(x.flatten(1)).relu()
    torch.testing.assert_close(xconv(features, BOXES), expected)
    assert (mlp.out_channels, xconv.out_channels) == (6, 8)
    for extractor in (mlp, xconv):
        extractor.train()
        empty = extractor(features, [torch.zeros(0, 4)] * 2)
        assert empty.shape == (0, extractor.out_channels)
        empty.sum().backward()
