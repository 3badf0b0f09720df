// SPDX-License-Identifier: MIT
// One declaration per op that has a kernel per backend; see ops.h. Int is a number that may be a
// symbol on Meta.

// The first `max_output` boxes that nms or, with labels, batched_nms keeps, then -1; their number.
std::tuple<Tensor, Tensor> nms_padded(const Tensor& boxes,                // [N, 4]
                                      const Tensor& scores,               // [N]
                                      const std::optional<Tensor>& idxs,  // [N] integer
                                      double iou_threshold,
                                      Int max_output);  // -> int64[max_output], int64[]

Tensor roi_align_forward(const Tensor& input,  // [N, C, H, W]
                         const Tensor& rois,   // [K, 5] batch index, x1, y1, x2, y2
                         double spatial_scale, Int pooled_height, Int pooled_width,
                         int64_t sampling_ratio, bool aligned);  // -> [K, C, ph, pw]

Tensor roi_align_backward(const Tensor& grad,  // [K, C, ph, pw]
                          const Tensor& rois,  // [K, 5]
                          double spatial_scale, Int pooled_height, Int pooled_width, Int batch_size,
                          Int channels, Int height, Int width, int64_t sampling_ratio,
                          bool aligned);  // -> [N, C, H, W]

Tensor multiscale_roi_align_forward(at::TensorList inputs,  // L times [N, C, H_l, W_l]
                                    const Tensor& rois,     // [K, 5]
                                    at::ArrayRef<double> spatial_scales, Int pooled_height,
                                    Int pooled_width, int64_t sampling_ratio, bool aligned,
                                    double canonical_scale, int64_t canonical_level);

std::vector<Tensor> multiscale_roi_align_backward(
    const Tensor& grad, const Tensor& rois, at::ArrayRef<double> spatial_scales, Int pooled_height,
    Int pooled_width, Int batch_size, Int channels, IntList heights, IntList widths,
    int64_t sampling_ratio, bool aligned, double canonical_scale, int64_t canonical_level);

// C channels in and O out; D offset groups; the kernel is [kh, kw]; `stride`, `padding` and
// `dilation` are pairs. Arithmetic is that of the input's dtype, float32 at least; others may have
// another.
Tensor deform_conv2d_forward(const Tensor& input,                // [N, C, H, W]
                             const Tensor& offset,               // [N, 2 D kh kw, oh, ow] y and x
                             const std::optional<Tensor>& mask,  // [N, D kh kw, oh, ow]
                             const Tensor& weight,               // [O, C / groups, kh, kw]
                             const std::optional<Tensor>& bias,  // [O]
                             IntList stride, IntList padding,
                             IntList dilation);  // -> [N, O, oh, ow]

// The gradients of input, offset, mask, weight and bias, each of length 0 where it is not wanted.
// A sample at exactly -1 is zero: with `edge_gradient`, its derivative is that of the side within
// the image, as torchvision has it, else zero.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> deform_conv2d_backward(
    const Tensor& grad,  // [N, O, oh, ow]
    const Tensor& input, const Tensor& offset, const std::optional<Tensor>& mask,
    const Tensor& weight, const std::optional<Tensor>& bias, IntList stride, IntList padding,
    IntList dilation, std::array<bool, 5> wanted, bool edge_gradient);

std::tuple<Tensor, Tensor> roi_pool_forward(
    const Tensor& input,  // [N, C, H, W]
    const Tensor& rois,   // [K, 5]
    double spatial_scale, Int pooled_height,
    Int pooled_width);  // -> [K, C, ph, pw], its index y * W + x int32, -1 for an empty bin

Tensor roi_pool_backward(const Tensor& grad,    // [K, C, ph, pw]
                         const Tensor& input,   // gives dtype and layout
                         const Tensor& rois,    // [K, 5]
                         const Tensor& argmax,  // int32[K, C, ph, pw]
                         double spatial_scale, Int pooled_height, Int pooled_width, Int batch_size,
                         Int channels, Int height, Int width);  // -> [N, C, H, W]

Tensor ps_roi_align_forward(const Tensor& input,  // [N, C * ph * pw, H, W]
                            const Tensor& rois,   // [K, 5]
                            double spatial_scale, Int pooled_height, Int pooled_width,
                            int64_t sampling_ratio);  // -> [K, C, ph, pw]

Tensor ps_roi_align_backward(const Tensor& grad,  // [K, C, ph, pw]
                             const Tensor& rois,  // [K, 5]
                             double spatial_scale, Int pooled_height, Int pooled_width,
                             Int batch_size, Int channels, Int height, Int width,
                             int64_t sampling_ratio);  // -> [N, channels, H, W]

Tensor ps_roi_pool_forward(const Tensor& input,  // [N, C * ph * pw, H, W]
                           const Tensor& rois,   // [K, 5]
                           double spatial_scale, Int pooled_height,
                           Int pooled_width);  // -> [K, C, ph, pw]

Tensor ps_roi_pool_backward(const Tensor& grad,  // [K, C, ph, pw]
                            const Tensor& rois,  // [K, 5]
                            double spatial_scale, Int pooled_height, Int pooled_width,
                            Int batch_size, Int channels, Int height,
                            Int width);  // -> [N, channels, H, W]

Tensor roi_align_rotated_forward(const Tensor& input,  // [N, C, H, W]
                                 const Tensor& rois,   // [K, 6] batch index, cx, cy, w, h, angle
                                 double spatial_scale, Int pooled_height, Int pooled_width,
                                 int64_t sampling_ratio);  // -> [K, C, ph, pw]

Tensor roi_align_rotated_backward(const Tensor& grad,  // [K, C, ph, pw]
                                  const Tensor& rois,  // [K, 6]
                                  double spatial_scale, Int pooled_height, Int pooled_width,
                                  Int batch_size, Int channels, Int height, Int width,
                                  int64_t sampling_ratio);  // -> [N, C, H, W]

// G^2 planes of the input are one channel of the output, D in all; R classes of offsets.
std::tuple<Tensor, Tensor> deform_psroi_pool_forward(
    const Tensor& input,                  // [N, D * G^2, H, W]
    const Tensor& rois,                   // [K, 5] batch index, x1, y1, x2, y2
    const std::optional<Tensor>& offset,  // [K, 2 * R, part, part]
    double spatial_scale, Int output_channels, int64_t group_size, Int pooled_height,
    Int pooled_width, int64_t part_size, int64_t sample_per_part,
    double trans_std);  // -> output [K, D, ph, pw], samples that count [K, R, ph, pw]

std::tuple<Tensor, Tensor> deform_psroi_pool_backward(
    const Tensor& grad,  // [K, D, ph, pw]
    const Tensor& input, const Tensor& rois, const std::optional<Tensor>& offset,
    const Tensor& count,  // [K, R, ph, pw]
    double spatial_scale, int64_t group_size, int64_t part_size, int64_t sample_per_part,
    double trans_std);  // -> gradients of input and, if there are any, of offset

Tensor box_iou_forward(const Tensor& boxes1,  // [N, 4]
                       const Tensor& boxes2,  // [M, 4] -> [N, M]
                       c10::string_view kind, double eps);

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad,  // [N, M]
                                            const Tensor& boxes1, const Tensor& boxes2,
                                            c10::string_view kind, double eps);

Tensor box_iou_rotated(const Tensor& boxes1,   // [N, 5] cx, cy, w, h, angle
                       const Tensor& boxes2);  // [M, 5] -> [N, M]

std::tuple<Tensor, Tensor> match_boxes(const Tensor& boxes1,  // [N, 4]
                                       const Tensor& boxes2   // [M, 4]
);                                                            // -> best IoU [N], its index int64[N]

Tensor box_iou_loss_forward(const Tensor& boxes1,  // [..., 4]
                            const Tensor& boxes2,  // [..., 4], matched one to one -> [...]
                            c10::string_view kind, double eps);

std::tuple<Tensor, Tensor> box_iou_loss_backward(const Tensor& grad,  // [...]
                                                 const Tensor& boxes1, const Tensor& boxes2,
                                                 c10::string_view kind, double eps);

Tensor masks_to_boxes(const Tensor& masks);  // [N, H, W] -> [N, 4]

Tensor paste_masks_in_image(const Tensor& masks,                       // [N, h, w] or [N, 1, h, w]
                            const Tensor& boxes,                       // [N, 4]
                            Int height, Int width, double threshold);  // -> [N, H, W]

Tensor encode_boxes_forward(const Tensor& boxes,    // [N, 4]
                            const Tensor& anchors,  // [N, 4]
                            at::ArrayRef<double> weights);

std::tuple<Tensor, Tensor> encode_boxes_backward(const Tensor& grad,  // [N, 4]
                                                 const Tensor& boxes, const Tensor& anchors,
                                                 at::ArrayRef<double> weights);

Tensor decode_boxes_forward(const Tensor& deltas,                        // [N, 4k]
                            const Tensor& anchors,                       // [N, 4]
                            at::ArrayRef<double> weights, double clip);  // -> [N, 4k]

std::tuple<Tensor, Tensor> decode_boxes_backward(const Tensor& grad,  // [N, 4k]
                                                 const Tensor& deltas, const Tensor& anchors,
                                                 at::ArrayRef<double> weights, double clip);

// N images of S positions in L levels, M heads of D channels, Q queries, P points a level.

Tensor ms_deform_attn_forward(const Tensor& value,               // [N, S, M, D]
                              const Tensor& spatial_shapes,      // [L, 2] height, width
                              const Tensor& level_start_index,   // [L]
                              const Tensor& sampling_locations,  // [N, Q, M, L, P, 2] x, y
                              const Tensor& attention_weights    // [N, Q, M, L, P]
);                                                               // -> [N, Q, M * D]

std::tuple<Tensor, Tensor, Tensor> ms_deform_attn_backward(const Tensor& grad,  // [N, Q, M * D]
                                                           const Tensor& value,
                                                           const Tensor& spatial_shapes,
                                                           const Tensor& level_start_index,
                                                           const Tensor& sampling_locations,
                                                           const Tensor& attention_weights);

// Any shape, the same for all tensors. An alpha below 0: no weights.

Tensor sigmoid_focal_loss_forward(const Tensor& inputs, const Tensor& targets, double alpha,
                                  double gamma);

Tensor sigmoid_focal_loss_sum(const Tensor& inputs, const Tensor& targets, double alpha,
                              double gamma);  // -> [], float32 at least

Tensor sigmoid_focal_loss_backward(const Tensor& grad, const Tensor& inputs, const Tensor& targets,
                                   double alpha, double gamma);

// The demo ops. B rows, I inputs, H hidden units or states, O outputs, T steps.

Tensor axpy_forward(const Tensor& x, const Tensor& y, double alpha);

std::tuple<Tensor, Tensor> axpy_backward(const Tensor& grad, double alpha);

Tensor gdh_forward(const Tensor& x);                                  // -> [numel], a copy
std::tuple<Tensor, Tensor> mlp_forward(const Tensor& input,           // [B, I]
                                       const Tensor& hidden_weights,  // [H, I]
                                       const Tensor& hidden_bias,     // [1, H]
                                       const Tensor& output_weights,  // [O, H]
                                       const Tensor& output_bias      // [1, O]
);  // -> output [B, O], hidden [B, H] after relu

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(const Tensor& grad,  // [B, O]
                                                                const Tensor& input,
                                                                const Tensor& hidden,
                                                                const Tensor& hidden_weights,
                                                                const Tensor& output_weights,
                                                                bool input_wanted);

std::tuple<Tensor, Tensor, Tensor> lltm_forward(const Tensor& input,    // [T, B, I] or [B, I]
                                                const Tensor& weights,  // [3H, H + I]
                                                const Tensor& bias,     // [3H]
                                                const Tensor& h,        // [B, H]
                                                const Tensor& c         // [B, H]
);  // -> states and cells [T, B, H], gates [T, B, 3H]; without T for one step

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_backward(
    const Tensor& grad_output,            // [T, B, H]
    const std::optional<Tensor>& grad_h,  // [B, H], added to that of the last state
    const Tensor& grad_c,                 // [B, H], of the last cell
    const Tensor& input, const Tensor& weights, const Tensor& h, const Tensor& c,
    const Tensor& output, const Tensor& cells, const Tensor& gates, bool input_wanted,
    bool h_wanted);
