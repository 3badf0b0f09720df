// SPDX-License-Identifier: MIT
// Host functions of one backend. Parameters are an op's arguments, as in its schema, and then its
// outputs, as in its contract. See structured.h for the steps before each call.

// These allocate their own outputs, because the sizes depend on values.
Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
           std::optional<double> score_threshold, std::optional<int64_t> max_output);
decltype(nms) nms_rotated;
Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,
                   double iou_threshold, std::optional<double> score_threshold,
                   std::optional<int64_t> max_output);
decltype(batched_nms) batched_nms_rotated;
Tensor nms_quadri(const Tensor& boxes, const Tensor& scores, double iou_threshold);
std::tuple<Tensor, Tensor> soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold,
                                    double sigma, double min_score, std::string_view method,
                                    std::optional<int64_t> max_output);
std::tuple<Tensor, Tensor> matrix_nms(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double sigma,
                                      double min_score, std::string_view method);

std::tuple<Tensor, Tensor, Tensor> weighted_box_fusion(
    const Tensor& boxes, const Tensor& scores, const Tensor& labels, const Tensor& models,
    ArrayRef<double> weights, double iou_threshold, double skip_box_threshold,
    std::string_view conf_type, bool allows_overflow);

// Writes to `keep` the first `max_output` boxes that nms (batched_nms with `idxs`) keeps, padded
// with -1, and to `count` their number.
void nms_padded(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                double iou_threshold, int64_t max_output, Tensor& keep, Tensor& count);

// Writes the index of the kept box that each box matches: the first that suppresses it, or itself.
void nms_match(const Tensor& boxes, const Tensor& scores, double iou_threshold, Tensor& match);

void roi_align_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                       int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                       bool aligned, Tensor& output);
void roi_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                        int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                        int64_t channels, int64_t height, int64_t width, int64_t sampling_ratio,
                        bool aligned, Tensor& map);
void multiscale_roi_align_forward(TensorList inputs, const Tensor& boxes,
                                  ArrayRef<double> spatial_scales, int64_t pooled_height,
                                  int64_t pooled_width, int64_t sampling_ratio, bool aligned,
                                  double canonical_scale, int64_t canonical_level, Tensor& output);
void multiscale_roi_align_backward(const Tensor& grad, const Tensor& boxes,
                                   ArrayRef<double> spatial_scales, int64_t pooled_height,
                                   int64_t pooled_width, int64_t batch_size, int64_t channels,
                                   IntArrayRef heights, IntArrayRef widths, int64_t sampling_ratio,
                                   bool aligned, double canonical_scale, int64_t canonical_level,
                                   std::vector<Tensor>& maps);
void roi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                               int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                               Tensor& output);
decltype(roi_align_rotated_forward) ps_roi_align_forward;
void roi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                int64_t channels, int64_t height, int64_t width,
                                int64_t sampling_ratio, Tensor& map);
decltype(roi_align_rotated_backward) ps_roi_align_backward;
void riroi_align_rotated_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                                 int64_t pooled_height, int64_t pooled_width,
                                 int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                 Tensor& output);
void riroi_align_rotated_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                  int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                                  int64_t channels, int64_t height, int64_t width,
                                  int64_t sampling_ratio, int64_t num_orientations, bool clockwise,
                                  Tensor& map);
// `argmax_y` and `argmax_x` are the coordinates of each bin's largest sample, -2 off the map.
void roi_align_max_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                           int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                           bool aligned, Tensor& output, Tensor& argmax_y, Tensor& argmax_x);
void roi_align_max_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax_y,
                            const Tensor& argmax_x, double spatial_scale, int64_t pooled_height,
                            int64_t pooled_width, int64_t batch_size, int64_t channels,
                            int64_t height, int64_t width, int64_t sampling_ratio, bool aligned,
                            Tensor& map);
void border_align_forward(const Tensor& input, const Tensor& boxes, int64_t pool_size,
                          Tensor& output, Tensor& argmax);
void border_align_backward(const Tensor& grad, const Tensor& boxes, const Tensor& argmax,
                           int64_t pool_size, int64_t height, int64_t width, Tensor& map);
void prroi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                        int64_t pooled_height, int64_t pooled_width, Tensor& output);
decltype(prroi_pool_forward) ps_roi_pool_forward;
void prroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                         double spatial_scale, bool input_wanted, bool boxes_wanted,
                         Tensor& to_input, Tensor& to_boxes);
void roi_pool_forward(const Tensor& input, const Tensor& boxes, double spatial_scale,
                      int64_t pooled_height, int64_t pooled_width, Tensor& output, Tensor& argmax);
void roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                       const Tensor& argmax, double spatial_scale, int64_t pooled_height,
                       int64_t pooled_width, int64_t batch_size, int64_t channels, int64_t height,
                       int64_t width, Tensor& map);
void ps_roi_pool_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                          int64_t pooled_height, int64_t pooled_width, int64_t batch_size,
                          int64_t channels, int64_t height, int64_t width, Tensor& map);
void deform_psroi_pool_forward(const Tensor& input, const Tensor& boxes,
                               const std::optional<Tensor>& offset, double spatial_scale,
                               int64_t output_channels, int64_t group_size, int64_t pooled_height,
                               int64_t pooled_width, int64_t part_size, int64_t sample_per_part,
                               double trans_std, Tensor& output, Tensor& count);
void deform_psroi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                                const std::optional<Tensor>& offset, const Tensor& count,
                                double spatial_scale, int64_t group_size, int64_t part_size,
                                int64_t sample_per_part, double trans_std, Tensor& to_input,
                                Tensor& to_offset);

void deform_roi_pool_forward(const Tensor& input, const Tensor& boxes,
                             const std::optional<Tensor>& offset, double spatial_scale,
                             int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,
                             double gamma, Tensor& output);
void deform_roi_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& boxes,
                              const std::optional<Tensor>& offset, double spatial_scale,
                              int64_t sampling_ratio, double gamma, bool input_wanted,
                              Tensor& to_input, Tensor& to_offset);

void deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                           const std::optional<Tensor>& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, Tensor& output);
// A sample at exactly -1 is zero. Its derivative is the one from inside the image if
// `edge_gradient` is set, as in torchvision, otherwise zero.
void deform_conv2d_backward(const Tensor& grad, const Tensor& input, const Tensor& offset,
                            const std::optional<Tensor>& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, ArrayRef<uint8_t> wanted,
                            bool edge_gradient, Tensor& to_input, Tensor& to_offset,
                            Tensor& to_mask, Tensor& to_weight, Tensor& to_bias);
void ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                            const Tensor& level_start_index, const Tensor& sampling_locations,
                            const Tensor& attention_weights, Tensor& output);
void ms_deform_attn_backward(const Tensor& grad, const Tensor& value, const Tensor& spatial_shapes,
                             const Tensor& level_start_index, const Tensor& sampling_locations,
                             const Tensor& attention_weights, Tensor& to_value,
                             Tensor& to_locations, Tensor& to_weights);

void box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind, double eps,
                     Tensor& output);
decltype(box_iou_forward) box_iou_aligned_forward, box_iou_loss_forward;
void box_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                      std::string_view kind, double eps, Tensor& grad1, Tensor& grad2);
decltype(box_iou_backward) box_iou_aligned_backward, box_iou_loss_backward;
// With `mode` iof, the intersection is divided by the area of the first box.
void box_iou_rotated(const Tensor& boxes1, const Tensor& boxes2, std::string_view mode,
                     Tensor& output);
decltype(box_iou_rotated) rotated_iou_forward, box_iou_quadri, box_iou_quadri_pairs, mask_iou;
void rotated_iou_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                          std::string_view mode, Tensor& grad1, Tensor& grad2);
void match_boxes(const Tensor& boxes1, const Tensor& boxes2, Tensor& best, Tensor& index);
void linear_assignment(const Tensor& cost, const std::optional<Tensor>& num_objects,
                       Tensor& objects);
void encode_boxes_forward(const Tensor& boxes, const Tensor& anchors, ArrayRef<double> weights,
                          Tensor& output);
void encode_boxes_backward(const Tensor& grad, const Tensor& boxes, const Tensor& anchors,
                           ArrayRef<double> weights, Tensor& to_boxes, Tensor& to_anchors);
void decode_boxes_forward(const Tensor& deltas, const Tensor& anchors, ArrayRef<double> weights,
                          double clip, Tensor& output);
void decode_boxes_backward(const Tensor& grad, const Tensor& deltas, const Tensor& anchors,
                           ArrayRef<double> weights, double clip, Tensor& to_deltas,
                           Tensor& to_anchors);

// With a negative alpha, losses have no alpha weights.
void sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                double gamma, Tensor& loss);
decltype(sigmoid_focal_loss_forward) sigmoid_focal_loss_sum;
void sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 double alpha, double gamma, Tensor& to_inputs);

// Writes one loss per row, 0 if its target is not a class.
void softmax_focal_loss_forward(const Tensor& inputs, const Tensor& targets,
                                const std::optional<Tensor>& weight, double alpha, double gamma,
                                Tensor& loss);
void softmax_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                 const std::optional<Tensor>& weight, double alpha, double gamma,
                                 Tensor& to_inputs);

// An index is -1 if no point of the other set has a finite distance.
void chamfer_distance_forward(const Tensor& points1, const Tensor& points2, Tensor& dist1,
                              Tensor& dist2, Tensor& idx1, Tensor& idx2);
void chamfer_distance_backward(const Tensor& grad1, const Tensor& grad2, const Tensor& points1,
                               const Tensor& points2, const Tensor& idx1, const Tensor& idx2,
                               Tensor& to_points1, Tensor& to_points2);

void masks_to_boxes(const Tensor& masks, Tensor& boxes);
// Allocates its output, as nms does.
Tensor mask_nms(const Tensor& masks, const Tensor& scores, double iou_threshold);
void paste_masks_in_image(const Tensor& masks, const Tensor& boxes, int64_t height, int64_t width,
                          double threshold, Tensor& pasted);

void point_sample_forward(const Tensor& input, const Tensor& points, Tensor& output);
void point_sample_backward(const Tensor& grad, const Tensor& input, const Tensor& points,
                           bool input_wanted, bool points_wanted, Tensor& to_input,
                           Tensor& to_points);
void carafe_forward(const Tensor& features, const Tensor& masks, int64_t kernel_size,
                    int64_t group_size, int64_t scale_factor, Tensor& output);
void carafe_backward(const Tensor& grad, const Tensor& features, const Tensor& masks,
                     int64_t kernel_size, int64_t group_size, int64_t scale_factor,
                     bool features_wanted, bool masks_wanted, Tensor& to_features,
                     Tensor& to_masks);
void corner_pool_forward(const Tensor& input, std::string_view mode, Tensor& output);
void corner_pool_backward(const Tensor& grad, const Tensor& input, const Tensor& output,
                          std::string_view mode, Tensor& to_input);
void rotated_feature_align_forward(const Tensor& features, const Tensor& boxes,
                                   double spatial_scale, int64_t points, Tensor& output);
void rotated_feature_align_backward(const Tensor& grad, const Tensor& boxes, double spatial_scale,
                                    int64_t points, Tensor& to_features);
// `outputs` and `inputs` count the filters' planes before rotation.
void active_rotated_filter_forward(const Tensor& input, const Tensor& indices, Tensor& output);
void active_rotated_filter_backward(const Tensor& grad, const Tensor& indices, int64_t outputs,
                                    int64_t inputs, Tensor& to_input);
void heatmaps_to_keypoints(const Tensor& maps, const Tensor& boxes, Tensor& keypoints,
                           Tensor& scores);
void masked_conv2d_forward(const Tensor& features, const Tensor& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, Tensor& output);

void winograd_conv2d_forward(const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias, IntArrayRef padding,
                             Tensor& output);
// The following five exist on the CPU only.
void batch_transpose(const Tensor& input, Tensor& output);
void winograd_conv2d_backward_weight(const Tensor& grad, const Tensor& input, IntArrayRef padding,
                                     Tensor& to_weight);
void pack_conv2d_weight(const Tensor& weight, Tensor& packed);
void pack_winograd_weight(const Tensor& weight, Tensor& packed);
void packed_conv2d(const Tensor& input, const Tensor& packed, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& add, int64_t outputs, IntArrayRef kernel_size,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool relu,
                   Tensor& output);

// Point sets have nine points and stand for their convex hulls. Quadrilaterals may have either
// orientation and may be concave.
void convex_iou(const Tensor& pointsets, const Tensor& polygons, Tensor& ious);
void convex_giou_forward(const Tensor& pointsets, const Tensor& polygons, Tensor& giou);
void convex_giou_backward(const Tensor& grad, const Tensor& pointsets, const Tensor& polygons,
                          Tensor& to_pointsets);
void min_area_polygons(const Tensor& pointsets, Tensor& polygons);
void points_in_polygons(const Tensor& points, const Tensor& polygons, Tensor& output);

void axpy_forward(const Tensor& x, const Tensor& y, double alpha, Tensor& output);
void axpy_backward(const Tensor& grad, double alpha, Tensor& to_x, Tensor& to_y);
void gdh_forward(const Tensor& x, Tensor& copy);
// `hidden` is the result of relu.
void mlp_forward(const Tensor& input, const Tensor& hidden_weights, const Tensor& hidden_bias,
                 const Tensor& output_weights, const Tensor& output_bias, Tensor& output,
                 Tensor& hidden);
void mlp_backward(const Tensor& grad, const Tensor& input, const Tensor& hidden,
                  const Tensor& hidden_weights, const Tensor& output_weights, bool input_wanted,
                  Tensor& to_input, Tensor& to_hidden_weights, Tensor& to_hidden_bias,
                  Tensor& to_output_weights, Tensor& to_output_bias);
void lltm_forward(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
                  const Tensor& c, Tensor& output, Tensor& cells, Tensor& gates);
void lltm(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& h,
          const Tensor& c, Tensor& output, Tensor& last_h, Tensor& last_c, Tensor& cells,
          Tensor& gates);
// `grad_h` is added to the gradient of the last state. `grad_c` is the gradient of the last cell.
void lltm_backward(const Tensor& grad_output, const std::optional<Tensor>& grad_h,
                   const Tensor& grad_c, const Tensor& input, const Tensor& weights,
                   const Tensor& h, const Tensor& c, const Tensor& output, const Tensor& cells,
                   const Tensor& gates, bool input_wanted, bool h_wanted, Tensor& to_input,
                   Tensor& to_weights, Tensor& to_bias, Tensor& to_h, Tensor& to_c);
