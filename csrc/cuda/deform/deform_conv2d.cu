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
      s = sample_of(p, first + self);
      corners[self] = s.corners;
      maps[self] = s.map;
      rows[self] = s.row;
      channel[self] = s.group * p.sample_channels();
    }
    __syncthreads();
    multiply_corners<n>(
        corners, maps, p.channels, p.sample_channels(), lanes,
        [&](int i, int c) { return grad_columns + p.column(rows[i], channel[i] + c); }, products);
    __syncthreads();
    if (s.row < 0) continue;
    math::deform::Corners<A> product;
    for (int k = 0; k < 4; ++k) product.at[k] = products[self].at[k];
    const auto grad = math::deform::gradient<A>(s.at, s.mask, product);
    if (grad_offset != nullptr) {
      A* to = grad_offset + 2 * s.plane * p.positions + s.in_plane;
      to[0] = grad.y;
      to[p.positions] = grad.x;
    }
    if (grad_mask != nullptr) grad_mask[s.plane * p.positions + s.in_plane] = grad.mask;
  }
}

// A thread owns a vector of channels of a pixel and adds the samples of this chunk to those of
// earlier chunks.
template <typename T, typename C, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    deform_input_kernel(DeformParams<T> p, const C* grad_columns, int64_t first_image,
                        int64_t images, const Vector<A, 4>* shares, const Vector<int, 2>* rows,
                        const int* begin, C* grad_input) {
  const Lanes lanes(p.channels / n);
  if (lanes.idle) return;
  for (int64_t pixel = int64_t(blockIdx.x) * lanes.rows + lanes.row; pixel < images * p.pixels();
       pixel += int64_t(gridDim.x) * lanes.rows) {
    const int64_t image = pixel / p.pixels();
    const int inside = static_cast<int>(pixel - image * p.pixels());
    const int y = inside / p.width, x = inside % p.width;
    const bool begun = (first_image + image) * p.positions < p.first;
    for (int c = lanes.lane * n; c < p.channels; c += lanes.count * n) {
      const int64_t map = image * p.offset_groups + c / p.sample_channels();
      C* to = grad_input + (first_image * p.pixels() + pixel) * p.channels + c;
      const C* grads = grad_columns + p.column(0, c);
      Vector<A, n> sums{};
      Vector<C, n> before{};
      if (begun) before = load<n>(to);
      visit_samples(begin, map * p.pixels() + inside, y, x, p.width, [&](int j, int corner) {
        const A share = shares[j].at[corner];
        if (share == A(0)) return;
        add_weighted(share, load<n>(grads + int64_t(rows[j].at[0]) * p.group_channels), sums);
      });
      for (int k = 0; k < n; ++k) sums.at[k] += A(before.at[k]);
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
  const Tensor numbered = empty({p.samples(), 2}, grad_columns.options().dtype(kInt));
  Vector<int, 2>* number = elements(numbered);
  for_each(p.samples(), [=] __device__(int64_t i) {
    const auto s = sample_of(p, static_cast<int>(i));
    const int pixel = math::corner_cell(s.corners.at);
    const int64_t map = (s.image - first) * p.offset_groups + s.group;
    const int cell = pixel < 0 ? cells : static_cast<int>(map * p.pixels() + pixel);
    number[i] = {{static_cast<int>(i), cell}};
  });
  // Sorted by cell: the shares of each sample in its cell, and its row of the columns.
  const Tensor shares = empty(
      {p.samples(), 4}, grad_columns.options().dtype(compute_type(grad_columns.scalar_type())));
  Vector<A, 4>* share = elements(shares);
  const auto keep = [=] __device__(int64_t j, int& at) {
    auto s = sample_of(p, at);
    int y = static_cast<int>(s.at.y), x = static_cast<int>(s.at.x);
    math::clamp_to_map(y, x, s.shares.at);
    share[j] = s.shares;
    at = s.row;
  };
  const SortedSamples sorted = sort_samples(numbered, cells, keep);
  C* to = elements(grad_input);
  with_channels(p, to, [&](auto n) {
    launch(deform_input_kernel<T, C, n>,
           blocks_for(images * p.pixels(), rows_per_block(p.channels / n)), p, grad_columns, first,
           images, shares, sorted.order, sorted.begin, to);
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
  Tensor rows = rows_of(output, g.groups), last;
  if (!rows.defined()) {
    last = empty({g.images, g.output_height, g.output_width, g.outputs}, output.options());
    rows = last.view({g.images * g.positions(), g.groups, g.group_outputs()});
  }
  const Tensor start =
      bias ? bias->to(in.type).contiguous().view({g.groups, 1, g.group_outputs()}) : Tensor();
  with_types(input.scalar_type(), in.type, [&](auto t, auto c) {
    using T = decltype(t);
    using C = decltype(c);
    each_chunk<C>(g, in.params<T>(g), [&](const DeformParams<T>& p) {
      const Tensor columns = make_columns<C>(p, in.weight);
      const Tensor to = rows.narrow(0, p.first, p.count).transpose(0, 1);
      if (bias) {
        baddbmm_out(to, start, columns, in.weight.transpose(1, 2));
      } else {
        bmm_out(to, columns, in.weight.transpose(1, 2));
      }
    });
  });
  if (last.defined()) from_channels_last(last, output);
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
  const int64_t all = g.images * g.positions();
  const Tensor maps = grad.to(in.type).contiguous(grad.suggest_memory_format());
  Tensor rows = rows_of(maps, g.groups);
  if (!rows.defined()) rows = to_channels_last(maps).view({all, g.groups, g.group_outputs()});
  if (wanted[0]) retype(to_input, in.type);
  const Tensor last = wanted[0] ? to_input.permute({0, 2, 3, 1}) : Tensor();
  const bool direct = wanted[0] && last.is_contiguous();
  const Tensor inputs = !wanted[0] || direct ? last : empty(last.sizes(), last.options());
  const Tensor offsets = wanted[1] ? to_offset : Tensor();
  const Tensor masks = wanted[2] && mask ? to_mask : Tensor();
  const bool samples_wanted = offsets.defined() || masks.defined();
  Tensor weights;  // in the accumulation type if there is more than one chunk
  with_types(input.scalar_type(), in.type, [&](auto t, auto c) {
    using T = decltype(t);
    using C = decltype(c);
    each_chunk<C>(g, in.params<T>(g), [&](const DeformParams<T>& p) {
      const Tensor outer = rows.narrow(0, p.first, p.count).transpose(0, 1);
      if (wanted[0] || samples_wanted) {
        const Tensor grad_columns =
            empty({outer.size(0), outer.size(1), in.weight.size(2)}, outer.options());
        bmm_out(grad_columns, outer, in.weight);
        if (samples_wanted) {
          with_channels(p, p.input, [&](auto n) {
            launch(deform_offset_kernel<T, C, n>, blocks_for(p.samples(), kBlockSamples), p,
                   grad_columns, lanes_for_runs(p.sample_channels()), offsets, masks);
          });
        }
        if (wanted[0]) add_input_gradient<C>(p, grad_columns, inputs);
      }
      if (!wanted[3]) return;
      const Tensor part = empty_like(in.weight);
      bmm_out(part, outer.transpose(1, 2), make_columns<C>(p, in.weight));
      if (weights.defined()) {
        add<C>(weights, part);
      } else {
        weights = p.count == all ? part : part.to(compute_type(in.type));
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
                    rows.as_strided({all, g.outputs}, {rows.stride(0), rows.stride(2)}));
  }
}

}  // namespace detops::cuda
