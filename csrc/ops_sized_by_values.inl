// SPDX-License-Identifier: MIT
// Like ops.inl, for the ops without a Meta kernel.

Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold);  // -> int64[K]
Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold);

Tensor nms_rotated(const Tensor& boxes,  // [N, 5] cx, cy, w, h, angle
                   const Tensor& scores, double iou_threshold);
Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                           double iou_threshold);

std::tuple<Tensor, Tensor> soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                                    double sigma, double min_score,
                                    c10::string_view method);  // -> int64[K], scores [K]
std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double sigma,
                                      double min_score,
                                      c10::string_view method);  // -> int64[K], scores [K]
