"""Names and shapes of maskrcnn-benchmark parameters, derived from its naming rules."""

BLOCKS = {"R-50": (3, 4, 6, 3), "R-101": (3, 4, 23, 3)}
PYRAMID_ANCHORS = [(3, 4)] * 5


def layer(name, shape, bias=False):
    """Returns the entries of a convolution or linear layer."""
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if bias else {})


def norm(name, channels, group_norm):
    """Returns two entries for a group norm, four for a frozen batch norm."""
    entries = ["weight", "bias"] + ([] if group_norm else ["running_mean", "running_var"])
    return {f"{name}.{e}": (channels,) for e in entries}


def deformable(name, channels, modulated, groups):
    """Returns the entries of a deformable 3x3 convolution."""
    offset_channels = groups * (27 if modulated else 18)
    return layer(f"{name}.offset", (offset_channels, channels, 3, 3), bias=True) | layer(
        f"{name}.conv", (channels, channels, 3, 3)
    )


def stage(name, index, blocks, inputs, *, width=64, groups=1, gn=False, dcn=None):
    """Returns one of ``layer1`` to ``layer4``; ``dcn`` is (modulated, groups) if deformable."""
    outputs, width = 256 * 2 ** (index - 1), width * groups * 2 ** (index - 1)
    state = {}
    for i in range(blocks):
        block = f"{name}layer{index}.{i}"
        if i == 0:
            state |= layer(f"{block}.downsample.0", (outputs, inputs, 1, 1))
            state |= norm(f"{block}.downsample.1", outputs, gn)
        state |= layer(f"{block}.conv1", (width, inputs, 1, 1)) | norm(f"{block}.bn1", width, gn)
        if dcn:
            state |= deformable(f"{block}.conv2", width, *dcn)
        else:
            state |= layer(f"{block}.conv2", (width, width // groups, 3, 3))
        state |= norm(f"{block}.bn2", width, gn) | norm(f"{block}.bn3", outputs, gn)
        state |= layer(f"{block}.conv3", (outputs, width, 1, 1))
        inputs = outputs
    return state


def body(name, stages, dcn=(None,) * 4, gn=False, **kind):
    """Returns the stem and the stages."""
    prefix = "backbone.body."
    state = layer(f"{prefix}stem.conv1", (64, 3, 7, 7)) | norm(f"{prefix}stem.bn1", 64, gn)
    inputs = 64
    for i, blocks in enumerate(BLOCKS[name][:stages], start=1):
        state |= stage(prefix, i, blocks, inputs, gn=gn, dcn=dcn[i - 1], **kind)
        inputs = 256 * 2 ** (i - 1)
    return state


def pyramid(first=1, gn=False):
    """Returns laterals and outputs of the stages from ``first`` on."""
    state = {}
    for i in range(first, 5):
        for name, shape in (("inner", (256, 128 * 2**i, 1, 1)), ("layer", (256, 256, 3, 3))):
            prefix = f"backbone.fpn.fpn_{name}{i}"
            if gn:
                state |= layer(f"{prefix}.0", shape) | norm(f"{prefix}.1", 256, True)
            else:
                state |= layer(prefix, shape, bias=True)
    return state


def top(inputs):
    """Returns P6 and P7."""
    return layer("backbone.fpn.top_blocks.p6", (256, inputs, 3, 3), bias=True) | layer(
        "backbone.fpn.top_blocks.p7", (256, 256, 3, 3), bias=True
    )


def rpn(channels, anchors):
    """Returns the head and the cell anchors of each level."""
    a = anchors[0][0]
    return (
        {f"rpn.anchor_generator.cell_anchors.{i}": shape for i, shape in enumerate(anchors)}
        | layer("rpn.head.conv", (channels, channels, 3, 3), bias=True)
        | layer("rpn.head.cls_logits", (a, channels, 1, 1), bias=True)
        | layer("rpn.head.bbox_pred", (4 * a, channels, 1, 1), bias=True)
    )


def retinanet():
    """Returns a head with nine anchors per cell and 80 classes."""
    state = {f"rpn.anchor_generator.cell_anchors.{i}": (9, 4) for i in range(5)}
    for tower in ("cls_tower", "bbox_tower"):
        for i in range(4):
            state |= layer(f"rpn.head.{tower}.{2 * i}", (256, 256, 3, 3), bias=True)
    state |= layer("rpn.head.cls_logits", (9 * 80, 256, 3, 3), bias=True)
    return state | layer("rpn.head.bbox_pred", (9 * 4, 256, 3, 3), bias=True)


def predictor(inputs, classes=81):
    """Returns class scores and box deltas."""
    box = "roi_heads.box.predictor"
    return layer(f"{box}.cls_score", (classes, inputs), bias=True) | layer(
        f"{box}.bbox_pred", (4 * classes, inputs), bias=True
    )


def conv5_head(classes=81, head="box"):
    """Returns the box head of a C4 network."""
    return stage(f"roi_heads.{head}.feature_extractor.head.", 4, 3, 1024) | predictor(2048, classes)


def mlp_head(classes=81, gn=False):
    """Returns the box head of a pyramid network."""
    state = {}
    for name, inputs in (("fc6", 256 * 49), ("fc7", 1024)):
        prefix = f"roi_heads.box.feature_extractor.{name}"
        if gn:
            state |= layer(f"{prefix}.0", (1024, inputs)) | norm(f"{prefix}.1", 1024, True)
        else:
            state |= layer(prefix, (1024, inputs), bias=True)
    return state | predictor(1024, classes)


def xconv():
    """Returns four convolutions with group norm and a linear layer."""
    prefix, state = "roi_heads.box.feature_extractor", {}
    for i in range(4):
        state |= layer(f"{prefix}.xconvs.{3 * i}", (256, 256, 3, 3))
        state |= norm(f"{prefix}.xconvs.{3 * i + 1}", 256, True)
    return state | layer(f"{prefix}.fc6", (1024, 256 * 49), bias=True) | predictor(1024)


def mask(inputs=256, hidden=256):
    """Returns a transposed convolution and logits of 81 classes."""
    prefix = "roi_heads.mask.predictor"
    return layer(f"{prefix}.mask_fcn_logits", (81, hidden, 1, 1), bias=True) | {
        f"{prefix}.conv5_mask.weight": (inputs, hidden, 2, 2),
        f"{prefix}.conv5_mask.bias": (hidden,),
    }


def mask_head(gn=False):
    """Returns the mask head of a pyramid network: four convolutions before ``mask``."""
    state = mask()
    for i in range(1, 5):
        prefix, shape = f"roi_heads.mask.feature_extractor.mask_fcn{i}", (256, 256, 3, 3)
        if gn:
            state |= layer(f"{prefix}.0", shape) | norm(f"{prefix}.1", 256, True)
        else:
            state |= layer(prefix, shape, bias=True)
    return state


def keypoint_head():
    """Returns eight convolutions and heat maps of 17 keypoints."""
    prefix = "roi_heads.keypoint"
    state = {
        f"{prefix}.predictor.kps_score_lowres.weight": (512, 17, 4, 4),
        f"{prefix}.predictor.kps_score_lowres.bias": (17,),
    }
    for i in range(1, 9):
        shape = (512, 256 if i == 1 else 512, 3, 3)
        state |= layer(f"{prefix}.feature_extractor.conv_fcn{i}", shape, bias=True)
    return state


def fpn(name="R-50", box=None, gn=False, **kind):
    """Returns a whole network with a pyramid."""
    parts = body(name, 4, gn=gn, **kind) | pyramid(gn=gn) | rpn(256, PYRAMID_ANCHORS)
    return parts | (mlp_head(gn=gn) if box is None else box)


def c4(name="R-50", anchors=15, classes=81):
    """Returns a whole network without a pyramid."""
    return body(name, 3) | rpn(1024, [(anchors, 4)]) | conv5_head(classes)


X101 = {"width": 8, "groups": 32}
# Both heads of a C4 network share the fifth stage, under the names of both.
C4_MASK = stage("roi_heads.mask.feature_extractor.head.", 4, 3, 1024) | mask(2048)
# Keyed by file name.
STATES = {
    "e2e_mask_rcnn_R_50_C4_1x": c4() | C4_MASK,
    "e2e_mask_rcnn_R_50_FPN_1x": fpn() | mask_head(),
    "e2e_mask_rcnn_X_101_32x8d_FPN_1x": fpn("R-101", **X101) | mask_head(),
    "e2e_keypoint_rcnn_R_50_FPN_1x": fpn(box=mlp_head(classes=2)) | keypoint_head(),
    "dcn/e2e_mask_rcnn_mdconv_R_50_FPN_1x": fpn(dcn=(None, *[(True, 1)] * 3)) | mask_head(),
    "gn_baselines/e2e_mask_rcnn_R_50_FPN_1x_gn": fpn(gn=True) | mask_head(gn=True),
    "gn_baselines/scratch_e2e_mask_rcnn_R_50_FPN_Xconv1fc_3x_gn": fpn(box=xconv(), gn=True)
    | mask_head(gn=True),
    "e2e_faster_rcnn_R_50_C4_1x": c4(),
    "e2e_faster_rcnn_R_50_FPN_1x": fpn(),
    "e2e_faster_rcnn_R_101_FPN_1x": fpn("R-101"),
    "e2e_faster_rcnn_X_101_32x8d_FPN_1x": fpn("R-101", **X101),
    "rpn_R_50_C4_1x": body("R-50", 3) | rpn(1024, [(15, 4)]),
    "rpn_R_50_FPN_1x": fpn(box={}),
    "retinanet/retinanet_R-50-FPN_1x": body("R-50", 4) | pyramid(2) | top(2048) | retinanet(),
    "retinanet/retinanet_R-50-FPN_P5_1x": body("R-50", 4) | pyramid(2) | top(256) | retinanet(),
    "dcn/e2e_faster_rcnn_dconv_R_50_FPN_1x": fpn(dcn=(None, *[(False, 1)] * 3)),
    "dcn/e2e_faster_rcnn_mdconv_R_50_FPN_1x": fpn(dcn=(None, *[(True, 1)] * 3)),
    "gn_baselines/e2e_faster_rcnn_R_50_FPN_1x_gn": fpn(gn=True),
    "gn_baselines/e2e_faster_rcnn_R_50_FPN_Xconv1fc_1x_gn": fpn(box=xconv(), gn=True),
    "gn_baselines/scratch_e2e_faster_rcnn_R_50_FPN_3x_gn": fpn(gn=True),
    "pascal_voc/e2e_faster_rcnn_R_50_C4_1x_4_gpu_voc": c4(anchors=9, classes=21),
}
