// SPDX-License-Identifier: MIT
#include <ATen/Dispatch.h>

#include "../deform_geometry.h"
#include "../math/deform_conv2d.h"
#include "../ops.h"
#include "launch.cuh"

// The samples of a chunk of output positions are brought into columns, which a matrix product
// takes. Maps are in the order [N, H, W, C], so that neighbouring threads read neighbouring
// channels.
namespace detops::cuda {
namespace {

template <typename A>
struct DeformParams {
  DeformGeometry g;
  const A *input, *offset,
      *mask;             // [N, H, W, C]; the offset's and the mask's are in the usual order
  int64_t first, count;  // positions of the chunk, counted through all images
};

// A sample of the chunk, in the order (position, offset group, kernel point).
template <typename A>
struct DeformSample {
  math::deform::Sample<A> at;
  int64_t image, position, group, point;  // position: of the chunk
  int64_t plane, in_plane;                // of the mask: where its number is
  A mask;

  __device__ DeformSample(const DeformParams<A>& p, int64_t index) {
    const DeformGeometry& g = p.g;
    const int64_t points = g.points(), positions = g.positions();
    point = index % points;
    group = index / points % g.offset_groups;
    position = index / points / g.offset_groups;
    image = (p.first + position) / positions;
    in_plane = (p.first + position) % positions;
    plane = (image * g.offset_groups + group) * points + point;
    const A* offset = p.offset + 2 * plane * positions + in_plane;
    const A window_y = A(in_plane / g.output_width * g.stride_y - g.padding_y);
    const A window_x = A(in_plane % g.output_width * g.stride_x - g.padding_x);
    at = math::deform::sample(
        window_y + A(point / g.kernel_width * g.dilation_y) + offset[0],
        window_x + A(point % g.kernel_width * g.dilation_x) + offset[positions], A(g.height),
        A(g.width));
    mask = p.mask == nullptr ? A(1) : p.mask[plane * positions + in_plane];
  }
};

// Calls visit(corner, index) for the corners within the image; index: of the pixel in all images.
template <typename A, typename Visit>
__device__ void visit_corners(const DeformParams<A>& p, const DeformSample<A>& s, Visit&& visit) {
  for (int corner = 0; corner < 4; ++corner) {
    const int64_t y = static_cast<int64_t>(s.at.y) + corner / 2;
    const int64_t x = static_cast<int64_t>(s.at.x) + corner % 2;
    if (y < 0 || y >= p.g.height || x < 0 || x >= p.g.width) continue;
    visit(corner, (s.image * p.g.height + y) * p.g.width + x);
  }
}

// Columns: [groups, positions of the chunk, points, C / groups].
__device__ inline int64_t column_index(const DeformGeometry& g, int64_t count, int64_t position,
                                       int64_t point, int64_t channel) {
  const int64_t channels = g.group_channels();
  const int64_t row = channel / channels * count + position;
  return (row * g.points() + point) * channels + channel % channels;
}

template <typename A>
__global__ void deform_columns_kernel(DeformParams<A> p, A* columns) {
  const int64_t points = p.g.points();
  const int64_t channels = p.g.channels / p.g.offset_groups;
  DETOPS_FOR_EACH(i, p.count * points * p.g.channels) {
    const int64_t c = i % p.g.channels, k = i / p.g.channels % points;
    const int64_t position = i / p.g.channels / points;
    const DeformSample<A> s(p, (position * p.g.offset_groups + c / channels) * points + k);
    const auto weight = math::deform::weights<A>(s.at, s.mask);
    A sum = 0;
    visit_corners(p, s, [&](int corner, int64_t pixel) {
      sum += weight.at[corner] * p.input[pixel * p.g.channels + c];
    });
    columns[column_index(p.g, p.count, position, k, c)] = sum;
  }
}

// A warp per sample, its lanes over the channels.
template <typename A>
__global__ void deform_offset_kernel(DeformParams<A> p, const A* grad_columns, A* grad_offset,
                                     A* grad_mask) {
  const int64_t points = p.g.points(), positions = p.g.positions();
  const int64_t channels = p.g.channels / p.g.offset_groups;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  DETOPS_FOR_EACH(thread, p.count * p.g.offset_groups * points * kWarp) {
    const DeformSample<A> s(p, thread / kWarp);
    math::deform::Corners<A> dot{};
    for (int64_t c = s.group * channels + lane; c < (s.group + 1) * channels; c += kWarp) {
      const A grad = grad_columns[column_index(p.g, p.count, s.position, s.point, c)];
      visit_corners(p, s, [&](int corner, int64_t pixel) {
        dot.at[corner] += grad * p.input[pixel * p.g.channels + c];
      });
    }
    for (int corner = 0; corner < 4; ++corner) {
      for (int step = kWarp / 2; step > 0; step /= 2) {
        dot.at[corner] += __shfl_down_sync(0xffffffffu, dot.at[corner], step);
      }
    }
    if (lane != 0) continue;
    const auto grad = math::deform::gradient<A>(s.at, s.mask, dot);
    if (grad_offset != nullptr) {
      A* to = grad_offset + 2 * s.plane * positions + s.in_plane;
      to[0] = grad.y;
      to[positions] = grad.x;
    }
    if (grad_mask != nullptr) grad_mask[s.plane * positions + s.in_plane] = grad.mask;
  }
}

// A cell lies between four pixels, some of which may be outside of the image: cells are [images of
// the chunk, offset groups, H + 1, W + 1]. The number of a sample that does not count is that of
// the cells.
template <typename A>
__global__ void deform_cells_kernel(DeformParams<A> p, int64_t first_image, int64_t cells,
                                    int64_t* cell) {
  const int64_t points = p.g.points();
  DETOPS_FOR_EACH(i, p.count * p.g.offset_groups * points) {
    const DeformSample<A> s(p, i);
    const int64_t map = (s.image - first_image) * p.g.offset_groups + s.group;
    const int64_t y = static_cast<int64_t>(s.at.y) + 1, x = static_cast<int64_t>(s.at.x) + 1;
    cell[i] = y < 0 ? cells : (map * (p.g.height + 1) + y) * (p.g.width + 1) + x;
  }
}

// Owner-computes: a thread owns one number of the gradient, and adds the samples in the four cells
// around its pixel in their order. No atomics, so the same bits every run.
template <typename A>
__global__ void deform_input_kernel(DeformParams<A> p, const A* grad_columns, int64_t first_image,
                                    int64_t images, const int64_t* order, const int64_t* begin,
                                    A* grad_input) {
  const int64_t channels = p.g.channels / p.g.offset_groups;
  DETOPS_FOR_EACH(i, images * p.g.height * p.g.width * p.g.channels) {
    const int64_t c = i % p.g.channels, pixel = i / p.g.channels;
    const int64_t x = pixel % p.g.width, y = pixel / p.g.width % p.g.height;
    const int64_t map = pixel / p.g.width / p.g.height * p.g.offset_groups + c / channels;
    A sum = 0;
    for (int corner = 0; corner < 4; ++corner) {
      const int64_t row = map * (p.g.height + 1) + y + 1 - corner / 2;
      const int64_t cell = row * (p.g.width + 1) + x + 1 - corner % 2;
      for (int64_t j = begin[cell]; j < begin[cell + 1]; ++j) {
        const DeformSample<A> s(p, order[j]);
        sum += math::deform::weights<A>(s.at, s.mask).at[corner] *
               grad_columns[column_index(p.g, p.count, s.position, s.point, c)];
      }
    }
    grad_input[first_image * p.g.height * p.g.width * p.g.channels + i] += sum;
  }
}

// Tensors in the arithmetic's type, in the order that the kernels want.
struct Inputs {
  Tensor input;         // [N, H, W, C]
  Tensor offset, mask;  // mask: or undefined
  Tensor weight;        // [groups, O / groups, points * C / groups]

  Inputs(const DeformGeometry& g, at::ScalarType type, const Tensor& input, const Tensor& offset,
         const std::optional<Tensor>& mask, const Tensor& weight)
      : input(input.to(type).permute({0, 2, 3, 1}).contiguous()),
        offset(offset.to(type).contiguous()),
        mask(mask ? mask->to(type).contiguous() : Tensor()),
        weight(weight.to(type)
                   .permute({0, 2, 3, 1})
                   .contiguous()
                   .view({g.groups, g.group_outputs(), g.points() * g.group_channels()})) {}

  template <typename A>
  DeformParams<A> params(const DeformGeometry& g, int64_t first, int64_t count) const {
    return {g,
            input.const_data_ptr<A>(),
            offset.const_data_ptr<A>(),
            mask.defined() ? mask.const_data_ptr<A>() : nullptr,
            first,
            count};
  }
};

// Calls visit(first, count) for chunks of all images' positions, whose columns have a bounded size.
template <typename Visit>
void each_chunk(const DeformGeometry& g, const Visit& visit) {
  constexpr int64_t kNumbers = 1 << 26;
  const int64_t all = g.images * g.positions();
  const int64_t most = std::clamp<int64_t>(kNumbers / (g.channels * g.points()), 1, all);
  for (int64_t first = 0; first < all; first += most) visit(first, std::min(most, all - first));
}

template <typename A>
Tensor make_columns(const DeformGeometry& g, const DeformParams<A>& params, const Tensor& like) {
  Tensor columns =
      at::empty({g.groups, params.count, g.points() * g.group_channels()}, like.options());
  launch("deform_conv2d", deform_columns_kernel<A>, blocks_for(columns.numel()), params,
         columns.mutable_data_ptr<A>());
  return columns;
}

// Adds to grad_input [N, H, W, C].
template <typename A>
void add_input_gradient(const DeformGeometry& g, const DeformParams<A>& params,
                        const Tensor& grad_columns, Tensor& grad_input) {
  const int64_t first = params.first / g.positions();
  const int64_t images = (params.first + params.count - 1) / g.positions() + 1 - first;
  const int64_t cells = images * g.offset_groups * (g.height + 1) * (g.width + 1);
  const auto options = grad_columns.options().dtype(at::kLong);
  Tensor cell = at::empty({params.count * g.offset_groups * g.points()}, options);
  launch("deform_conv2d", deform_cells_kernel<A>, blocks_for(cell.numel()), params, first, cells,
         cell.mutable_data_ptr<int64_t>());
  const std::tuple<Tensor, Tensor> sorted =
      cell.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Tensor begin = at::searchsorted(std::get<0>(sorted), at::arange(cells + 1, options));
  const int64_t numbers = images * g.height * g.width * g.channels;
  launch("deform_conv2d", deform_input_kernel<A>, blocks_for(numbers), params,
         grad_columns.const_data_ptr<A>(), first, images,
         std::get<1>(sorted).const_data_ptr<int64_t>(), begin.const_data_ptr<int64_t>(),
         grad_input.mutable_data_ptr<A>());
}

template <typename A>
Tensor forward(const DeformGeometry& g, const Inputs& in) {
  // [positions of all images, groups, O / groups]
  Tensor rows =
      at::empty({g.images * g.positions(), g.groups, g.group_outputs()}, in.input.options());
  each_chunk(g, [&](int64_t first, int64_t count) {
    const Tensor columns = make_columns<A>(g, in.params<A>(g, first, count), in.input);
    rows.narrow(0, first, count).copy_(at::bmm(columns, in.weight.transpose(1, 2)).transpose(0, 1));
  });
  return rows;
}

// Undefined where they are not wanted.
struct Gradients {
  Tensor input;         // [N, H, W, C]
  Tensor offset, mask;  // like those
  Tensor weight;        // like Inputs::weight
};

template <typename A>
void backward(const DeformGeometry& g, const Inputs& in, const Tensor& grad_rows, Gradients& out) {
  const auto data = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr<A>() : nullptr; };
  each_chunk(g, [&](int64_t first, int64_t count) {
    const DeformParams<A> params = in.params<A>(g, first, count);
    const Tensor grad = grad_rows.narrow(0, first, count).transpose(0, 1);
    if (out.input.defined() || out.offset.defined() || out.mask.defined()) {
      const Tensor grad_columns = at::bmm(grad, in.weight);
      if (out.offset.defined() || out.mask.defined()) {
        const int64_t threads = count * g.offset_groups * g.points() * kWarp;
        launch("deform_conv2d", deform_offset_kernel<A>, blocks_for(threads), params,
               grad_columns.template const_data_ptr<A>(), data(out.offset), data(out.mask));
      }
      if (out.input.defined()) add_input_gradient<A>(g, params, grad_columns, out.input);
    }
    if (out.weight.defined()) {
      out.weight.baddbmm_(grad.transpose(1, 2), make_columns<A>(g, params, in.input));
    }
  });
}

}  // namespace

Tensor deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                             const std::optional<Tensor>& mask, const Tensor& weight,
                             const std::optional<Tensor>& bias, at::IntArrayRef stride,
                             at::IntArrayRef padding, at::IntArrayRef dilation) {
  const at::cuda::OptionalCUDAGuard guard(input.device());
  Tensor output = meta::deform_conv2d_forward(
      input, offset, mask, weight, bias, c10::fromIntArrayRefSlow(stride),
      c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation));
  if (output.numel() == 0) return output;
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const at::ScalarType type = compute_type(input.scalar_type());
  const Inputs in(g, type, input, offset, mask, weight);
  Tensor rows = type == at::kDouble ? forward<double>(g, in) : forward<float>(g, in);
  rows = rows.view({g.images, g.output_height, g.output_width, g.outputs});
  if (bias) rows.add_(bias->to(type));
  return output.copy_(rows.permute({0, 3, 1, 2}));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> deform_conv2d_backward(
    const Tensor& grad, const Tensor& input, const Tensor& offset,
    const std::optional<Tensor>& mask, const Tensor& weight, const std::optional<Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    std::array<bool, 5> wanted) {
  const at::cuda::OptionalCUDAGuard guard(input.device());
  auto results = meta::deform_conv2d_backward(
      grad, input, offset, mask, weight, bias, c10::fromIntArrayRefSlow(stride),
      c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation), wanted);
  Tensor &to_input = std::get<0>(results), &to_offset = std::get<1>(results),
         &to_mask = std::get<2>(results), &to_weight = std::get<3>(results),
         &to_bias = std::get<4>(results);
  if (grad.numel() == 0) {
    for (const Tensor& t : {to_input, to_offset, to_mask, to_weight, to_bias}) t.zero_();
    return results;
  }
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const at::ScalarType type = compute_type(input.scalar_type());
  const Inputs in(g, type, input, offset, mask, weight);
  const Tensor rows = grad.to(type)
                          .permute({0, 2, 3, 1})
                          .contiguous()
                          .view({g.images * g.positions(), g.groups, g.group_outputs()});
  Gradients out;
  if (wanted[0]) out.input = at::zeros_like(in.input);
  if (wanted[1]) out.offset = at::empty_like(in.offset);
  if (wanted[2] && mask) out.mask = at::empty_like(in.mask);
  if (wanted[3]) out.weight = at::zeros_like(in.weight);
  if (type == at::kDouble) {
    backward<double>(g, in, rows, out);
  } else {
    backward<float>(g, in, rows, out);
  }
  if (wanted[0]) to_input.copy_(out.input.permute({0, 3, 1, 2}));
  if (wanted[1]) to_offset.copy_(out.offset);
  if (wanted[2] && mask) to_mask.copy_(out.mask);
  if (wanted[3]) {
    to_weight.copy_(
        out.weight.view({g.outputs, g.kernel_height, g.kernel_width, g.group_channels()})
            .permute({0, 3, 1, 2}));
  }
  if (wanted[4] && bias) to_bias.copy_(rows.sum(0).view({g.outputs}));
  return results;
}

}  // namespace detops::cuda
