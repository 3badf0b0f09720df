// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

struct Arguments {
  const char* op;
  const Tensor &input, &offset;
  const std::optional<Tensor>& mask;
  const Tensor& weight;
  const std::optional<Tensor>& bias;
  c10::SymIntArrayRef stride, padding, dilation;
};

void check_pair(const char* op, const char* name, c10::SymIntArrayRef pair, int64_t least) {
  DETOPS_CHECK(pair.size() == 2, op, name, " must be one number or a pair, got ", pair);
  TORCH_SYM_CHECK(pair[0].sym_ge(least).sym_and(pair[1].sym_ge(least)), "detops.", op, ": ", name,
                  " must be at least ", least, ", got ", pair);
  for (const c10::SymInt& number : pair) check_size(op, name, number);
}

void check_tensor(const Arguments& a, const char* name, const Tensor& t, int64_t dim,
                  const char* shape) {
  DETOPS_CHECK(t.dim() == dim, a.op, name, " must be ", shape, ", got ", t.sym_sizes());
  check_floating(a.op, name, t);
  check_same_device(a.op, name, t, "input", a.input);
}

// An offset or a mask: [N, channels, oh, ow].
void check_per_sample(const Arguments& a, const char* name, const Tensor& t,
                      const c10::SymInt& channels, const c10::SymInt& height,
                      const c10::SymInt& width) {
  TORCH_SYM_CHECK(t.sym_size(0)
                      .sym_eq(a.input.sym_size(0))
                      .sym_and(t.sym_size(1).sym_eq(channels))
                      .sym_and(t.sym_size(2).sym_eq(height))
                      .sym_and(t.sym_size(3).sym_eq(width)),
                  "detops.", a.op, ": ", name, " must be [", a.input.sym_size(0), ", ", channels,
                  ", ", height, ", ", width, "], got ", t.sym_sizes());
}

c10::SymInt output_size(const Arguments& a, int64_t axis) {
  const c10::SymInt reach = a.dilation[axis] * (a.weight.sym_size(2 + axis) - 1) + 1;
  const c10::SymInt room = a.input.sym_size(2 + axis) + 2 * a.padding[axis] - reach;
  TORCH_SYM_CHECK(room.sym_ge(0), "detops.", a.op, ": the kernel, dilated to ", reach,
                  " pixels, must fit into the input with its padding (", a.input.sym_size(2 + axis),
                  " + 2 * ", a.padding[axis], " pixels)");
  return room / a.stride[axis] + 1;
}

// Returns the output's size.
std::vector<c10::SymInt> check(const Arguments& a) {
  const char* op = a.op;
  check_map(op, "input", a.input);
  check_tensor(a, "offset", a.offset, 4, "[N, 2 * offset groups * kh * kw, oh, ow]");
  if (a.mask) check_tensor(a, "mask", *a.mask, 4, "[N, offset groups * kh * kw, oh, ow]");
  check_tensor(a, "weight", a.weight, 4, "[O, C / groups, kh, kw]");
  if (a.bias) check_tensor(a, "bias", *a.bias, 1, "[O]");
  check_pair(op, "stride", a.stride, 1);
  check_pair(op, "padding", a.padding, 0);
  check_pair(op, "dilation", a.dilation, 1);

  const c10::SymInt channels = a.input.sym_size(1), outputs = a.weight.sym_size(0);
  const c10::SymInt points = a.weight.sym_size(2) * a.weight.sym_size(3);
  TORCH_SYM_CHECK(a.weight.sym_size(1).sym_ge(1).sym_and(points.sym_ge(1)), "detops.", op,
                  ": weight must be [O, C / groups, kh, kw] with at least 1 in each place but the "
                  "first, got ",
                  a.weight.sym_sizes());
  const c10::SymInt groups = channels / a.weight.sym_size(1);
  TORCH_SYM_CHECK(groups.sym_ge(1).sym_and(channels.sym_eq(groups * a.weight.sym_size(1))),
                  "detops.", op, ": weight.size(1) must divide the input's channels (", channels,
                  "), got ", a.weight.sym_size(1));
  TORCH_SYM_CHECK((outputs % groups).sym_eq(0), "detops.", op,
                  ": weight.size(0) must be a multiple of the groups (", groups, "), got ",
                  outputs);
  if (a.bias) {
    TORCH_SYM_CHECK(a.bias->sym_size(0).sym_eq(outputs), "detops.", op, ": bias must be [", outputs,
                    "], got ", a.bias->sym_sizes());
  }

  const c10::SymInt offset_groups = a.offset.sym_size(1) / (2 * points);
  TORCH_SYM_CHECK(
      offset_groups.sym_ge(1).sym_and((2 * points * offset_groups).sym_eq(a.offset.sym_size(1))),
      "detops.", op, ": offset.size(1) must be a multiple of 2 * kh * kw (", 2 * points, "), got ",
      a.offset.sym_size(1));
  TORCH_SYM_CHECK((channels % offset_groups).sym_eq(0), "detops.", op,
                  ": the input's channels must be a multiple of the offset groups (", offset_groups,
                  "), got ", channels);
  const c10::SymInt height = output_size(a, 0), width = output_size(a, 1);
  check_per_sample(a, "offset", a.offset, 2 * offset_groups * points, height, width);
  if (a.mask) check_per_sample(a, "mask", *a.mask, offset_groups * points, height, width);
  return {a.input.sym_size(0), outputs, height, width};
}

}  // namespace

Tensor deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                             const std::optional<Tensor>& mask, const Tensor& weight,
                             const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation) {
  const auto size =
      check({"deform_conv2d", input, offset, mask, weight, bias, stride, padding, dilation});
  return empty_map(input, size[0], size[1], size[2], size[3]);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> deform_conv2d_backward(
    const Tensor& grad, const Tensor& input, const Tensor& offset,
    const std::optional<Tensor>& mask, const Tensor& weight, const std::optional<Tensor>& bias,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
    std::array<bool, 5> wanted, bool /* edge_gradient */) {
  const Arguments a{
      "deform_conv2d_backward", input, offset, mask, weight, bias, stride, padding, dilation};
  const auto size = check(a);
  DETOPS_CHECK(grad.dim() == 4, a.op, "grad must be ", c10::SymIntArrayRef(size), ", got ",
               grad.sym_sizes());
  check_floating(a.op, "grad", grad);
  check_same_device(a.op, "grad", grad, "input", input);
  for (int64_t d = 0; d < 4; ++d) {
    TORCH_SYM_CHECK(grad.sym_size(d).sym_eq(size[d]), "detops.", a.op, ": grad must be ",
                    c10::SymIntArrayRef(size), ", got ", grad.sym_sizes());
  }
  const auto gradient = [](const Tensor& of, bool is_wanted) {
    return is_wanted ? at::empty_symint(of.sym_sizes(), of.options())
                     : at::empty({0}, of.options());
  };
  return {wanted[0] ? empty_map(input, input.sym_size(0), input.sym_size(1), input.sym_size(2),
                                input.sym_size(3))
                    : gradient(input, false),
          gradient(offset, wanted[1]), gradient(mask.value_or(offset), wanted[2] && mask),
          gradient(weight, wanted[3]), gradient(bias.value_or(weight), wanted[4] && bias)};
}

}  // namespace detops::meta
