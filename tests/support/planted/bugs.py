"""Bugs that the suite must find: each replaces one piece of text, which occurs once in its file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    old: str
    new: str
    folders: str  # of the tests that are expected to fail, below tests/
    isa: str = "baseline"  # that a processor must have for the bug to show


KERNELS = [
    Bug(
        "bilinear samples beyond the last row are not zero",
        "csrc/math/bilinear.h",
        "x >= T(-1) && x <= T(size))",
        "x >= T(-1) && x <= T(size) + T(0.25))",
        "ops/roi",
    ),
    Bug(
        "the last channels of a bin are skipped",
        "csrc/cpu/roi/roi_align.inl",
        "for (; c < t.channels; c += kWidth) {",
        "for (; c + 1 < t.channels; c += kWidth) {",
        "ops/roi",
    ),
    Bug(
        "the last of equal scores comes first",
        "csrc/cpu/common/sort.h",
        "for (int64_t j = 0; j < i; ++j) rank += keys[j] <= key;\n"
        "      for (int64_t j = i + 1; j < n; ++j) rank += keys[j] < key;",
        "for (int64_t j = 0; j < i; ++j) rank += keys[j] < key;\n"
        "      for (int64_t j = i + 1; j < n; ++j) rank += keys[j] <= key;",
        "ops/nms",
    ),
    Bug(
        "a NaN score comes last",
        "csrc/math/descending_key.h",
        "if (score != score) return Key(0);",
        "if (score != score) return ~Key(0);",
        "ops/nms",
    ),
    Bug(
        "overlaps equal to the threshold decay scores",
        "csrc/math/decay.inl",
        "iou > rule.threshold",
        "iou >= rule.threshold",
        "ops/nms",
    ),
    Bug(
        "a tile of a transposed copy has the wrong stride",
        "csrc/cpu/demo/gdh.cpp",
        "to[y * width + x] = in[x * column_stride + y * row_stride];",
        "to[y * width + x] = in[x * column_stride + (y & 7) * row_stride];",
        "ops/demo",
    ),
    Bug(
        "the last iteration of a parallel loop is skipped",
        "csrc/parallel.cpp",
        "DETOPS_STABLE(torch_parallel_for, 0, count, grain, run, &work);",
        "DETOPS_STABLE(torch_parallel_for, 0, count - 1, grain, run, &work);",
        "ops/roi ops/nms ops/boxes ops/every",
    ),
    Bug(
        "bits are counted wrongly only on AVX2",
        "csrc/cpu/masks/mask_iou.inl",
        "table[i] = i % 2 == 0 ? 0x0302020102010100u : 0x0403030203020201u;",
        "table[i] = i % 2 == 0 || DETOPS_VECTOR_BYTES == 32 ? 0x0302020102010100u\n"
        "                                                   : 0x0403030203020201u;",
        "ops/masks",
        "avx2",
    ),
    Bug(
        "bits are counted wrongly only in scalar code",
        "csrc/cpu/masks/mask_iou.inl",
        "  v += v >> 16;\n",
        "  v += v >> 17;\n",
        "ops/masks",
    ),
    Bug(
        "multiply-add subtracts on AVX-512",
        "csrc/cpu/simd/simd.inl",
        "return _mm512_fmadd_pd(a, b, c);",
        "return _mm512_fmsub_pd(a, b, c);",
        "ops/deform ops/conv ops/demo",
        "avx512",
    ),
    Bug(
        "corner pooling drops NaN",
        "csrc/cpu/maps/corner_pool.inl",
        "return ((x >= best) | (x != x)) ? x : best;",
        "return (x >= best) ? x : best;",
        "ops/maps",
    ),
    Bug(
        "a run ends early in masks of more than 64 pixels",
        "csrc/cpu/masks/masks_to_rle.inl",
        ">> (64 - rest);",
        ">> (63 - rest);",
        "ops/masks",
    ),
    Bug(
        "a sum includes lanes beyond the last input",
        "csrc/cpu/boxes/focal_loss.inl",
        "load_part(inputs + i, n), load_part(targets + i, n)), n);\n    sum",
        "load_part(inputs + i, n), load_part(targets + i, n)), kLanes<A>);\n    sum",
        "ops/boxes",
    ),
    Bug(
        "a term of a gradient has the wrong sign",
        "csrc/math/deform.inl",
        "mask * (top + s.frac_y * (bottom - top))",
        "mask * (top - s.frac_y * (bottom - top))",
        "ops/deform",
    ),
]
HOST = [
    Bug(
        "results of channels_last maps are contiguous",
        "csrc/structured.cpp",
        "output.channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous",
        "MemoryFormat::Contiguous",
        "ops/roi",
    ),
    Bug(
        "the gradient of a matrix of overlaps reads columns as rows",
        "csrc/cpu/boxes/box_iou.cpp",
        "const T outer = grad[i * stride_row + j * stride_col];",
        "const T outer = grad[j * stride_row + i * stride_col];",
        "ops/boxes",
    ),
    Bug(
        "lists of tensors may mix dtypes",
        "csrc/contract/contract.cpp",
        "    if (t.type != shared) {",
        "    if (false && t.type != shared) {",
        "ops/every ops/roi",
    ),
    Bug(
        "sampling ratios have no bound",
        "csrc/contract/roi.contract",
        "  sampling_ratio: at most 4096\n",
        "",
        "ops/roi ops/every",
    ),
]
PYTHON = [
    Bug(
        "the gradient of a box coder ignores its weights",
        "detops/ops/box_coder.py",
        "raw(_C.encode_boxes_backward, grad, boxes, anchors, ctx.weights)",
        "raw(_C.encode_boxes_backward, grad, boxes, anchors, [1.0] * 4)",
        "ops/boxes",
    ),
    Bug(
        "a second derivative is zero",
        "detops/ops/_linear_pooling.py",
        "        pooled = LinearPoolingFunction.run(grad, boxes, ctx.ops, ctx.pooling)\n",
        "        pooled = 0 * LinearPoolingFunction.run(grad, boxes, ctx.ops, ctx.pooling)\n",
        "ops/roi ops/every",
    ),
    Bug(
        "boxes in a list get the index of the previous image",
        "detops/ops/_shared.py",
        "b.to(wide), (1, 0), i)",
        "b.to(wide), (1, 0), max(0, i - 1))",
        "ops/roi",
    ),
    Bug(
        "autocast leaves encoded boxes in float16",
        "detops/registration.py",
        "soft_nms matrix_nms encode_boxes encode_boxes_forward ",
        "soft_nms matrix_nms encode_boxes_forward ",
        "ops/every ops/boxes",
    ),
    Bug(
        "VOC boxes keep the offset of one pixel",
        "detops/data/voc.py",
        "[x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1]",
        "[x1, y1, x2 - x1 + 1, y2 - y1 + 1]",
        "data",
    ),
    Bug(
        "crowds are training targets",
        "detops/data/detection.py",
        '[a for a in self._annotations[record["id"]] if not a["iscrowd"]]',
        'list(self._annotations[record["id"]])',
        "data",
    ),
    Bug(
        "names in another Unicode normalization form are not found",
        "detops/data/files.py",
        '    return normalize("NFC", name)\n',
        "    return name\n",
        "data",
    ),
    Bug(
        "the learning rate decays one step late",
        "detops/engine/solver.py",
        "bisect_right(list(solver.STEPS), step)",
        "bisect_right(list(solver.STEPS), step - 1)",
        "detector",
    ),
    Bug(
        "tiles at the right border are too narrow",
        "detops/data/tiling.py",
        "min(x + tile, width), min(y + tile, height))",
        "min(x + tile, width - 1), min(y + tile, height))",
        "detector",
    ),
    Bug(
        "ONNX shifts unaligned RoIs",
        "detops/export/translations/roi.py",
        '"half_pixel" if aligned else "output_half_pixel"',
        '"half_pixel"',
        "export",
    ),
    Bug(
        "clockwise boxes of mmcv rotate counter-clockwise",
        "detops/compat/mmcv_rois.py",
        "torch.rad2deg(-angle if clockwise else angle)",
        "torch.rad2deg(angle)",
        "compat ops/roi",
    ),
    Bug(
        "a patched function is not restored",
        "detops/compat/patching.py",
        "        self.function.__code__ = self.code\n",
        "        pass\n",
        "compat",
    ),
    Bug(
        "a forked process waits for threads of its parent",
        "csrc/parallel.cpp",
        "lost_threads = loops > 0;",
        "lost_threads = false;",
        "ops/every",
    ),
]
BUGS = KERNELS + HOST + PYTHON
