import pytest
import reference
import torch
import torchvision
from torchvision.models.detection.anchor_utils import AnchorGenerator as TorchvisionAnchors
from torchvision.models.detection.image_list import ImageList as TorchvisionImageList

import detops
from detops.modeling.backbone.fpn import FPN, LastLevelMaxPool, LastLevelP6P7
from detops.modeling.backbone.norm import FrozenBatchNorm2d, group_norm
from detops.modeling.balanced_sampler import BalancedSampler
from detops.modeling.image_list import to_image_list
from detops.modeling.matcher import Matcher
from detops.modeling.registry import Registry
from detops.modeling.roi_heads.box.inference import BoxPostProcessor
from detops.modeling.roi_heads.box.loss import BoxLoss, Sampled
from detops.modeling.rpn import AnchorGenerator, RPNHead
from detops.modeling.rpn.inference import ProposalSelector
from detops.modeling.rpn.loss import RPNLoss


def test_registry_finds_parts_and_rejects_unknown_names():
    registry = Registry("MODEL.PART")
    registry.register("b", "a")(dict)
    assert registry["a"] is dict and registry["b"] is dict
    with pytest.raises(ValueError, match="unknown MODEL.PART 'c'; known: a, b"):
        registry["c"]
    with pytest.raises(ValueError, match="'a' is already registered"):
        registry.register("a")(list)


def test_anchors_match_torchvision():
    sizes, ratios = ((32,), (64,), (120,)), (0.5, 1.0, 2.0)
    features = [torch.zeros(1, 1, 64 // s, 96 // s) for s in (4, 8, 16)]
    ours = torch.cat(AnchorGenerator(sizes, ratios, (4, 8, 16))(features))
    images = TorchvisionImageList(torch.zeros(1, 3, 64, 96), [(64, 96)])
    (theirs,) = TorchvisionAnchors(sizes, (ratios,) * 3)(images, features)
    assert torch.equal(ours, theirs)


def test_anchors_equal_hand_computed_ones():
    generator = AnchorGenerator([[4, 8]], [1.0], [10], straddle_thresh=0)
    (anchors,) = generator([torch.zeros(1, 1, 1, 2)])
    assert anchors.tolist() == [[-2, -2, 2, 2], [-4, -4, 4, 4], [8, -2, 12, 2], [6, -4, 14, 4]]
    assert generator.num_anchors() == [2]
    assert list(generator.state_dict()) == ["cell_anchors.0"]
    inside = torch.tensor([[0.0, 0, 9, 9], [-1, 0, 9, 9], [0, 0, 10, 9], [0, 0, 9, 10]])
    assert generator.visible(inside, (10, 10)).tolist() == [True, False, False, False]
    with pytest.raises(ValueError, match="expected 1 feature levels, got 2"):
        generator([torch.zeros(1, 1, 1, 1)] * 2)


def test_matcher_labels_boxes_by_iou():
    # Unit squares in a row: shifted by d they have an IoU of (1 - d) / (1 + d).
    def squares(*x):
        return torch.tensor([[v, 0.0, v + 1, 1.0] for v in x]).reshape(-1, 4)

    truth, boxes = squares(0.0, 10.0), squares(0.1, 0.4, 0.9, 5.0, 10.3)
    assert Matcher(0.7, 0.4)(truth, boxes).tolist() == [0, -2, -1, -1, -2]
    # The last box is the best match of the second ground truth.
    assert Matcher(0.7, 0.4, True)(truth, boxes).tolist() == [0, -2, -1, -1, 1]
    # All boxes tied for the best IoU match; a ground truth without overlap matches none.
    ties = squares(-0.75, 0.75, 0.8)
    assert Matcher(0.7, 0.4, True)(squares(0.0, 50.0), ties).tolist() == [0, 0, -1]
    assert Matcher(0.7, 0.4, True)(squares(), ties).tolist() == [-1, -1, -1]
    assert Matcher(0.7, 0.4, True)(truth, squares()).tolist() == []
    with pytest.raises(ValueError, match="expected 0 <= low <= high"):
        Matcher(0.3, 0.4)


def test_matcher_equals_the_rule_on_the_iou_matrix():
    truth = reference.random_boxes(30)
    boxes = torch.cat([reference.random_boxes(400), truth[:5] + torch.rand(5, 4)])
    iou = detops.box_iou(truth, boxes)
    best, match = iou.max(dim=0)
    expected = torch.where(best >= 0.7, match, torch.where(best >= 0.3, -2, -1))
    low_quality = ((iou == iou.amax(1, keepdim=True)) & (iou > 0)).any(0)
    expected = torch.where(low_quality, match, expected)
    assert torch.equal(Matcher(0.7, 0.3, True)(truth, boxes), expected)


def test_sampler_balances_positives_and_negatives():
    labels = torch.tensor([1] * 10 + [0] * 50 + [-1] * 20)
    positive, negative = BalancedSampler(32, 0.25)(labels)
    assert len(positive) == 8 and len(negative) == 24
    assert (labels[positive] == 1).all() and (labels[negative] == 0).all()
    small_sample = BalancedSampler(32, 0.5)(torch.tensor([1, 0, 0, -1]))
    assert [x.tolist() for x in small_sample] == [[0], [1, 2]]
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(torch.cat(BalancedSampler(16, 0.5)(labels)))
    assert torch.equal(*draws)


def test_removing_one_box_barely_changes_the_sample():
    corner = torch.rand(400, 2) * 300
    boxes = torch.cat([corner, corner + 10 + torch.rand(400, 2) * 90], 1)
    labels = (torch.rand(400) < 0.3).long()
    sampler = BalancedSampler(128, 0.5)

    def draw(kept, seed=5):
        generator = torch.Generator().manual_seed(seed)
        indices = torch.cat(sampler(labels[kept], generator, boxes[kept]))
        return {tuple(box) for box in boxes[kept][indices].tolist()}

    all_boxes = draw(torch.arange(400))
    assert len(all_boxes) == 128
    for removed in (0, 137, 399):
        assert len(all_boxes & draw(torch.arange(400) != removed)) >= 127
    assert len(all_boxes & draw(torch.arange(400), seed=6)) < 90
    # Every box is equally likely to be drawn.
    counts = torch.zeros(400)
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        counts[torch.cat(sampler(labels, generator, boxes))] += 1
    for label in (0, 1):
        mean = counts[labels == label].mean()
        expected = (mean * (1 - mean / 200)).sqrt()
        assert counts[labels == label].std() == pytest.approx(float(expected), rel=0.2)


def test_image_list_pads_images_to_one_size():
    batch = to_image_list([torch.ones(3, 5, 9), torch.ones(3, 7, 4)], 8)
    assert batch.tensors.shape == (2, 3, 8, 16) and batch.sizes == [(5, 9), (7, 4)]
    assert batch.tensors.is_contiguous(memory_format=torch.channels_last)
    assert batch.tensors.sum() == 3 * (45 + 28)


def test_frozen_batch_norm_equals_batch_norm_in_eval_mode():
    ours, theirs = FrozenBatchNorm2d(4), torch.nn.BatchNorm2d(4, eps=1e-30).eval()
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = torch.rand(4) + 0.5
        getattr(ours, name).copy_(value)
        getattr(theirs, name).data.copy_(value)
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(ours(x), theirs(x))
    assert not list(ours.parameters())


def test_group_norm_validates_its_arguments():
    assert group_norm(32, 8, -1, 1e-5).num_groups == 8
    assert group_norm(32, -1, 16, 1e-5).num_groups == 2
    with pytest.raises(ValueError, match="either NUM_GROUPS or DIM_PER_GP"):
        group_norm(32, 8, 16, 1e-5)
    with pytest.raises(ValueError, match="30 channels do not divide into 8 groups"):
        group_norm(30, 8, -1, 1e-5)


@pytest.mark.parametrize("top", ["none", "pool", "c5", "p5"])
def test_fpn_matches_torchvision(top):
    extra = torchvision.ops.feature_pyramid_network
    ours_top, theirs_top = {
        "none": (None, None),
        "pool": (LastLevelMaxPool(), extra.LastLevelMaxPool()),
        "c5": (LastLevelP6P7(24, 4), extra.LastLevelP6P7(24, 4)),
        "p5": (LastLevelP6P7(4, 4, use_c5=False), extra.LastLevelP6P7(4, 4)),
    }[top]
    ours = FPN([8, 16, 24], 4, first=2, top_blocks=ours_top)
    theirs = torchvision.ops.FeaturePyramidNetwork([8, 16, 24], 4, theirs_top)
    if top in ("c5", "p5"):
        theirs_top.load_state_dict(ours_top.state_dict())
    for i in range(3):
        theirs.inner_blocks[i][0].load_state_dict(getattr(ours, f"fpn_inner{i + 2}").state_dict())
        theirs.layer_blocks[i][0].load_state_dict(getattr(ours, f"fpn_layer{i + 2}").state_dict())
    maps = [torch.randn(1, c, s, s + 2) for c, s in ((8, 17), (16, 9), (24, 5))]
    expected = list(theirs({str(i): m for i, m in enumerate(maps)}).values())
    assert ours.levels == len(expected)
    for a, b in zip(ours(maps), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_proposals_equal_a_slow_loop():
    torch.manual_seed(0)
    anchors = [reference.random_boxes(60), reference.random_boxes(20)]
    logits = [torch.randn(2, len(a)) for a in anchors]
    deltas = [torch.randn(2, len(a), 4) * 0.3 for a in anchors]
    deltas[0][0, 5] = float("nan")
    sizes = [(80, 90), (60, 100)]
    select = ProposalSelector(detops.BoxCoder(), 30, 8, 12, False, 0.5, 3)
    for i, (found, found_scores) in enumerate(select(logits, deltas, anchors, sizes)):
        boxes, scores = [], []
        for a, s, d in zip(anchors, logits, deltas, strict=True):
            top = torch.sort(s[i], descending=True).indices[:30]
            b = detops.clip_boxes_to_image(detops.decode_boxes(d[i][top], a[top]), sizes[i])
            keep = torchvision.ops.remove_small_boxes(b, 3)
            b, s = b[keep], s[i][top][keep]
            keep = torchvision.ops.nms(b, s, 0.5)[:8]
            boxes.append(b[keep])
            scores.append(s[keep])
        order = torch.cat(scores).argsort(descending=True)[:12]
        torch.testing.assert_close(found, torch.cat(boxes)[order])
        assert torch.equal(found_scores, torch.cat(scores)[order])
    per_batch = ProposalSelector(detops.BoxCoder(), 30, 8, 12, True, 0.5, 3)
    assert sum(len(b) for b, _ in per_batch(logits, deltas, anchors, sizes)) == 12
    # With one level, the limit over all levels does not apply.
    single_level = ProposalSelector(detops.BoxCoder(), 30, 8, 2, True, 0.5, 3)
    single_level_result = single_level(logits[:1], deltas[:1], anchors[:1], sizes)
    assert [len(b) for b, _ in single_level_result] == [8, 8]


def test_detections_equal_a_slow_loop():
    torch.manual_seed(0)
    proposals = [reference.random_boxes(40), reference.random_boxes(0), reference.random_boxes(25)]
    sizes = [(90, 80), (50, 50), (70, 100)]
    logits, deltas = torch.randn(65, 4), torch.randn(65, 16)
    logits[3], deltas[7] = float("nan"), float("nan")
    coder = detops.BoxCoder((10.0, 10.0, 5.0, 5.0))
    results = BoxPostProcessor(coder, 0.2, 0.5, 20)(logits, deltas, proposals, sizes)
    start = 0
    for found, boxes, size in zip(results, proposals, sizes, strict=True):
        rows = slice(start, start + len(boxes))
        start += len(boxes)
        scores = logits[rows].softmax(1)
        decoded = coder.decode(deltas[rows], boxes).view(-1, 4, 4)
        expected = []
        for label in (1, 2, 3):
            b = detops.clip_boxes_to_image(decoded[:, label], size)
            selected = (scores[:, label] > 0.2) & (b[:, 2:] > b[:, :2]).all(1)
            b, s = b[selected], scores[selected, label]
            keep = torchvision.ops.nms(b, s, 0.5)
            expected += [(s[k].item(), label, *b[k].tolist()) for k in keep]
        expected = torch.tensor(sorted(expected, reverse=True)[:20]).view(-1, 6)
        rows = torch.cat([found["scores"][:, None], found["labels"][:, None], found["boxes"]], 1)
        torch.testing.assert_close(rows, expected)


def test_rpn_loss_equals_the_hand_computed_value():
    anchors = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30], [0, 0, 5, 10]])
    logits = torch.tensor([[0.5, -1.0, 3.0]], requires_grad=True)
    deltas = torch.zeros(1, 3, 4, requires_grad=True)
    visible = [torch.ones(3, dtype=torch.bool)]
    target = [{"boxes": torch.tensor([[1.0, 0, 11, 10]])}]
    loss = RPNLoss(Matcher(0.7, 0.3, True), BalancedSampler(256, 0.5), detops.BoxCoder())
    sample = loss.sample(anchors, visible, target)
    assert sample.anchors.tolist() == [0, 1] and sample.labels.tolist() == [1, 0]
    losses = loss(logits[0, sample.anchors], deltas[0, sample.anchors], sample)
    # The first is positive (IoU 9/11), the second negative, the third (4/11) is ignored.
    bce = torch.nn.functional.softplus(torch.tensor([-0.5, -1.0])).sum() / 2
    torch.testing.assert_close(losses["loss_objectness"], bce)
    # One delta of 0.1 lies in the quadratic part, below 1/9.
    expected = 0.5 * 0.1**2 * 9 / 2
    torch.testing.assert_close(losses["loss_rpn_box_reg"].item(), expected)


def test_rpn_head_at_some_anchors_equals_the_full_head():
    head = RPNHead(4, 3).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    maps = [torch.randn(2, 4, *size, dtype=torch.float64) for size in ((5, 7), (3, 4), (1, 1))]
    maps[0] = maps[0].contiguous(memory_format=torch.channels_last)
    for m in maps:
        m.requires_grad_()
    count = 2 * 3 * (5 * 7 + 3 * 4 + 1)
    for index in (torch.randperm(count), torch.tensor([3, 3, count - 1]), torch.zeros(0).long()):
        grad = torch.randn(len(index), 5)
        results = []
        for sparse in (True, False):
            if sparse:
                logits, deltas = head.at(maps, index)
            else:
                full_output = head(maps)
                logits = torch.cat(full_output[0], 1).flatten()[index]
                deltas = torch.cat(full_output[1], 1).flatten(0, 1)[index]
            found = torch.cat([logits[:, None], deltas], 1)
            gradients = torch.autograd.grad(found, [*maps, *head.parameters()], grad)
            results.append([found, *gradients])
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_gradient_of_some_anchors_is_deterministic(two_threads):
    head = RPNHead(64, 3)
    maps = [torch.randn(2, 64, 20, 20, requires_grad=True)]
    index = torch.randint(0, 2 * 3 * 20 * 20, (600,))

    def gradients():
        logits, deltas = head.at(maps, index)
        return torch.autograd.grad(logits.sum() + deltas.sum(), maps)[0]

    for _ in range(10):
        one, two = two_threads(gradients)
        assert torch.equal(two, gradients())
        torch.testing.assert_close(one, two)


def test_box_loss_equals_the_hand_computed_value():
    loss = BoxLoss(Matcher(0.5, 0.5), BalancedSampler(4, 0.5), detops.BoxCoder(), False)
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]])
    matched, truth = torch.tensor([[2.0, 0, 12, 10]]), torch.tensor([0])
    sampled = [Sampled(boxes, torch.tensor([2, 0]), matched, truth)]
    logits, deltas = torch.zeros(2, 3), torch.zeros(2, 12)
    deltas[0, 8] = 1.2  # class 2, dx; the target is 0.2
    losses = loss(logits, deltas, sampled)
    torch.testing.assert_close(
        losses["loss_classifier"].item(), torch.log(torch.tensor(3.0)).item()
    )
    torch.testing.assert_close(losses["loss_box_reg"].item(), 0.5 / 2)


def test_box_sampling_adds_the_ground_truth():
    torch.manual_seed(0)
    loss = BoxLoss(Matcher(0.5, 0.5), BalancedSampler(8, 0.5), detops.BoxCoder(), False)
    target = {"boxes": torch.tensor([[0.0, 0, 10, 10]]), "labels": torch.tensor([3])}
    sampled = loss.sample(torch.tensor([[40.0, 40, 50, 50]]), target)
    assert sampled.boxes.tolist() == [[0, 0, 10, 10], [40, 40, 50, 50]]
    assert sampled.labels.tolist() == [3, 0] and sampled.matched.tolist() == [[0, 0, 10, 10]]
    assert sampled.truth.tolist() == [0]
    positives = sampled.positives(torch.tensor([[5.0], [6.0]]))
    assert {k: v.tolist() for k, v in positives.items()} == {
        "boxes": [[0, 0, 10, 10]], "labels": [3], "truth": [0], "features": [[5]]
    }  # fmt: skip
    no_objects = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    assert loss.sample(torch.zeros(0, 4), no_objects).boxes.shape == (0, 4)
