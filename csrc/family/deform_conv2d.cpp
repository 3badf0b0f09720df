// SPDX-License-Identifier: MIT
#include <ATen/core/dispatch/Dispatcher.h>

#include "../meta/checks.h"
#include "../ops.h"
#include "family.h"

namespace detops::family {
namespace {

using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

struct Window {
  std::array<int64_t, 2> kernel, stride, padding, dilation;  // along y, along x
  int64_t groups, offset_groups;
};

// The raw ops read these from the shapes.
void check_window(const char* op, const Window& w, const Tensor& input, const Tensor& offset,
                  const Tensor& weight) {
  DETOPS_CHECK(input.dim() == 4 && offset.dim() == 4 && weight.dim() == 4, op,
               "input, offset and weight must have 4 dimensions, got ", input.dim(), ", ",
               offset.dim(), " and ", weight.dim());
  for (const int64_t groups : {w.groups, w.offset_groups}) {
    DETOPS_CHECK(groups >= 1 && groups <= meta::kMaxSize, op, "groups must be in [1, ",
                 meta::kMaxSize, "], got ", groups);
  }
  DETOPS_CHECK(weight.sym_size(2) == w.kernel[0] && weight.sym_size(3) == w.kernel[1], op,
               "weight must have a kernel of ", w.kernel[0], " x ", w.kernel[1], ", got ",
               weight.sym_sizes());
  DETOPS_CHECK(weight.sym_size(1) * w.groups == input.sym_size(1), op, "weight must have ",
               input.sym_size(1), " / ", w.groups, " channels, got ", weight.sym_sizes());
  const c10::SymInt channels = 2 * weight.sym_size(2) * weight.sym_size(3) * w.offset_groups;
  DETOPS_CHECK(offset.sym_size(1) == channels, op, "offset must have ", channels, " channels, got ",
               offset.sym_sizes());
}

Tensor forward(const char* op, const Tensor& input, const Tensor& offset,
               const OptionalTensor& mask, const Tensor& weight, const OptionalTensor& bias,
               const Window& w) {
  check_window(op, w, input, offset, weight);
  static const auto call = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("detops::deform_conv2d_forward", "")
                               .typed<decltype(meta::deform_conv2d_forward)>();
  return call.call(input, offset, mask, weight, bias, c10::fromIntArrayRefSlow(w.stride),
                   c10::fromIntArrayRefSlow(w.padding), c10::fromIntArrayRefSlow(w.dilation));
}

Gradients backward(const char* op, const Tensor& grad, const Tensor& input, const Tensor& offset,
                   const OptionalTensor& mask, const Tensor& weight, const OptionalTensor& bias,
                   const Window& w, std::array<bool, 5> wanted) {
  check_window(op, w, input, offset, weight);
  static const auto call = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("detops::deform_conv2d_backward", "")
                               .typed<decltype(meta::deform_conv2d_backward)>();
  return call.call(grad, input, offset, mask, weight, bias, c10::fromIntArrayRefSlow(w.stride),
                   c10::fromIntArrayRefSlow(w.padding), c10::fromIntArrayRefSlow(w.dilation),
                   wanted, /*edge_gradient=*/false);
}

}  // namespace

int64_t deform_conv_forward(const Tensor& input, const Tensor& weight, const Tensor& offset,
                            const Tensor& output, const Tensor&, const Tensor&, int64_t kernel_w,
                            int64_t kernel_h, int64_t stride_w, int64_t stride_h, int64_t pad_w,
                            int64_t pad_h, int64_t dilation_w, int64_t dilation_h, int64_t group,
                            int64_t deformable_group, int64_t) {
  constexpr const char* kName = "deform_conv_forward";
  check_buffer(kName, "output", output, input);
  write(output, forward(kName, input, offset, {}, weight, {},
                        {{kernel_h, kernel_w},
                         {stride_h, stride_w},
                         {pad_h, pad_w},
                         {dilation_h, dilation_w},
                         group,
                         deformable_group}));
  return 1;
}

int64_t deform_conv_backward_input(const Tensor& input, const Tensor& offset,
                                   const Tensor& grad_output, const Tensor& grad_input,
                                   const Tensor& grad_offset, const Tensor& weight, const Tensor&,
                                   int64_t kernel_w, int64_t kernel_h, int64_t stride_w,
                                   int64_t stride_h, int64_t pad_w, int64_t pad_h,
                                   int64_t dilation_w, int64_t dilation_h, int64_t group,
                                   int64_t deformable_group, int64_t) {
  constexpr const char* kName = "deform_conv_backward_input";
  check_buffer(kName, "gradInput", grad_input, input);
  check_buffer(kName, "gradOffset", grad_offset, input);
  const auto gradients = backward(kName, grad_output, input, offset, {}, weight, {},
                                  {{kernel_h, kernel_w},
                                   {stride_h, stride_w},
                                   {pad_h, pad_w},
                                   {dilation_h, dilation_w},
                                   group,
                                   deformable_group},
                                  {true, true, false, false, false});
  write(grad_input, std::get<0>(gradients));
  write(grad_offset, std::get<1>(gradients));
  return 1;
}

int64_t deform_conv_backward_parameters(const Tensor& input, const Tensor& offset,
                                        const Tensor& grad_output, const Tensor& grad_weight,
                                        const Tensor&, const Tensor&, int64_t kernel_w,
                                        int64_t kernel_h, int64_t stride_w, int64_t stride_h,
                                        int64_t pad_w, int64_t pad_h, int64_t dilation_w,
                                        int64_t dilation_h, int64_t group, int64_t deformable_group,
                                        double scale, int64_t) {
  constexpr const char* kName = "deform_conv_backward_parameters";
  check_buffer(kName, "gradWeight", grad_weight, input);
  // Only the weights' sizes matter to their own gradient.
  const auto gradients = backward(kName, grad_output, input, offset, {}, grad_weight, {},
                                  {{kernel_h, kernel_w},
                                   {stride_h, stride_w},
                                   {pad_h, pad_w},
                                   {dilation_h, dilation_w},
                                   group,
                                   deformable_group},
                                  {false, false, false, true, false});
  grad_weight.add_(std::get<3>(gradients), scale);
  return 1;
}

void modulated_deform_conv_forward(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                   const Tensor&, const Tensor& offset, const Tensor& mask,
                                   const Tensor& output, const Tensor&, int64_t kernel_h,
                                   int64_t kernel_w, int64_t stride_h, int64_t stride_w,
                                   int64_t pad_h, int64_t pad_w, int64_t dilation_h,
                                   int64_t dilation_w, int64_t group, int64_t deformable_group,
                                   bool with_bias) {
  constexpr const char* kName = "modulated_deform_conv_forward";
  check_buffer(kName, "output", output, input);
  write(output,
        forward(kName, input, offset, mask, weight, with_bias ? OptionalTensor(bias) : std::nullopt,
                {{kernel_h, kernel_w},
                 {stride_h, stride_w},
                 {pad_h, pad_w},
                 {dilation_h, dilation_w},
                 group,
                 deformable_group}));
}

void modulated_deform_conv_backward(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                    const Tensor&, const Tensor& offset, const Tensor& mask,
                                    const Tensor&, const Tensor& grad_input,
                                    const Tensor& grad_weight, const Tensor& grad_bias,
                                    const Tensor& grad_offset, const Tensor& grad_mask,
                                    const Tensor& grad_output, int64_t kernel_h, int64_t kernel_w,
                                    int64_t stride_h, int64_t stride_w, int64_t pad_h,
                                    int64_t pad_w, int64_t dilation_h, int64_t dilation_w,
                                    int64_t group, int64_t deformable_group, bool with_bias) {
  constexpr const char* kName = "modulated_deform_conv_backward";
  check_buffer(kName, "grad_input", grad_input, input);
  check_buffer(kName, "grad_offset", grad_offset, input);
  check_buffer(kName, "grad_mask", grad_mask, input);
  check_buffer(kName, "grad_weight", grad_weight, input);
  meta::check_sizes(kName, "grad_weight", grad_weight, weight.sym_sizes());
  if (with_bias) {
    check_buffer(kName, "grad_bias", grad_bias, input);
    meta::check_sizes(kName, "grad_bias", grad_bias, bias.sym_sizes());
  }
  const auto gradients = backward(kName, grad_output, input, offset, mask, weight,
                                  with_bias ? OptionalTensor(bias) : std::nullopt,
                                  {{kernel_h, kernel_w},
                                   {stride_h, stride_w},
                                   {pad_h, pad_w},
                                   {dilation_h, dilation_w},
                                   group,
                                   deformable_group},
                                  {true, true, true, true, with_bias});
  write(grad_input, std::get<0>(gradients));
  write(grad_offset, std::get<1>(gradients));
  write(grad_mask, std::get<2>(gradients));
  grad_weight.add_(std::get<3>(gradients));
  if (with_bias) grad_bias.add_(std::get<4>(gradients));
}

}  // namespace detops::family
