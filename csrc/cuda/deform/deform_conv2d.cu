// SPDX-License-Identifier: MIT
#include "deform_columns.cuh"

namespace detops::cuda {
namespace {

// Computes the gradients of offsets and masks. Either may be null.
template <typename T, typename C, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    deform_offset_kernel(DeformParams<T> p, const C* grad_columns, int lanes, A* grad_offset,
                         A* grad_mask) {
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> products[kBlockSamples];
  __shared__ const T* maps[kBlockSamples];
  __shared__ int rows[kBlockSamples], channel[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x);
  for (int first = static_cast<int>(blockIdx.x) * kBlockSamples; first < p.samples();
       first += static_cast<int>(gridDim.x) * kBlockSamples) {
    DeformSample<T> s;
    s.row = -1;
    if (self < kBlockSamples) {
      s = locate_sample(p, first + self);
      corners[self] = s.corners;
      maps[self] = s.map;
      rows[self] = s.row;
      channel[self] = s.group * p.sample_channels();
    }
    __syncthreads();
    dot_corners<n>(
        corners, maps, p.channels, p.sample_channels(), lanes,
        [&](int i, int c) { return grad_columns + p.column(rows[i], channel[i] + c); }, products);
    __syncthreads();
    if (s.row < 0) continue;
    math::deform::Corners<A> product;
    for (int k = 0; k < 4; ++k) product.at[k] = products[self].at[k];
    const auto grad = math::deform::gradient<A>(s.sample, s.mask, product);
    if (grad_offset != nullptr) {
      A* to = grad_offset + 2 * s.plane * p.positions + s.image_position;
      to[0] = grad.y;
      to[p.positions] = grad.x;
    }
    if (grad_mask != nullptr) grad_mask[s.plane * p.positions + s.image_position] = grad.mask;
  }
}

// A thread owns a vector of channels of a pixel and adds the samples of this chunk to those of
// earlier chunks.
template <typename T, typename C, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    deform_input_kernel(DeformParams<T> p, const C* grad_columns, int64_t first_image,
                        int64_t images, const Vector<A, 4>* corner_weights,
                        const Vector<int, 2>* rows, const int* begin, C* grad_input) {
  const Lanes lanes(p.channels / n);
  if (lanes.idle) return;
  for (int64_t pixel = int64_t(blockIdx.x) * lanes.rows + lanes.row; pixel < images * p.pixels();
       pixel += int64_t(gridDim.x) * lanes.rows) {
    const int64_t image = pixel / p.pixels();
    const int image_pixel = static_cast<int>(pixel - image * p.pixels());
    const int y = image_pixel / p.width, x = image_pixel % p.width;
    const bool accumulate = (first_image + image) * p.positions < p.first;
    for (int c = lanes.lane * n; c < p.channels; c += lanes.count * n) {
      const int64_t map = image * p.offset_groups + c / p.sample_channels();
      C* to = grad_input + (first_image * p.pixels() + pixel) * p.channels + c;
      const C* grads = grad_columns + p.column(0, c);
      Vector<A, n> sums{};
      Vector<C, n> previous{};
      if (accumulate) previous = load<n>(to);
      visit_samples(begin, map * p.pixels() + image_pixel, y, x, p.width, [&](int j, int corner) {
        const A weight = corner_weights[j].at[corner];
        if (weight == A(0)) return;
        add_weighted(weight, load<n>(grads + int64_t(rows[j].at[0]) * p.group_channels), sums);
      });
      for (int k = 0; k < n; ++k) sums.at[k] += A(previous.at[k]);
      store_channels<n, true>(to, 0, n, sums);
    }
  }
}

// Adds to grad_input, [N, H, W, C]. Images that begin in this chunk are uninitialised.
template <typename C, typename T, typename A = accumulate_t<T>>
void add_input_gradient(const DeformParams<T>& p, const Tensor& grad_columns,
                        const Tensor& grad_input) {
  const int64_t first = p.first / p.positions;
  const int64_t images = (p.first + p.count - 1) / p.positions + 1 - first;
  // The cell of each sample: an index into [images of the chunk, offset groups, H, W], or `cells`
  // if the sample reaches no pixel.
  const int cells = narrow(images * p.offset_groups * p.pixels());
  const Tensor sample_cells = empty({p.samples(), 2}, grad_columns.options().dtype(kInt));
  Vector<int, 2>* sample_cell = elements(sample_cells);
  for_each(p.samples(), [=] __device__(int64_t i) {
    const auto s = locate_sample(p, static_cast<int>(i));
    const int pixel = math::corner_cell(s.corners.at);
    const int64_t map = (s.image - first) * p.offset_groups + s.group;
    const int cell = pixel < 0 ? cells : static_cast<int>(map * p.pixels() + pixel);
    sample_cell[i] = {{static_cast<int>(i), cell}};
  });
  // Sorted by cell: the corner weights of each sample in its cell, and its row of the columns.
  const Tensor corner_weights = empty(
      {p.samples(), 4}, grad_columns.options().dtype(compute_type(grad_columns.scalar_type())));
  Vector<A, 4>* corner_weight = elements(corner_weights);
  const auto store_sorted = [=] __device__(int64_t j, int& index) {
    auto s = locate_sample(p, index);
    int y = static_cast<int>(s.sample.y), x = static_cast<int>(s.sample.x);
    math::clamp_to_map(y, x, s.corner_weights.at);
    corner_weight[j] = s.corner_weights;
    index = s.row;
  };
  const SortedSamples sorted = sort_samples(sample_cells, cells, store_sorted);
  C* to = elements(grad_input);
  with_channel_vectors(p, to, [&](auto n) {
    launch(deform_input_kernel<T, C, n>,
           blocks_for(images * p.pixels(), rows_per_block(p.channels / n)), p, grad_columns, first,
           images, corner_weights, sorted.order, sorted.begin, to);
  });
}

// sums += part
template <typename C, typename A = accumulate_t<C>>
void add(const Tensor& sums, const Tensor& part) {
  A* sum = elements(sums);
  const C* more = elements(part);
  for_each(part.numel(), [=] __device__(int64_t i) { sum[i] += A(more[i]); });
}

}  // namespace

void deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                           const std::optional<Tensor>& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, Tensor& output) {
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const DeformInputs in(g, input, offset, mask, weight);
  retype(output, in.type);
  Tensor rows = as_rows(output, g.groups), nhwc;
  if (!rows.defined()) {
    nhwc = empty({g.images, g.output_height, g.output_width, g.outputs}, output.options());
    rows = nhwc.view({g.images * g.positions(), g.groups, g.group_outputs()});
  }
  const Tensor group_bias =
      bias ? bias->to(in.type).contiguous().view({g.groups, 1, g.group_outputs()}) : Tensor();
  with_types(input.scalar_type(), in.type, [&](auto t, auto c) {
    using T = decltype(t);
    using C = decltype(c);
    each_chunk<C>(g, in.params<T>(g), [&](const DeformParams<T>& p) {
      const Tensor columns = deform_im2col<C>(p, in.weight);
      const Tensor to = rows.narrow(0, p.first, p.count).transpose(0, 1);
      if (bias) {
        baddbmm_out(to, group_bias, columns, in.weight.transpose(1, 2));
      } else {
        bmm_out(to, columns, in.weight.transpose(1, 2));
      }
    });
  });
  if (nhwc.defined()) from_channels_last(nhwc, output);
}

void deform_conv2d_backward(const Tensor& grad, const Tensor& input, const Tensor& offset,
                            const std::optional<Tensor>& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, ArrayRef<uint8_t> wanted,
                            bool edge_gradient, Tensor& to_input, Tensor& to_offset,
                            Tensor& to_mask, Tensor& to_weight, Tensor& to_bias) {
  if (grad.numel() == 0) {
    for (const Tensor& t : {to_input, to_offset, to_mask, to_weight, to_bias}) t.zero_();
    return;
  }
  const DeformGeometry g(input, offset, weight, stride, padding, dilation, edge_gradient);
  const DeformInputs in(g, input, offset, mask, weight);
  const int64_t positions = g.images * g.positions();
  const Tensor maps = grad.to(in.type).contiguous(grad.suggest_memory_format());
  Tensor rows = as_rows(maps, g.groups);
  if (!rows.defined()) rows = to_channels_last(maps).view({positions, g.groups, g.group_outputs()});
  if (wanted[0]) retype(to_input, in.type);
  const Tensor nhwc = wanted[0] ? to_input.permute({0, 2, 3, 1}) : Tensor();
  const bool direct = wanted[0] && nhwc.is_contiguous();
  const Tensor inputs = !wanted[0] || direct ? nhwc : empty(nhwc.sizes(), nhwc.options());
  const Tensor offsets = wanted[1] ? to_offset : Tensor();
  const Tensor masks = wanted[2] && mask ? to_mask : Tensor();
  const bool samples_wanted = offsets.defined() || masks.defined();
  Tensor weights;  // in the accumulation type if there is more than one chunk
  with_types(input.scalar_type(), in.type, [&](auto t, auto c) {
    using T = decltype(t);
    using C = decltype(c);
    each_chunk<C>(g, in.params<T>(g), [&](const DeformParams<T>& p) {
      const Tensor upstream = rows.narrow(0, p.first, p.count).transpose(0, 1);
      if (wanted[0] || samples_wanted) {
        const Tensor grad_columns =
            empty({upstream.size(0), upstream.size(1), in.weight.size(2)}, upstream.options());
        bmm_out(grad_columns, upstream, in.weight);
        if (samples_wanted) {
          with_channel_vectors(p, p.input, [&](auto n) {
            launch(deform_offset_kernel<T, C, n>, blocks_for(p.samples(), kBlockSamples), p,
                   grad_columns, lanes_for_runs(p.sample_channels()), offsets, masks);
          });
        }
        if (wanted[0]) add_input_gradient<C>(p, grad_columns, inputs);
      }
      if (!wanted[3]) return;
      const Tensor part = empty_like(in.weight);
      bmm_out(part, upstream.transpose(1, 2), deform_im2col<C>(p, in.weight));
      if (weights.defined()) {
        add<C>(weights, part);
      } else {
        weights = p.count == positions ? part : part.to(compute_type(in.type));
      }
    });
  });
  if (wanted[0] && !direct) from_channels_last(inputs, to_input);
  if (wanted[3]) {
    retype(to_weight, weights.scalar_type());
    from_channels_last(weights, to_weight);
  }
  if (wanted[4] && bias) {
    retype(to_bias, in.type);
    sum_of_rows_out(to_bias.view({1, g.outputs}),
                    rows.as_strided({positions, g.outputs}, {rows.stride(0), rows.stride(2)}));
  }
}

}  // namespace detops::cuda
