// SPDX-License-Identifier: MIT
#pragma once

// The ops that have kernels, as functions with types; what they take and give is what the functions
// of the same names do in Python, and a refused call is a std::runtime_error with the same message.
// They have no derivative of their own: <op>_backward gives it.
//
// Made by `make header` from csrc/contract/*.contract.
#include "call.h"

namespace detops {

inline Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                  const std::optional<double>& score_threshold = std::nullopt,
                  const std::optional<int64_t>& max_output = std::nullopt) {
  return detail::call<Tensor>("detops::nms", boxes, scores, iou_threshold, score_threshold,
                              max_output);
}

inline Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                          double iou_threshold,
                          const std::optional<double>& score_threshold = std::nullopt,
                          const std::optional<int64_t>& max_output = std::nullopt) {
  return detail::call<Tensor>("detops::batched_nms", boxes, scores, idxs, iou_threshold,
                              score_threshold, max_output);
}

inline Tensor nms_rotated(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                          const std::optional<double>& score_threshold = std::nullopt,
                          const std::optional<int64_t>& max_output = std::nullopt) {
  return detail::call<Tensor>("detops::nms_rotated", boxes, scores, iou_threshold, score_threshold,
                              max_output);
}

inline Tensor batched_nms_rotated(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                                  double iou_threshold,
                                  const std::optional<double>& score_threshold = std::nullopt,
                                  const std::optional<int64_t>& max_output = std::nullopt) {
  return detail::call<Tensor>("detops::batched_nms_rotated", boxes, scores, idxs, iou_threshold,
                              score_threshold, max_output);
}

// Gives keep, count.
inline std::tuple<Tensor, Tensor> nms_padded(const Tensor& boxes, const Tensor& scores,
                                             const std::optional<Tensor>& idxs,
                                             double iou_threshold, int64_t max_output) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::nms_padded", boxes, scores, idxs,
                                                  iou_threshold, max_output);
}

inline Tensor nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  return detail::call<Tensor>("detops::nms_match", boxes, scores, iou_threshold);
}

// Gives keep, scores.
inline std::tuple<Tensor, Tensor> soft_nms(
    const Tensor& boxes, const Tensor& scores, double iou_threshold = 0.3, double sigma = 0.5,
    double min_score = 1e-3, const std::string& method = "linear",
    const std::optional<int64_t>& max_output = std::nullopt) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::soft_nms", boxes, scores, iou_threshold,
                                                  sigma, min_score, method, max_output);
}

// Gives boxes, scores, labels.
inline std::tuple<Tensor, Tensor, Tensor> weighted_box_fusion(
    const Tensor& boxes, const Tensor& scores, const Tensor& labels, const Tensor& models,
    const std::vector<double>& weights, double iou_threshold = 0.55,
    double skip_box_threshold = 0.0, const std::string& conf_type = "avg",
    bool allows_overflow = false) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor>>(
      "detops::weighted_box_fusion", boxes, scores, labels, models, weights, iou_threshold,
      skip_box_threshold, conf_type, allows_overflow);
}

// Gives keep, scores.
inline std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                             const std::optional<Tensor>& idxs = std::nullopt,
                                             double sigma = 2.0, double min_score = 1e-3,
                                             const std::string& method = "gaussian") {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::matrix_nms", boxes, scores, idxs, sigma,
                                                  min_score, method);
}

inline Tensor roi_align(const Tensor& input, const Tensor& boxes, double spatial_scale,
                        int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio = -1,
                        bool aligned = false) {
  return detail::call<Tensor>("detops::roi_align", input, boxes, spatial_scale, pooled_height,
                              pooled_width, sampling_ratio, aligned);
}

inline Tensor roi_align_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                                bool aligned = false) {
  return detail::call<Tensor>("detops::roi_align_forward", input, boxes, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio, aligned);
}

inline Tensor roi_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                 int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                 int64_t channels, int64_t height, int64_t width,
                                 int64_t sampling_ratio, bool aligned = false) {
  return detail::call<Tensor>("detops::roi_align_backward", grad, boxes, spatial_scale,
                              pooled_height, pooled_width, batch_size, channels, height, width,
                              sampling_ratio, aligned);
}

inline Tensor multiscale_roi_align(const std::vector<Tensor>& inputs, const Tensor& boxes,
                                   const std::vector<double>& spatial_scales, int64_t pooled_height,
                                   int64_t pooled_width, int64_t sampling_ratio = -1,
                                   bool aligned = false, double canonical_scale = 224.0,
                                   int64_t canonical_level = 4) {
  return detail::call<Tensor>("detops::multiscale_roi_align", inputs, boxes, spatial_scales,
                              pooled_height, pooled_width, sampling_ratio, aligned, canonical_scale,
                              canonical_level);
}

inline Tensor multiscale_roi_align_forward(const std::vector<Tensor>& inputs, const Tensor& boxes,
                                           const std::vector<double>& spatial_scales,
                                           int64_t pooled_height, int64_t pooled_width,
                                           int64_t sampling_ratio, bool aligned,
                                           double canonical_scale, int64_t canonical_level) {
  return detail::call<Tensor>("detops::multiscale_roi_align_forward", inputs, boxes, spatial_scales,
                              pooled_height, pooled_width, sampling_ratio, aligned, canonical_scale,
                              canonical_level);
}

inline std::vector<Tensor> multiscale_roi_align_backward(
    const Tensor& grad, const Tensor& boxes, const std::vector<double>& spatial_scales,
    int64_t pooled_height, int64_t pooled_width, int64_t batch_size, int64_t channels,
    const std::vector<int64_t>& heights, const std::vector<int64_t>& widths, int64_t sampling_ratio,
    bool aligned, double canonical_scale, int64_t canonical_level) {
  return detail::call<std::vector<Tensor>>("detops::multiscale_roi_align_backward", grad, boxes,
                                           spatial_scales, pooled_height, pooled_width, batch_size,
                                           channels, heights, widths, sampling_ratio, aligned,
                                           canonical_scale, canonical_level);
}

inline Tensor roi_align_rotated(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                int64_t pooled_height, int64_t pooled_width,
                                int64_t sampling_ratio = -1) {
  return detail::call<Tensor>("detops::roi_align_rotated", input, boxes, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio);
}

inline Tensor roi_align_rotated_forward(const Tensor& input, const Tensor& boxes,
                                        double spatial_scale, int64_t pooled_height,
                                        int64_t pooled_width, int64_t sampling_ratio) {
  return detail::call<Tensor>("detops::roi_align_rotated_forward", input, boxes, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio);
}

inline Tensor roi_align_rotated_backward(const Tensor& grad, const Tensor& boxes,
                                         double spatial_scale, int64_t pooled_height,
                                         int64_t pooled_width, int64_t batch_size, int64_t channels,
                                         int64_t height, int64_t width, int64_t sampling_ratio) {
  return detail::call<Tensor>("detops::roi_align_rotated_backward", grad, boxes, spatial_scale,
                              pooled_height, pooled_width, batch_size, channels, height, width,
                              sampling_ratio);
}

inline Tensor riroi_align_rotated(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                  int64_t pooled_height, int64_t pooled_width,
                                  int64_t sampling_ratio = -1, int64_t num_orientations = 8,
                                  bool clockwise = false) {
  return detail::call<Tensor>("detops::riroi_align_rotated", input, boxes, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio, num_orientations,
                              clockwise);
}

inline Tensor riroi_align_rotated_forward(const Tensor& input, const Tensor& boxes,
                                          double spatial_scale, int64_t pooled_height,
                                          int64_t pooled_width, int64_t sampling_ratio,
                                          int64_t num_orientations, bool clockwise) {
  return detail::call<Tensor>("detops::riroi_align_rotated_forward", input, boxes, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio, num_orientations,
                              clockwise);
}

inline Tensor riroi_align_rotated_backward(const Tensor& grad, const Tensor& boxes,
                                           double spatial_scale, int64_t pooled_height,
                                           int64_t pooled_width, int64_t batch_size,
                                           int64_t channels, int64_t height, int64_t width,
                                           int64_t sampling_ratio, int64_t num_orientations,
                                           bool clockwise) {
  return detail::call<Tensor>("detops::riroi_align_rotated_backward", grad, boxes, spatial_scale,
                              pooled_height, pooled_width, batch_size, channels, height, width,
                              sampling_ratio, num_orientations, clockwise);
}

inline Tensor roi_align_max(const Tensor& input, const Tensor& boxes, double spatial_scale,
                            int64_t pooled_height, int64_t pooled_width,
                            int64_t sampling_ratio = -1, bool aligned = false) {
  return detail::call<Tensor>("detops::roi_align_max", input, boxes, spatial_scale, pooled_height,
                              pooled_width, sampling_ratio, aligned);
}

// Gives output, argmax_y, argmax_x.
inline std::tuple<Tensor, Tensor, Tensor> roi_align_max_forward(
    const Tensor& input, const Tensor& boxes, double spatial_scale, int64_t pooled_height,
    int64_t pooled_width, int64_t sampling_ratio, bool aligned) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor>>("detops::roi_align_max_forward", input,
                                                          boxes, spatial_scale, pooled_height,
                                                          pooled_width, sampling_ratio, aligned);
}

inline Tensor roi_align_max_backward(const Tensor& grad, const Tensor& boxes,
                                     const Tensor& argmax_y, const Tensor& argmax_x,
                                     double spatial_scale, int64_t pooled_height,
                                     int64_t pooled_width, int64_t batch_size, int64_t channels,
                                     int64_t height, int64_t width, int64_t sampling_ratio,
                                     bool aligned) {
  return detail::call<Tensor>("detops::roi_align_max_backward", grad, boxes, argmax_y, argmax_x,
                              spatial_scale, pooled_height, pooled_width, batch_size, channels,
                              height, width, sampling_ratio, aligned);
}

inline Tensor prroi_pool(const Tensor& input, const Tensor& boxes, double spatial_scale,
                         int64_t pooled_height, int64_t pooled_width) {
  return detail::call<Tensor>("detops::prroi_pool", input, boxes, spatial_scale, pooled_height,
                              pooled_width);
}

inline Tensor prroi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                 int64_t pooled_height, int64_t pooled_width) {
  return detail::call<Tensor>("detops::prroi_pool_forward", input, boxes, spatial_scale,
                              pooled_height, pooled_width);
}

// Gives input, boxes.
inline std::tuple<Tensor, Tensor> prroi_pool_backward(const Tensor& grad, const Tensor& input,
                                                      const Tensor& boxes, double spatial_scale,
                                                      bool input_wanted = true,
                                                      bool boxes_wanted = true) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::prroi_pool_backward", grad, input, boxes,
                                                  spatial_scale, input_wanted, boxes_wanted);
}

inline Tensor border_align(const Tensor& input, const Tensor& boxes, int64_t pool_size) {
  return detail::call<Tensor>("detops::border_align", input, boxes, pool_size);
}

// Gives output, argmax.
inline std::tuple<Tensor, Tensor> border_align_forward(const Tensor& input, const Tensor& boxes,
                                                       int64_t pool_size) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::border_align_forward", input, boxes,
                                                  pool_size);
}

inline Tensor border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                                    int64_t pool_size, int64_t height, int64_t width) {
  return detail::call<Tensor>("detops::border_align_backward", grad, boxes, argmax, pool_size,
                              height, width);
}

inline Tensor roi_pool(const Tensor& input, const Tensor& boxes, double spatial_scale,
                       int64_t pooled_height, int64_t pooled_width) {
  return detail::call<Tensor>("detops::roi_pool", input, boxes, spatial_scale, pooled_height,
                              pooled_width);
}

// Gives output, argmax.
inline std::tuple<Tensor, Tensor> roi_pool_forward(const Tensor& input, const Tensor& boxes,
                                                   double spatial_scale, int64_t pooled_height,
                                                   int64_t pooled_width) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::roi_pool_forward", input, boxes,
                                                  spatial_scale, pooled_height, pooled_width);
}

inline Tensor roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                                const Tensor& argmax, double spatial_scale, int64_t pooled_height,
                                int64_t pooled_width, int64_t batch_size, int64_t channels,
                                int64_t height, int64_t width) {
  return detail::call<Tensor>("detops::roi_pool_backward", grad, input, boxes, argmax,
                              spatial_scale, pooled_height, pooled_width, batch_size, channels,
                              height, width);
}

inline Tensor ps_roi_align(const Tensor& input, const Tensor& boxes, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width,
                           int64_t sampling_ratio = -1) {
  return detail::call<Tensor>("detops::ps_roi_align", input, boxes, spatial_scale, pooled_height,
                              pooled_width, sampling_ratio);
}

inline Tensor ps_roi_align_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                   int64_t pooled_height, int64_t pooled_width,
                                   int64_t sampling_ratio) {
  return detail::call<Tensor>("detops::ps_roi_align_forward", input, boxes, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio);
}

inline Tensor ps_roi_pool(const Tensor& input, const Tensor& boxes, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width) {
  return detail::call<Tensor>("detops::ps_roi_pool", input, boxes, spatial_scale, pooled_height,
                              pooled_width);
}

inline Tensor ps_roi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                  int64_t pooled_height, int64_t pooled_width) {
  return detail::call<Tensor>("detops::ps_roi_pool_forward", input, boxes, spatial_scale,
                              pooled_height, pooled_width);
}

inline Tensor ps_roi_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                    int64_t channels, int64_t height, int64_t width,
                                    int64_t sampling_ratio) {
  return detail::call<Tensor>("detops::ps_roi_align_backward", grad, boxes, spatial_scale,
                              pooled_height, pooled_width, batch_size, channels, height, width,
                              sampling_ratio);
}

inline Tensor ps_roi_pool_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                   int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                   int64_t channels, int64_t height, int64_t width) {
  return detail::call<Tensor>("detops::ps_roi_pool_backward", grad, boxes, spatial_scale,
                              pooled_height, pooled_width, batch_size, channels, height, width);
}

// Gives output, count.
inline std::tuple<Tensor, Tensor> deform_psroi_pool(const Tensor& input, const Tensor& boxes,
                                                    const std::optional<Tensor>& offset,
                                                    double spatial_scale, int64_t output_channels,
                                                    int64_t group_size, int64_t pooled_height,
                                                    int64_t pooled_width, int64_t part_size,
                                                    int64_t sample_per_part, double trans_std) {
  return detail::call<std::tuple<Tensor, Tensor>>(
      "detops::deform_psroi_pool", input, boxes, offset, spatial_scale, output_channels, group_size,
      pooled_height, pooled_width, part_size, sample_per_part, trans_std);
}

// Gives output, count.
inline std::tuple<Tensor, Tensor> deform_psroi_pool_forward(
    const Tensor& input, const Tensor& boxes, const std::optional<Tensor>& offset,
    double spatial_scale, int64_t output_channels, int64_t group_size, int64_t pooled_height,
    int64_t pooled_width, int64_t part_size, int64_t sample_per_part, double trans_std) {
  return detail::call<std::tuple<Tensor, Tensor>>(
      "detops::deform_psroi_pool_forward", input, boxes, offset, spatial_scale, output_channels,
      group_size, pooled_height, pooled_width, part_size, sample_per_part, trans_std);
}

inline std::tuple<Tensor, Tensor> deform_psroi_pool_backward(
    const Tensor& grad, const Tensor& input, const Tensor& boxes,
    const std::optional<Tensor>& offset, const Tensor& count, double spatial_scale,
    int64_t group_size, int64_t part_size, int64_t sample_per_part, double trans_std) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::deform_psroi_pool_backward", grad, input,
                                                  boxes, offset, count, spatial_scale, group_size,
                                                  part_size, sample_per_part, trans_std);
}

inline Tensor deform_roi_pool(const Tensor& input, const Tensor& boxes,
                              const std::optional<Tensor>& offset, double spatial_scale,
                              int64_t pooled_height, int64_t pooled_width,
                              int64_t sampling_ratio = 0, double gamma = 0.1) {
  return detail::call<Tensor>("detops::deform_roi_pool", input, boxes, offset, spatial_scale,
                              pooled_height, pooled_width, sampling_ratio, gamma);
}

inline Tensor deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                                      const std::optional<Tensor>& offset, double spatial_scale,
                                      int64_t pooled_height, int64_t pooled_width,
                                      int64_t sampling_ratio, double gamma) {
  return detail::call<Tensor>("detops::deform_roi_pool_forward", input, boxes, offset,
                              spatial_scale, pooled_height, pooled_width, sampling_ratio, gamma);
}

// Gives input, offset.
inline std::tuple<Tensor, Tensor> deform_roi_pool_backward(const Tensor& grad, const Tensor& input,
                                                           const Tensor& boxes,
                                                           const std::optional<Tensor>& offset,
                                                           double spatial_scale,
                                                           int64_t sampling_ratio, double gamma,
                                                           bool input_wanted = true) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::deform_roi_pool_backward", grad, input,
                                                  boxes, offset, spatial_scale, sampling_ratio,
                                                  gamma, input_wanted);
}

inline Tensor deform_conv2d(const Tensor& input, const Tensor& offset,
                            const std::optional<Tensor>& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias,
                            const std::array<int64_t, 2>& stride = {1, 1},
                            const std::array<int64_t, 2>& padding = {0, 0},
                            const std::array<int64_t, 2>& dilation = {1, 1}) {
  return detail::call<Tensor>("detops::deform_conv2d", input, offset, mask, weight, bias, stride,
                              padding, dilation);
}

inline Tensor deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                                    const std::optional<Tensor>& mask, const Tensor& weight,
                                    const std::optional<Tensor>& bias,
                                    const std::array<int64_t, 2>& stride = {1, 1},
                                    const std::array<int64_t, 2>& padding = {0, 0},
                                    const std::array<int64_t, 2>& dilation = {1, 1}) {
  return detail::call<Tensor>("detops::deform_conv2d_forward", input, offset, mask, weight, bias,
                              stride, padding, dilation);
}

// Gives input, offset, mask, weight, bias.
inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> deform_conv2d_backward(
    const Tensor& grad, const Tensor& input, const Tensor& offset,
    const std::optional<Tensor>& mask, const Tensor& weight, const std::optional<Tensor>& bias,
    const std::array<int64_t, 2>& stride, const std::array<int64_t, 2>& padding,
    const std::array<int64_t, 2>& dilation, const std::array<bool, 5>& wanted,
    bool edge_gradient = true) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>>(
      "detops::deform_conv2d_backward", grad, input, offset, mask, weight, bias, stride, padding,
      dilation, wanted, edge_gradient);
}

inline Tensor ms_deform_attn(const Tensor& value, const Tensor& spatial_shapes,
                             const Tensor& level_start_index, const Tensor& sampling_locations,
                             const Tensor& attention_weights) {
  return detail::call<Tensor>("detops::ms_deform_attn", value, spatial_shapes, level_start_index,
                              sampling_locations, attention_weights);
}

inline Tensor ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                                     const Tensor& level_start_index,
                                     const Tensor& sampling_locations,
                                     const Tensor& attention_weights) {
  return detail::call<Tensor>("detops::ms_deform_attn_forward", value, spatial_shapes,
                              level_start_index, sampling_locations, attention_weights);
}

inline std::tuple<Tensor, Tensor, Tensor> ms_deform_attn_backward(const Tensor& grad,
                                                                  const Tensor& value,
                                                                  const Tensor& spatial_shapes,
                                                                  const Tensor& level_start_index,
                                                                  const Tensor& sampling_locations,
                                                                  const Tensor& attention_weights) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor>>("detops::ms_deform_attn_backward", grad,
                                                          value, spatial_shapes, level_start_index,
                                                          sampling_locations, attention_weights);
}

inline Tensor box_iou_matrix(const Tensor& boxes1, const Tensor& boxes2,
                             const std::string& kind = "iou", double eps = 1e-7) {
  return detail::call<Tensor>("detops::box_iou_matrix", boxes1, boxes2, kind, eps);
}

inline Tensor box_iou_forward(const Tensor& boxes1, const Tensor& boxes2,
                              const std::string& kind = "iou", double eps = 1e-7) {
  return detail::call<Tensor>("detops::box_iou_forward", boxes1, boxes2, kind, eps);
}

inline std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad, const Tensor& boxes1,
                                                   const Tensor& boxes2,
                                                   const std::string& kind = "iou",
                                                   double eps = 1e-7) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::box_iou_backward", grad, boxes1, boxes2,
                                                  kind, eps);
}

inline Tensor box_iou_aligned(const Tensor& boxes1, const Tensor& boxes2,
                              const std::string& kind = "iou", double eps = 1e-7) {
  return detail::call<Tensor>("detops::box_iou_aligned", boxes1, boxes2, kind, eps);
}

inline Tensor box_iou_aligned_forward(const Tensor& boxes1, const Tensor& boxes2,
                                      const std::string& kind = "iou", double eps = 1e-7) {
  return detail::call<Tensor>("detops::box_iou_aligned_forward", boxes1, boxes2, kind, eps);
}

inline std::tuple<Tensor, Tensor> box_iou_aligned_backward(const Tensor& grad, const Tensor& boxes1,
                                                           const Tensor& boxes2,
                                                           const std::string& kind = "iou",
                                                           double eps = 1e-7) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::box_iou_aligned_backward", grad, boxes1,
                                                  boxes2, kind, eps);
}

// Gives best, index.
inline std::tuple<Tensor, Tensor> match_boxes(const Tensor& boxes1, const Tensor& boxes2) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::match_boxes", boxes1, boxes2);
}

inline Tensor linear_assignment(const Tensor& cost,
                                const std::optional<Tensor>& num_objects = std::nullopt) {
  return detail::call<Tensor>("detops::linear_assignment", cost, num_objects);
}

inline Tensor box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2,
                              const std::string& mode = "iou") {
  return detail::call<Tensor>("detops::box_iou_rotated", boxes1, boxes2, mode);
}

inline Tensor rotated_iou(const Tensor& boxes1, const Tensor& boxes2,
                          const std::string& mode = "iou") {
  return detail::call<Tensor>("detops::rotated_iou", boxes1, boxes2, mode);
}

inline Tensor rotated_iou_forward(const Tensor& boxes1, const Tensor& boxes2,
                                  const std::string& mode) {
  return detail::call<Tensor>("detops::rotated_iou_forward", boxes1, boxes2, mode);
}

inline std::tuple<Tensor, Tensor> rotated_iou_backward(const Tensor& grad, const Tensor& boxes1,
                                                       const Tensor& boxes2,
                                                       const std::string& mode) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::rotated_iou_backward", grad, boxes1,
                                                  boxes2, mode);
}

inline Tensor box_iou_loss(const Tensor& boxes1, const Tensor& boxes2,
                           const std::string& kind = "giou", double eps = 1e-7) {
  return detail::call<Tensor>("detops::box_iou_loss", boxes1, boxes2, kind, eps);
}

inline Tensor box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2,
                                   const std::string& kind = "giou", double eps = 1e-7) {
  return detail::call<Tensor>("detops::box_iou_loss_forward", boxes1, boxes2, kind, eps);
}

inline std::tuple<Tensor, Tensor> box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1,
                                                        const Tensor& boxes2,
                                                        const std::string& kind = "giou",
                                                        double eps = 1e-7) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::box_iou_loss_backward", grad, boxes1,
                                                  boxes2, kind, eps);
}

inline Tensor encode_boxes(const Tensor& boxes, const Tensor& anchors,
                           const std::vector<double>& weights = {1.0, 1.0, 1.0, 1.0}) {
  return detail::call<Tensor>("detops::encode_boxes", boxes, anchors, weights);
}

inline Tensor encode_boxes_forward(const Tensor& boxes, const Tensor& anchors,
                                   const std::vector<double>& weights) {
  return detail::call<Tensor>("detops::encode_boxes_forward", boxes, anchors, weights);
}

inline std::tuple<Tensor, Tensor> encode_boxes_backward(const Tensor& grad, const Tensor& boxes,
                                                        const Tensor& anchors,
                                                        const std::vector<double>& weights) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::encode_boxes_backward", grad, boxes,
                                                  anchors, weights);
}

inline Tensor decode_boxes(const Tensor& deltas, const Tensor& anchors,
                           const std::vector<double>& weights = {1.0, 1.0, 1.0, 1.0},
                           double clip = 4.135166556742356) {
  return detail::call<Tensor>("detops::decode_boxes", deltas, anchors, weights, clip);
}

inline Tensor decode_boxes_forward(const Tensor& deltas, const Tensor& anchors,
                                   const std::vector<double>& weights, double clip) {
  return detail::call<Tensor>("detops::decode_boxes_forward", deltas, anchors, weights, clip);
}

inline std::tuple<Tensor, Tensor> decode_boxes_backward(const Tensor& grad, const Tensor& deltas,
                                                        const Tensor& anchors,
                                                        const std::vector<double>& weights,
                                                        double clip) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::decode_boxes_backward", grad, deltas,
                                                  anchors, weights, clip);
}

inline Tensor sigmoid_focal_loss_elements(const Tensor& inputs, const Tensor& targets, double alpha,
                                          double gamma) {
  return detail::call<Tensor>("detops::sigmoid_focal_loss_elements", inputs, targets, alpha, gamma);
}

inline Tensor sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                         double gamma) {
  return detail::call<Tensor>("detops::sigmoid_focal_loss_forward", inputs, targets, alpha, gamma);
}

inline Tensor sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha,
                                     double gamma) {
  return detail::call<Tensor>("detops::sigmoid_focal_loss_sum", inputs, targets, alpha, gamma);
}

inline Tensor sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs,
                                          const Tensor& targets, double alpha, double gamma) {
  return detail::call<Tensor>("detops::sigmoid_focal_loss_backward", grad, inputs, targets, alpha,
                              gamma);
}

inline Tensor softmax_focal_loss_elements(const Tensor& inputs, const Tensor& targets,
                                          const std::optional<Tensor>& weight, double alpha,
                                          double gamma) {
  return detail::call<Tensor>("detops::softmax_focal_loss_elements", inputs, targets, weight, alpha,
                              gamma);
}

inline Tensor softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                         const std::optional<Tensor>& weight, double alpha,
                                         double gamma) {
  return detail::call<Tensor>("detops::softmax_focal_loss_forward", inputs, targets, weight, alpha,
                              gamma);
}

inline Tensor softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs,
                                          const Tensor& targets,
                                          const std::optional<Tensor>& weight, double alpha,
                                          double gamma) {
  return detail::call<Tensor>("detops::softmax_focal_loss_backward", grad, inputs, targets, weight,
                              alpha, gamma);
}

// Gives dist1, dist2, idx1, idx2.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> chamfer_distance(const Tensor& points1,
                                                                   const Tensor& points2) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor, Tensor>>("detops::chamfer_distance",
                                                                  points1, points2);
}

// Gives dist1, dist2, idx1, idx2.
inline std::tuple<Tensor, Tensor, Tensor, Tensor> chamfer_distance_forward(const Tensor& points1,
                                                                           const Tensor& points2) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor, Tensor>>(
      "detops::chamfer_distance_forward", points1, points2);
}

// Gives points1, points2.
inline std::tuple<Tensor, Tensor> chamfer_distance_backward(
    const Tensor& grad1, const Tensor& grad2, const Tensor& points1, const Tensor& points2,
    const Tensor& idx1, const Tensor& idx2) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::chamfer_distance_backward", grad1, grad2,
                                                  points1, points2, idx1, idx2);
}

inline Tensor masks_to_boxes(const Tensor& masks) {
  return detail::call<Tensor>("detops::masks_to_boxes", masks);
}

inline Tensor mask_iou(const Tensor& masks1, const Tensor& masks2,
                       const std::string& mode = "iou") {
  return detail::call<Tensor>("detops::mask_iou", masks1, masks2, mode);
}

inline Tensor mask_nms(const Tensor& masks, const Tensor& scores, double iou_threshold) {
  return detail::call<Tensor>("detops::mask_nms", masks, scores, iou_threshold);
}

// Gives text, ends.
inline std::tuple<Tensor, Tensor> masks_to_rle(const Tensor& masks) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::masks_to_rle", masks);
}

inline Tensor paste_masks_in_image(const Tensor& masks, const Tensor& boxes, int64_t height,
                                   int64_t width, double threshold = 0.5) {
  return detail::call<Tensor>("detops::paste_masks_in_image", masks, boxes, height, width,
                              threshold);
}

inline Tensor point_sample(const Tensor& input, const Tensor& points) {
  return detail::call<Tensor>("detops::point_sample", input, points);
}

inline Tensor point_sample_forward(const Tensor& input, const Tensor& points) {
  return detail::call<Tensor>("detops::point_sample_forward", input, points);
}

// Gives input, points.
inline std::tuple<Tensor, Tensor> point_sample_backward(const Tensor& grad, const Tensor& input,
                                                        const Tensor& points,
                                                        bool input_wanted = true,
                                                        bool points_wanted = true) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::point_sample_backward", grad, input,
                                                  points, input_wanted, points_wanted);
}

inline Tensor carafe(const Tensor& features, const Tensor& masks, int64_t kernel_size,
                     int64_t group_size, int64_t scale_factor) {
  return detail::call<Tensor>("detops::carafe", features, masks, kernel_size, group_size,
                              scale_factor);
}

inline Tensor carafe_forward(const Tensor& features, const Tensor& masks, int64_t kernel_size,
                             int64_t group_size, int64_t scale_factor) {
  return detail::call<Tensor>("detops::carafe_forward", features, masks, kernel_size, group_size,
                              scale_factor);
}

// Gives features, masks.
inline std::tuple<Tensor, Tensor> carafe_backward(const Tensor& grad, const Tensor& features,
                                                  const Tensor& masks, int64_t kernel_size,
                                                  int64_t group_size, int64_t scale_factor,
                                                  bool features_wanted = true,
                                                  bool masks_wanted = true) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::carafe_backward", grad, features, masks,
                                                  kernel_size, group_size, scale_factor,
                                                  features_wanted, masks_wanted);
}

inline Tensor corner_pool(const Tensor& input, const std::string& mode) {
  return detail::call<Tensor>("detops::corner_pool", input, mode);
}

inline Tensor corner_pool_forward(const Tensor& input, const std::string& mode) {
  return detail::call<Tensor>("detops::corner_pool_forward", input, mode);
}

inline Tensor corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                                   const std::string& mode) {
  return detail::call<Tensor>("detops::corner_pool_backward", grad, input, output, mode);
}

// Gives keypoints, scores.
inline std::tuple<Tensor, Tensor> heatmaps_to_keypoints(const Tensor& maps, const Tensor& boxes) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::heatmaps_to_keypoints", maps, boxes);
}

inline Tensor rotated_feature_align(const Tensor& features, const Tensor& boxes,
                                    double spatial_scale = 0.125, int64_t points = 1) {
  return detail::call<Tensor>("detops::rotated_feature_align", features, boxes, spatial_scale,
                              points);
}

inline Tensor rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                            double spatial_scale, int64_t points) {
  return detail::call<Tensor>("detops::rotated_feature_align_forward", features, boxes,
                              spatial_scale, points);
}

inline Tensor rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes,
                                             double spatial_scale, int64_t points) {
  return detail::call<Tensor>("detops::rotated_feature_align_backward", grad, boxes, spatial_scale,
                              points);
}

inline Tensor active_rotated_filter(const Tensor& input, const Tensor& indices) {
  return detail::call<Tensor>("detops::active_rotated_filter", input, indices);
}

inline Tensor active_rotated_filter_forward(const Tensor& input, const Tensor& indices) {
  return detail::call<Tensor>("detops::active_rotated_filter_forward", input, indices);
}

inline Tensor active_rotated_filter_backward(const Tensor& grad, const Tensor& indices,
                                             int64_t outputs, int64_t inputs) {
  return detail::call<Tensor>("detops::active_rotated_filter_backward", grad, indices, outputs,
                              inputs);
}

inline Tensor masked_conv2d(const Tensor& features, const Tensor& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias = std::nullopt,
                            const std::array<int64_t, 2>& stride = {1, 1},
                            const std::array<int64_t, 2>& padding = {0, 0}) {
  return detail::call<Tensor>("detops::masked_conv2d", features, mask, weight, bias, stride,
                              padding);
}

inline Tensor masked_conv2d_forward(const Tensor& features, const Tensor& mask,
                                    const Tensor& weight, const std::optional<Tensor>& bias,
                                    const std::array<int64_t, 2>& stride,
                                    const std::array<int64_t, 2>& padding) {
  return detail::call<Tensor>("detops::masked_conv2d_forward", features, mask, weight, bias, stride,
                              padding);
}

inline Tensor winograd_conv2d(const Tensor& input, const Tensor& weight,
                              const std::optional<Tensor>& bias = std::nullopt,
                              const std::array<int64_t, 2>& padding = {1, 1}) {
  return detail::call<Tensor>("detops::winograd_conv2d", input, weight, bias, padding);
}

inline Tensor winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                                      const std::optional<Tensor>& bias,
                                      const std::array<int64_t, 2>& padding) {
  return detail::call<Tensor>("detops::winograd_conv2d_forward", input, weight, bias, padding);
}

inline Tensor winograd_conv2d_backward_weight(const Tensor& grad, const Tensor& input,
                                              const std::array<int64_t, 2>& padding) {
  return detail::call<Tensor>("detops::winograd_conv2d_backward_weight", grad, input, padding);
}

inline Tensor batch_transpose(const Tensor& input) {
  return detail::call<Tensor>("detops::batch_transpose", input);
}

inline Tensor pack_conv2d_weight(const Tensor& weight) {
  return detail::call<Tensor>("detops::pack_conv2d_weight", weight);
}

inline Tensor pack_winograd_weight(const Tensor& weight) {
  return detail::call<Tensor>("detops::pack_winograd_weight", weight);
}

inline Tensor packed_conv2d(const Tensor& input, const Tensor& packed,
                            const std::optional<Tensor>& bias, const std::optional<Tensor>& add,
                            int64_t outputs, const std::array<int64_t, 2>& kernel_size,
                            const std::array<int64_t, 2>& stride = {1, 1},
                            const std::array<int64_t, 2>& padding = {0, 0},
                            const std::array<int64_t, 2>& dilation = {1, 1}, bool relu = false) {
  return detail::call<Tensor>("detops::packed_conv2d", input, packed, bias, add, outputs,
                              kernel_size, stride, padding, dilation, relu);
}

inline Tensor convex_iou(const Tensor& pointsets, const Tensor& polygons) {
  return detail::call<Tensor>("detops::convex_iou", pointsets, polygons);
}

inline Tensor convex_giou(const Tensor& pointsets, const Tensor& polygons) {
  return detail::call<Tensor>("detops::convex_giou", pointsets, polygons);
}

inline Tensor convex_giou_forward(const Tensor& pointsets, const Tensor& polygons) {
  return detail::call<Tensor>("detops::convex_giou_forward", pointsets, polygons);
}

inline Tensor convex_giou_backward(const Tensor& grad, const Tensor& pointsets,
                                   const Tensor& polygons) {
  return detail::call<Tensor>("detops::convex_giou_backward", grad, pointsets, polygons);
}

inline Tensor min_area_polygons(const Tensor& pointsets) {
  return detail::call<Tensor>("detops::min_area_polygons", pointsets);
}

inline Tensor points_in_polygons(const Tensor& points, const Tensor& polygons) {
  return detail::call<Tensor>("detops::points_in_polygons", points, polygons);
}

inline Tensor box_iou_quadri(const Tensor& boxes1, const Tensor& boxes2,
                             const std::string& mode = "iou") {
  return detail::call<Tensor>("detops::box_iou_quadri", boxes1, boxes2, mode);
}

inline Tensor box_iou_quadri_pairs(const Tensor& boxes1, const Tensor& boxes2,
                                   const std::string& mode = "iou") {
  return detail::call<Tensor>("detops::box_iou_quadri_pairs", boxes1, boxes2, mode);
}

inline Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
  return detail::call<Tensor>("detops::nms_quadri", boxes, scores, iou_threshold);
}

inline Tensor axpy(const Tensor& x, const Tensor& y, double alpha = 2.0) {
  return detail::call<Tensor>("detops::axpy", x, y, alpha);
}

inline Tensor axpy_forward(const Tensor& x, const Tensor& y, double alpha = 2.0) {
  return detail::call<Tensor>("detops::axpy_forward", x, y, alpha);
}

inline std::tuple<Tensor, Tensor> axpy_backward(const Tensor& grad, double alpha = 2.0) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::axpy_backward", grad, alpha);
}

inline Tensor gdh_forward(const Tensor& x) {
  return detail::call<Tensor>("detops::gdh_forward", x);
}

inline Tensor mlp(const Tensor& input, const Tensor& hidden_weights, const Tensor& hidden_bias,
                  const Tensor& output_weights, const Tensor& output_bias) {
  return detail::call<Tensor>("detops::mlp", input, hidden_weights, hidden_bias, output_weights,
                              output_bias);
}

// Gives output, hidden.
inline std::tuple<Tensor, Tensor> mlp_forward(const Tensor& input, const Tensor& hidden_weights,
                                              const Tensor& hidden_bias,
                                              const Tensor& output_weights,
                                              const Tensor& output_bias) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::mlp_forward", input, hidden_weights,
                                                  hidden_bias, output_weights, output_bias);
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(
    const Tensor& grad, const Tensor& input, const Tensor& hidden, const Tensor& hidden_weights,
    const Tensor& output_weights, bool input_wanted = true) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>>(
      "detops::mlp_backward", grad, input, hidden, hidden_weights, output_weights, input_wanted);
}

// Gives output, cells, gates.
inline std::tuple<Tensor, Tensor, Tensor> lltm_forward(const Tensor& input, const Tensor& weights,
                                                       const Tensor& bias, const Tensor& h,
                                                       const Tensor& c) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor>>("detops::lltm_forward", input, weights,
                                                          bias, h, c);
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_h, const Tensor& grad_c,
    const Tensor& input, const Tensor& weights, const Tensor& h, const Tensor& c,
    const Tensor& output, const Tensor& cells, const Tensor& gates, bool input_wanted = true,
    bool h_wanted = true) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>>(
      "detops::lltm_backward", grad_output, grad_h, grad_c, input, weights, h, c, output, cells,
      gates, input_wanted, h_wanted);
}

inline std::tuple<Tensor, Tensor> lltm_cell(const Tensor& input, const Tensor& weights,
                                            const Tensor& bias, const Tensor& h, const Tensor& c) {
  return detail::call<std::tuple<Tensor, Tensor>>("detops::lltm_cell", input, weights, bias, h, c);
}

// Gives output, h, c.
inline std::tuple<Tensor, Tensor, Tensor> lltm(const Tensor& input, const Tensor& weights,
                                               const Tensor& bias, const Tensor& h,
                                               const Tensor& c) {
  return detail::call<std::tuple<Tensor, Tensor, Tensor>>("detops::lltm", input, weights, bias, h,
                                                          c);
}

}  // namespace detops
