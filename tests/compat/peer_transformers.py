"""Detectors of transformers with and without detops; test_compat_transformers.py runs this."""

import importlib
import sys

import pytest
import torch
import transformers as hf
from patched import record_ops

from detops.compat import provide
from detops.compat.transformers import FUNCTIONS, MATCHERS

SMALL = dict(d_model=32, encoder_layers=1, decoder_layers=2, num_queries=12)
HEADS = dict(encoder_attention_heads=4, decoder_attention_heads=4)
FFN = dict(encoder_ffn_dim=32, decoder_ffn_dim=32)


def resnet(cls=hf.ResNetConfig):
    return cls(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
        **({"layer_type": "basic"} if cls is not hf.ResNetConfig else {}),
    )


def swin():
    return hf.SwinConfig(
        embed_dim=12,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )


def deformable_detr(**options):
    config = hf.DeformableDetrConfig(backbone_config=resnet(), **SMALL, **HEADS, **FFN, **options)
    return hf.DeformableDetrForObjectDetection(config)


def two_stage():
    return deformable_detr(two_stage=True, with_box_refine=True, two_stage_num_proposals=12)


def rt(name, **options):
    def build():
        config = getattr(hf, f"{name}Config")(
            backbone_config=resnet(hf.RTDetrResNetConfig),
            encoder_in_channels=[16, 24, 32],
            encoder_hidden_dim=32,
            decoder_in_channels=[32, 32, 32],
            decoder_n_points=[4, 4, 4] if name == "DFine" else 4,
            num_denoising=0,
            **SMALL,
            **HEADS,
            **FFN,
            **options,
        )
        return getattr(hf, f"{name}ForObjectDetection")(config)

    return build


def segmenter(name, **options):
    def build():
        config = getattr(hf, f"{name}Config")(
            backbone_config=swin(),
            hidden_dim=32,
            mask_feature_size=32,
            feature_size=32,
            conv_dim=32,
            mask_dim=32,
            encoder_feedforward_dim=32,
            dim_feedforward=32,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=4,
            num_queries=12,
            **options,
        )
        return getattr(hf, f"{name}ForUniversalSegmentation")(config)

    return build


def grounding_dino(name):
    def build():
        text = dict(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=32,
            vocab_size=2000,
        )
        backbone = swin()
        backbone.out_features = ["stage2", "stage3", "stage4"]
        config = getattr(hf, f"{name}Config")(
            backbone_config=backbone, text_config=hf.BertConfig(**text), **SMALL, **HEADS, **FFN
        )
        return getattr(hf, f"{name}ForObjectDetection")(config)

    return build


MODELS = {
    "Deformable DETR": deformable_detr,
    "Deformable DETR, two stages": two_stage,
    "RT-DETR": rt("RTDetr"),
    "RT-DETRv2": rt("RTDetrV2"),
    "Mask2Former": segmenter("Mask2Former"),
    "OneFormer": segmenter("OneFormer", is_training=False),
    "Grounding DINO": grounding_dino("GroundingDino"),
    "MM Grounding DINO": grounding_dino("MMGroundingDino"),
}


def inputs(name):
    g = torch.Generator().manual_seed(1)
    model_inputs = {"pixel_values": torch.randn(2, 3, 96, 128, generator=g, dtype=torch.double)}
    if name == "OneFormer":
        model_inputs["task_inputs"] = torch.randint(0, 100, (2, 77), generator=g)
    if "Grounding" in name:
        tokens = torch.tensor([[101, 1037, 1012, 1039, 1012, 102]]).repeat(2, 1)
        model_inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        model_inputs["token_type_ids"] = torch.zeros_like(tokens)
    return model_inputs


def tensors(output):
    """Returns all floating tensors of a result."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    items = output.values() if isinstance(output, dict) else output
    if not isinstance(output, (dict, list, tuple)):
        return []
    return [t for item in items for t in tensors(item)]


@pytest.mark.parametrize("name", MODELS)
def test_detector_gives_the_same_outputs_and_gradients(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval().double()
    with torch.no_grad():
        for module in model.modules():  # initial offsets are whole pixels, where rounding decides
            if hasattr(module, "sampling_offsets"):
                module.sampling_offsets.weight.normal_(std=0.1)
    model_inputs = inputs(name)

    def run():
        model.zero_grad()
        output = tensors(model(**model_inputs).to_tuple())
        sum(t.cos().sum() for t in output).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return output, grads

    theirs = run()
    with provide("transformers"):
        ours, ran = record_ops(run)
    assert {"ms_deform_attn_forward", "ms_deform_attn_backward"} <= ran
    restored, ran = record_ops(run)
    assert not ran
    for a, b, tolerance in zip(ours, theirs, (1e-5, 1e-4), strict=True):
        assert len(a) == len(b) > 0
        largest = max(y.abs().max().item() for y in b)
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * largest)


def test_every_replaced_function_exists_and_is_restored():
    """Some modules are imported before the package is provided, some afterwards."""
    codes = {}
    with provide("transformers") as handle:
        for module, name in FUNCTIONS:
            function = importlib.import_module(module)
            for attribute in name.split("."):
                function = getattr(function, attribute)
            codes[module, name] = function
            assert "REPLACEMENTS" in function.__code__.co_names, (module, name)
        with handle:
            pass
    for key, function in codes.items():
        assert "REPLACEMENTS" not in function.__code__.co_names, key


@pytest.fixture(autouse=True)
def never_use_scipy(monkeypatch):
    """By default SciPy solves small matrices, because it is faster for them."""
    monkeypatch.setattr("detops.compat.assignment.MIN_COSTS", 0)


def detections(sizes=(3, 0, 7, 30), queries=20, classes=5):
    g = torch.Generator().manual_seed(0)
    outputs = {
        "logits": torch.randn(len(sizes), queries, classes, generator=g),
        "pred_boxes": torch.rand(len(sizes), queries, 4, generator=g) * 0.4 + 0.3,
    }
    targets = []
    for n in sizes:
        labels = torch.randint(classes, (n,), generator=g)
        boxes = torch.rand(n, 4, generator=g) * 0.4 + 0.3
        targets.append({"class_labels": labels, "boxes": boxes})
    return outputs, targets


def detr_matcher():
    matcher = importlib.import_module("transformers.loss.loss_for_object_detection")
    outputs, targets = detections()
    outputs["logits"][0, 3] = float("nan")  # transformers replaces such costs by the largest number
    return lambda: matcher.HungarianMatcher(1, 5, 2)(outputs, targets)


def deformable_detr_matcher():
    matcher = importlib.import_module("transformers.loss.loss_deformable_detr")
    arguments = detections()
    return lambda: matcher.DeformableDetrHungarianMatcher(1, 5, 2)(*arguments)


def rt_detr_matcher():
    matcher = importlib.import_module("transformers.loss.loss_rt_detr")
    arguments = detections()
    return lambda: matcher.RTDetrHungarianMatcher(hf.RTDetrConfig())(*arguments)


def lw_detr_matcher():
    matcher = importlib.import_module("transformers.loss.loss_lw_detr")
    arguments = detections(queries=39)
    return lambda: matcher.LwDetrHungarianMatcher(1, 5, 2)(*arguments, group_detr=3)


def mask2former_matcher():
    matcher = importlib.import_module("transformers.models.mask2former.modeling_mask2former")
    g = torch.Generator().manual_seed(0)
    sizes = (3, 7, 30)
    labels = [torch.randint(5, (n,), generator=g) for n in sizes]
    masks = [(torch.rand(n, 24, 32, generator=g) > 0.7).float() for n in sizes]
    found = torch.randn(3, 20, 12, 16, generator=g), torch.randn(3, 20, 5, generator=g)

    def run():
        torch.manual_seed(0)  # it samples points
        match = matcher.Mask2FormerHungarianMatcher(1.0, 5.0, 5.0, num_points=64)
        return match(*found, mask_labels=masks, class_labels=labels)

    return run


@pytest.mark.parametrize(
    "model",
    [detr_matcher, deformable_detr_matcher, rt_detr_matcher, lw_detr_matcher, mask2former_matcher],
)
def test_matcher_gives_the_same_matches(model):
    run = model()
    theirs = run()
    with provide("transformers"):
        ours, ran = record_ops(run)
    assert "linear_assignment" in ran
    restored, ran = record_ops(run)
    assert "linear_assignment" not in ran
    for found in (ours, restored):
        for a, b in zip(found, theirs, strict=True):
            assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("module", [module for module, _ in MATCHERS])
def test_every_matcher_calls_our_assignment(module):
    module = importlib.import_module(module)
    cost = torch.rand(12, 5)
    theirs, original = module.linear_sum_assignment(cost), module.linear_sum_assignment
    with provide("transformers"):
        for matrix in (cost, cost.numpy(), cost.tolist()):
            ours, ran = record_ops(lambda: module.linear_sum_assignment(matrix))  # noqa: B023
            assert "linear_assignment" in ran
            for a, b in zip(ours, theirs, strict=True):
                assert a.dtype == b.dtype and (a == b).all()
        maximized = module.linear_sum_assignment(cost, maximize=True)
        for a, b in zip(maximized, original(cost, maximize=True), strict=True):
            assert (a == b).all()
        for invalid, message in ((float("nan"), "invalid"), (float("inf"), "infeasible")):
            with pytest.raises(ValueError, match=message):
                module.linear_sum_assignment(torch.full((2, 2), invalid))
        partly_infeasible = torch.tensor([[1.0, float("inf")], [0, 5]])
        assert module.linear_sum_assignment(partly_infeasible)[1].tolist() == [0, 1]
        assert module.linear_sum_assignment(torch.ones(0, 3))[0].size == 0
    assert module.linear_sum_assignment is original


def test_transformers_also_patches_torchvision():
    import torchvision

    boxes = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9]])
    with provide("transformers"):
        _, ran = record_ops(lambda: torchvision.ops.nms(boxes, boxes[:, 0], 0.5))
    assert "nms" in ran and "torchvision" in sys.modules


@pytest.mark.parametrize("method", ["default", "discrete"])
def test_unsupported_attention_falls_back_to_transformers(method):
    from transformers.models.rt_detr_v2 import modeling_rt_detr_v2 as v2

    function = v2.multi_scale_deformable_attention_v2
    shapes = [(4, 5), (2, 3)]
    value = torch.randn(1, 26, 2, 4)
    for points in ([3, 1], [2, 2]):
        arguments = torch.rand(1, 7, 2, 4, 2), torch.rand(1, 7, 2, 4)
        theirs = function(value, shapes, *arguments, points, method)
        with provide("transformers"):
            ours, ran = record_ops(lambda: function(value, shapes, *arguments, points, method))  # noqa: B023
        torch.testing.assert_close(ours, theirs)
        assert bool(ran) == (points == [2, 2] and method == "default")
