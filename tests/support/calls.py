"""One list of small calls that covers every op with a kernel, forward and backward."""

from functools import partial

import calls_boxes
import calls_maps
import torch
from call import Call

import detops


def _classification_inputs(generator, dtype=torch.float32):
    logits = torch.randn(117, 9, generator=generator).to(dtype)
    targets = (torch.rand(117, 9, generator=generator) > 0.9).to(dtype)
    return {"inputs": logits, "targets": targets}


def _losses():
    for reduction, dtype in (
        ("none", torch.float32),
        ("sum", torch.float32),
        ("mean", torch.float16),
        ("none", torch.bfloat16),
    ):
        yield Call(
            f"sigmoid_focal_loss, {reduction}, {str(dtype).removeprefix('torch.')}",
            partial(detops.sigmoid_focal_loss, reduction=reduction),
            partial(_classification_inputs, dtype=dtype),
            ("inputs",),
        )

    for dtype, gamma in ((torch.float32, 2), (torch.float16, 1.5)):

        def labelled(generator, dtype=dtype):
            return {
                "inputs": torch.randn(117, 81, generator=generator).to(dtype),
                "targets": torch.randint(-1, 82, (117,), generator=generator),
                "weight": torch.rand(81, generator=generator),
            }

        yield Call(
            f"softmax_focal_loss, gamma {gamma}, {str(dtype).removeprefix('torch.')}",
            partial(detops.softmax_focal_loss, gamma=gamma),
            labelled,
            ("inputs",),
        )


def _mask_ops():
    def masks(generator):
        return {"masks": torch.rand(5, 33, 41, generator=generator) > 0.98}

    yield Call("masks_to_boxes", detops.masks_to_boxes, masks)

    def two_sets(generator):
        masks = torch.rand(21, 33, 41, generator=generator) > 0.4
        return {"masks1": masks, "masks2": masks[:18].flip(1)}

    def scored(generator):
        masks = (
            torch.rand(21, 33, 41, generator=generator) > torch.linspace(0, 1, 21)[:, None, None]
        )
        return {"masks": masks, "scores": torch.rand(21, generator=generator)}

    def heatmaps(generator):
        return {
            "maps": torch.randn(7, 3, 9, 8, generator=generator),
            "boxes": calls_boxes.clustered_boxes(generator, 7)["boxes"],
        }

    yield Call("heatmaps_to_keypoints", detops.heatmaps_to_keypoints, heatmaps)
    yield Call("mask_iou", detops.mask_iou, two_sets)
    yield Call("mask_nms", partial(detops.mask_nms, iou_threshold=0.5), scored, synchronisations=1)

    def small_masks(generator):
        cells = torch.rand(7, 1, 9, 9, generator=generator)
        return {"masks": cells, "boxes": calls_boxes.clustered_boxes(generator, 7)["boxes"] / 10}

    for threshold in (0.5, -1.0):
        function = partial(detops.paste_masks_in_image, image_shape=(90, 101), threshold=threshold)
        yield Call(f"paste_masks_in_image, {threshold}", function, small_masks)


def _random(generator, dtype=torch.float32, **sizes):
    return {n: torch.randn(s, generator=generator).to(dtype) / 4 for n, s in sizes.items()}


def _demo_ops():
    make = partial(_random, x=(33, 31), y=(33, 31))
    yield Call("axpy", detops.axpy, make, ("x", "y"))
    yield Call("axpy, float16", detops.axpy, partial(make, dtype=torch.float16), ("x", "y"))
    yield Call("gdh", lambda x: detops.gdh(x.t()), partial(_random, x=(33, 31)), ("x",))
    for name, (inputs, hidden, outputs) in {"": (5, 15, 1), ", large": (90, 150, 12)}.items():
        sizes = dict(
            input=(20, inputs),
            hidden_weights=(hidden, inputs),
            hidden_bias=(1, hidden),
            output_weights=(outputs, hidden),
            output_bias=(1, outputs),
        )
        yield Call(f"mlp{name}", detops.mlp, partial(_random, **sizes), tuple(sizes))
    sizes = dict(input=(20, 9), weights=(48, 25), bias=(48,), h=(20, 16), c=(20, 16))
    yield Call("lltm_cell", detops.lltm_cell, partial(_random, **sizes), tuple(sizes))
    sizes["input"] = (6, 20, 9)
    yield Call("lltm", detops.lltm, partial(_random, **sizes), tuple(sizes))


CALLS = [*calls_boxes.CALLS, *calls_maps.CALLS, *_losses(), *_mask_ops(), *_demo_ops()]


def kernel_ops() -> set[str]:
    """Returns the ops of ``torch.ops.detops`` with their own kernel per backend."""
    names = torch._C._dispatch_get_all_op_names()
    kernels = {
        name.removeprefix("detops::")
        for name in names
        if name.startswith("detops::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    }
    # A public op uses the kernel of its raw op. Masks are always encoded on the host, and the ops
    # that arrange weights and feature maps for products exist only on the CPU.
    host_only = {"masks_to_rle", "pack_conv2d_weight", "pack_winograd_weight", "packed_conv2d"}
    host_only |= {"batch_transpose"}
    public = {name for name in kernels if f"{name}_forward" in kernels}
    public |= {"box_iou_matrix", "lltm_cell"}
    public |= {"sigmoid_focal_loss_elements", "softmax_focal_loss_elements"}
    return kernels - public - host_only
