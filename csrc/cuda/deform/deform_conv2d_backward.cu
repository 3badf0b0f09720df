// SPDX-License-Identifier: MIT
#include "deform_conv2d.cuh"
#include "sorted_samples.cuh"

namespace detops::cuda {
namespace {

// The gradients of offsets and masks, either of which may be null.
template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    deform_offset_kernel(DeformParams<T> p, const accumulate_t<T>* grad_columns, int lanes,
                         accumulate_t<T>* grad_offset, accumulate_t<T>* grad_mask) {
  using A = accumulate_t<T>;
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> products[kBlockSamples];
  __shared__ const T* maps[kBlockSamples];
  __shared__ int rows[kBlockSamples], channel[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x), lane = self % lanes;
  const int channels = p.sample_channels();
  for (int first = static_cast<int>(blockIdx.x) * kBlockSamples; first < p.samples();
       first += static_cast<int>(gridDim.x) * kBlockSamples) {
    DeformSample<A> s;
    s.row = -1;
    if (self < kBlockSamples) {
      s = sample_of(p, first + self);
      rows[self] = s.row;
      if (s.row >= 0) {
        corners[self] = s.corners;
        maps[self] = map_of(p, s);
        channel[self] = s.group * channels;
      }
    }
    __syncthreads();
    for (int i = self / lanes; i < kBlockSamples; i += kThreads / lanes) {
      Vector<A, 4> sums{};
      for (int c = lane * kRun; rows[i] >= 0 && c < channels; c += lanes * kRun) {
        const auto grad = load_run<n, A>(channels - c, [&](int k) {
          return grad_columns + p.column(rows[i], channel[i] + c + k);
        });
        for (int k = 0; k < 4; ++k) {
          if (corners[i].at[k] < 0) continue;
          const T* pixel = maps[i] + int64_t(corners[i].at[k]) * p.channels + c;
          const auto value = load_run<n, A>(channels - c, [&](int m) { return pixel + m; });
          sums.at[k] = dot(grad, value, sums.at[k]);
        }
      }
      sum_over_lanes(sums, lanes);
      if (lane == 0) products[i] = sums;
    }
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

// The cell of each sample: of [images of the chunk, offset groups, H, W], or their number where the
// sample reaches no pixel.
template <typename T>
__global__ void deform_cells_kernel(DeformParams<T> p, int64_t first_image, int cells, int* cell) {
  DETOPS_FOR_EACH(i, p.samples()) {
    const auto s = sample_of(p, static_cast<int>(i));
    const int pixel = math::cell_of(s.corners.at);
    if (pixel < 0) {
      cell[i] = cells;
    } else {
      const int64_t map = (s.image - first_image) * p.offset_groups + s.group;
      cell[i] = static_cast<int>(map * p.pixels() + pixel);
    }
  }
}

// In the order of the cells: the samples' shares at the pixels of their cells, and their rows of
// the columns.
template <typename T>
__global__ void deform_shares_kernel(DeformParams<T> p, const int64_t* order,
                                     Vector<accumulate_t<T>, 4>* shares, int* rows) {
  using A = accumulate_t<T>;
  DETOPS_FOR_EACH(j, p.samples()) {
    const auto s = sample_of(p, static_cast<int>(order[j]));
    rows[j] = s.row;
    if (s.row < 0) continue;
    const auto weight = math::deform::weights<A>(s.at, s.mask);
    for (int k = 0; k < 4; ++k) shares[j].at[k] = weight.at[k];
    int y = static_cast<int>(s.at.y), x = static_cast<int>(s.at.x);
    math::move_into_map(y, x, shares[j].at);
  }
}

// A thread owns a vector of channels of a pixel, and adds to it.
template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    deform_input_kernel(DeformParams<T> p, const accumulate_t<T>* grad_columns, int64_t first_image,
                        int64_t images, const Vector<accumulate_t<T>, 4>* shares, const int* rows,
                        const int* begin, accumulate_t<T>* grad_input) {
  using A = accumulate_t<T>;
  const Lanes lanes(p.channels / n);
  if (lanes.idle) return;
  for (int64_t pixel = int64_t(blockIdx.x) * lanes.rows + lanes.row; pixel < images * p.pixels();
       pixel += int64_t(gridDim.x) * lanes.rows) {
    const int64_t image = pixel / p.pixels();
    const int inside = static_cast<int>(pixel - image * p.pixels());
    const int y = inside / p.width, x = inside % p.width;
    for (int c = lanes.lane * n; c < p.channels; c += lanes.count * n) {
      const int64_t map = image * p.offset_groups + c / p.sample_channels();
      Vector<A, n> sums{};
      visit_samples(begin, map * p.pixels() + inside, y, x, p.width, [&](int j, int corner) {
        const A share = shares[j].at[corner];
        if (share == A(0)) return;
        const Vector<A, n> grad = load<n>(grad_columns + p.column(rows[j], c));
        for (int k = 0; k < n; ++k) sums.at[k] = multiply_add(share, grad.at[k], sums.at[k]);
      });
      A* to = grad_input + (first_image * p.pixels() + pixel) * p.channels + c;
      Vector<A, n> all = load<n>(to);
      for (int k = 0; k < n; ++k) all.at[k] += sums.at[k];
      store(to, all);
    }
  }
}

// Adds to grad_input [N, H, W, C].
template <typename T>
void add_input_gradient(const DeformParams<T>& p, const Tensor& grad_columns, Tensor& grad_input) {
  using A = accumulate_t<T>;
  constexpr const char* kOp = "deform_conv2d_backward";
  const int64_t first = p.first / p.positions;
  const int64_t images = (p.first + p.count - 1) / p.positions + 1 - first;
  const int64_t cells = narrow(kOp, images * p.offset_groups * p.pixels());
  const Tensor cell = empty({p.samples()}, grad_columns.options().dtype(kInt));
  launch(kOp, deform_cells_kernel<T>, blocks_for(p.samples()), p, first, cells,
         cell.mutable_data_ptr<int>());
  const SortedSamples sorted = sort_samples(cell, cells);
  const Tensor shares = empty({p.samples(), 4}, grad_columns.options());
  const Tensor rows = empty_like(cell);
  auto* to_shares = reinterpret_cast<Vector<A, 4>*>(shares.mutable_data_ptr<A>());
  launch(kOp, deform_shares_kernel<T>, blocks_for(p.samples()), p,
         sorted.order.const_data_ptr<int64_t>(), to_shares, rows.mutable_data_ptr<int>());
  A* to = grad_input.mutable_data_ptr<A>();
  with_channels(p, {to}, [&](auto n) {
    launch(kOp, deform_input_kernel<T, n>,
           blocks_for(images * p.pixels(), rows_per_block(p.channels / n)), p,
           grad_columns.const_data_ptr<A>(), first, images, to_shares, rows.const_data_ptr<int>(),
           sorted.begin.const_data_ptr<int>(), to);
  });
}

// A result in the type to accumulate in and in the kernels' order: the tensor itself where it is
// so.
struct Gradient {
  Tensor result, sums;

  Gradient(bool wanted, const Tensor& to, ScalarType type) {
    if (!wanted) return;
    result = to;
    const bool direct = to.scalar_type() == type && to.is_contiguous();
    sums = direct ? to : empty(to.sizes(), to.options().dtype(type));
  }

  void finish() {
    if (sums.defined() && sums.const_data_ptr() != result.const_data_ptr()) result.copy_(sums);
  }

  template <typename A>
  A* data() const {
    return sums.defined() ? sums.mutable_data_ptr<A>() : nullptr;
  }
};

}  // namespace

void deform_conv2d_backward(const Tensor& grad, const Tensor& input, const Tensor& offset,
                            const std::optional<Tensor>& mask, const Tensor& weight,
                            const std::optional<Tensor>& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, std::array<bool, 5> wanted,
                            bool edge_gradient, Tensor& to_input, Tensor& to_offset,
                            Tensor& to_mask, Tensor& to_weight, Tensor& to_bias) {
  if (grad.numel() == 0) {
    for (const Tensor& t : {to_input, to_offset, to_mask, to_weight, to_bias}) t.zero_();
    return;
  }
  const DeformGeometry g(input, offset, weight, stride, padding, dilation, edge_gradient);
  const ScalarType type = compute_type(input.scalar_type());
  const DeformInputs in(g, type, input, offset, mask, weight);
  const Tensor rows = grad.to(type)
                          .permute({0, 2, 3, 1})
                          .contiguous()
                          .view({g.images * g.positions(), g.groups, g.group_outputs()});
  Gradient of_input(wanted[0], wanted[0] ? to_input.permute({0, 2, 3, 1}) : to_input, type);
  Gradient of_offset(wanted[1], to_offset, type), of_mask(wanted[2] && mask, to_mask, type);
  Tensor of_weight = wanted[3] ? zeros_like(in.weight) : Tensor();
  if (wanted[0]) of_input.sums.zero_();
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    each_chunk(g, [&](int64_t first, int64_t count) {
      const auto p = in.params<scalar_t>(g, first, count);
      const Tensor outer = rows.narrow(0, first, count).transpose(0, 1);
      A *offsets = of_offset.data<A>(), *masks = of_mask.data<A>();
      if (wanted[0] || offsets != nullptr || masks != nullptr) {
        const Tensor grad_columns =
            empty({outer.size(0), outer.size(1), in.weight.size(2)}, outer.options());
        bmm_out(grad_columns, outer, in.weight);
        const A* columns = grad_columns.const_data_ptr<A>();
        if (offsets != nullptr || masks != nullptr) {
          with_channels(p, {p.input}, [&](auto n) {
            launch("deform_conv2d_backward", deform_offset_kernel<scalar_t, n>,
                   blocks_for(p.samples(), kBlockSamples), p, columns,
                   lanes_for_runs(p.sample_channels()), offsets, masks);
          });
        }
        if (wanted[0]) add_input_gradient(p, grad_columns, of_input.sums);
      }
      if (wanted[3])
        baddbmm_out(of_weight, of_weight, outer.transpose(1, 2), make_columns(p, in.weight));
    });
  });
  for (Gradient* gradient : {&of_input, &of_offset, &of_mask}) gradient->finish();
  if (wanted[3]) {
    to_weight.copy_(of_weight.view({g.outputs, g.kernel_height, g.kernel_width, g.group_channels()})
                        .permute({0, 3, 1, 2}));
  }
  if (wanted[4] && bias) {
    to_bias.copy_(sum_of_rows(rows.view({g.images * g.positions(), g.outputs})).view({g.outputs}));
  }
}

}  // namespace detops::cuda
