// SPDX-License-Identifier: MIT
// Like ops.inl, for the ops without a Meta kernel.

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold);  // -> int64[K]
Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold);
