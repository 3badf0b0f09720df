// SPDX-License-Identifier: MIT
#include "../../deform/geometry.h"
#include "../../math/deform.h"
#include "../../products.h"
#include "sorted_samples.cuh"

// The samples of a chunk of output positions are brought into columns, which a matrix product
// takes. Maps are in the order [N, H, W, C]: where a sample lies is computed once, by one thread,
// and shared with those over its channels.
namespace detops::cuda {
namespace {

template <typename T>
struct DeformParams {
  using A = accumulate_t<T>;
  const T* input;          // [N, H, W, C]
  const A *offset, *mask;  // in the usual order; mask: or null
  A least;                 // where samples begin to count
  int channels, height, width;
  int output_width, positions;  // of an image
  int points, kernel_width, groups, offset_groups;
  int stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
  int64_t first = 0;  // position of the chunk, counted through all images
  int count = 0;      // of positions

  __host__ __device__ int sample_channels() const { return channels / offset_groups; }
  __host__ __device__ int pixels() const { return height * width; }

  // Numbered plane by plane for 32 positions at a time: neighbouring threads read neighbouring
  // offsets. Some samples of the last positions are none.
  __host__ __device__ int samples() const {
    return ceil_div(count, kWarp) * kWarp * offset_groups * points;
  }

  // Columns: [groups, positions of the chunk, points, C / groups]. row: of positions and points.
  __device__ int64_t column(int row, int channel) const {
    const int size = channels / groups;
    return (int64_t(channel / size) * count * points + row) * size + channel % size;
  }
};

template <typename T>
struct DeformSample {
  using A = accumulate_t<T>;
  math::deform::Sample<A> at;
  A mask;
  int64_t image;
  int row;                  // of the columns, or -1
  int group;                // of offsets
  int64_t plane, in_plane;  // of the mask: where its number is
  const T* map;             // the pixel 0 of the image and the group's first channel
  Vector<int, 4> corners;   // pixels of the image, or -1
  Vector<A, 4> shares;      // times the mask; 0 off the image
};

template <typename T, typename A = accumulate_t<T>>
__device__ DeformSample<T> sample_of(const DeformParams<T>& p, int index) {
  DeformSample<T> s{};
  const int plane = index / kWarp % (p.offset_groups * p.points);
  const int position = index / kWarp / (p.offset_groups * p.points) * kWarp + index % kWarp;
  s.row = -1;
  s.corners = {{-1, -1, -1, -1}};
  if (position >= p.count) return s;
  const int point = plane % p.points;
  s.group = plane / p.points;
  s.row = position * p.points + point;
  s.image = (p.first + position) / p.positions;
  const int place = static_cast<int>(p.first + position - s.image * p.positions);
  s.in_plane = place;
  s.plane = s.image * p.offset_groups * p.points + plane;
  s.map = p.input + s.image * p.pixels() * p.channels + s.group * p.sample_channels();
  const A* offset = p.offset + 2 * s.plane * p.positions + place;
  const A window_y = A(place / p.output_width * p.stride_y - p.padding_y);
  const A window_x = A(place % p.output_width * p.stride_x - p.padding_x);
  s.at = math::deform::sample(
      window_y + A(point / p.kernel_width * p.dilation_y) + offset[0],
      window_x + A(point % p.kernel_width * p.dilation_x) + offset[p.positions], p.least,
      A(p.height), A(p.width));
  s.mask = p.mask == nullptr ? A(1) : p.mask[s.plane * p.positions + place];
  const auto weights = math::deform::weights<A>(s.at, s.mask);
  for (int i = 0; i < 4; ++i) {
    const int y = static_cast<int>(s.at.y) + i / 2, x = static_cast<int>(s.at.x) + i % 2;
    const bool inside = y >= 0 && y < p.height && x >= 0 && x < p.width;
    s.corners.at[i] = inside ? y * p.width + x : -1;
    s.shares.at[i] = inside ? weights.at[i] : A(0);
  }
  return s;
}

template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads) deform_columns_kernel(DeformParams<T> p, A* columns) {
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> shares[kBlockSamples];
  __shared__ const T* maps[kBlockSamples];
  __shared__ int rows[kBlockSamples], channel[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x), vectors = p.sample_channels() / n;
  for (int first = static_cast<int>(blockIdx.x) * kBlockSamples; first < p.samples();
       first += static_cast<int>(gridDim.x) * kBlockSamples) {
    if (self < kBlockSamples) {
      const DeformSample<T> s = sample_of(p, first + self);
      corners[self] = s.corners;
      shares[self] = s.shares;
      maps[self] = s.map;
      rows[self] = s.row;
      channel[self] = s.group * p.sample_channels();
    }
    __syncthreads();
    for (int i = self; i < kBlockSamples * vectors; i += kThreads) {
      const int k = i / vectors, c = i % vectors * n;
      if (rows[k] < 0) continue;
      Vector<A, n> sums{};
      add_corners(maps[k] + c, p.channels, corners[k], shares[k], sums);
      store(columns + p.column(rows[k], channel[k] + c), sums);
    }
    __syncthreads();
  }
}

// Calls run(std::integral_constant<int, n>()): channels that may be taken at a time.
template <typename T, typename Run>
void with_channels(const DeformParams<T>& p, const void* pointer, const Run& run) {
  // A vector lies in one group of offsets, and in one of channels.
  const bool whole = p.channels / p.groups % kRun == 0 && p.sample_channels() % kRun == 0;
  with_vector<T, kRun>(whole ? 0 : 1, {pointer}, run);
}

template <typename T>
Tensor make_columns(const DeformParams<T>& p, const Tensor& like) {
  Tensor columns =
      empty({p.groups, p.count, int64_t(p.points) * (p.channels / p.groups)}, like.options());
  with_channels(p, p.input, [&](auto n) {
    launch(deform_columns_kernel<T, n>, blocks_for(p.samples(), kBlockSamples), p, columns);
  });
  return columns;
}

// Tensors in the order that the kernels want; all but the input in the type to accumulate in. So
// are the columns: rounded to half precision they would let tensor cores multiply them, but results
// would be rounded twice.
struct DeformInputs {
  Tensor input;         // [N, H, W, C]
  Tensor offset, mask;  // mask: or undefined
  Tensor weight;        // [groups, O / groups, points * C / groups]

  DeformInputs(const DeformGeometry& g, ScalarType type, const Tensor& input, const Tensor& offset,
               const std::optional<Tensor>& mask, const Tensor& weight)
      : input(input.permute({0, 2, 3, 1}).contiguous()),
        offset(wide(offset, type)),
        mask(wide(mask, type)),
        weight(weight.to(type)
                   .permute({0, 2, 3, 1})
                   .contiguous()
                   .view({g.groups, g.group_outputs(), g.points() * g.group_channels()})) {}

  template <typename T>
  DeformParams<T> params(const DeformGeometry& g) const {
    narrow(g.height * g.width);
    const auto least = math::deform::least_place<accumulate_t<T>>(g.edge_gradient);
    return {elements(input),         elements(offset),
            elements(mask),          least,
            narrow(g.channels),      narrow(g.height),
            narrow(g.width),         narrow(g.output_width),
            narrow(g.positions()),   narrow(g.points()),
            narrow(g.kernel_width),  narrow(g.groups),
            narrow(g.offset_groups), narrow(g.stride_y),
            narrow(g.stride_x),      narrow(g.padding_y),
            narrow(g.padding_x),     narrow(g.dilation_y),
            narrow(g.dilation_x)};
  }
};

// What is summed for a result, in the type to accumulate in and in one piece: the result itself
// where it is so.
Tensor sums_for(const Tensor& result, ScalarType type) {
  const bool direct = result.scalar_type() == type && result.is_contiguous();
  return direct ? result : empty(result.sizes(), result.options().dtype(type));
}

// Calls visit(p) for chunks of all images' positions. Columns take up to 128 MB in float32, which
// are enough positions to fill a GPU: 14,000 of 256 channels and nine points.
template <typename T, typename Visit>
void each_chunk(const DeformGeometry& g, DeformParams<T> p, const Visit& visit) {
#ifdef DETOPS_EMULATE_CUDA
  constexpr int64_t kNumbers = 1 << 18;
#else
  constexpr int64_t kNumbers = 1 << 25;
#endif
  const int64_t all = g.images * g.positions();
  const int64_t images = std::max<int64_t>(1, kNumbers / (g.channels * g.height * g.width));
  const int64_t most = std::clamp<int64_t>(kNumbers / (g.channels * g.points()), 1,
                                           std::min(all, images * g.positions()));
  const int64_t chunks = ceil_div(all, most), count = ceil_div(all, chunks);
  for (; p.first < all; p.first += count) {
    p.count = static_cast<int>(std::min(count, all - p.first));
    visit(p);
  }
}

// The gradients of offsets and masks, either of which may be null.
template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    deform_offset_kernel(DeformParams<T> p, const A* grad_columns, int lanes, A* grad_offset,
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

// A thread owns a vector of channels of a pixel, and adds to it.
template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    deform_input_kernel(DeformParams<T> p, const A* grad_columns, int64_t first_image,
                        int64_t images, const Vector<A, 4>* shares, const int* rows,
                        const int* begin, A* grad_input) {
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
template <typename T, typename A = accumulate_t<T>>
void add_input_gradient(const DeformParams<T>& p, const Tensor& grad_columns,
                        const Tensor& grad_input) {
  const int64_t first = p.first / p.positions;
  const int64_t images = (p.first + p.count - 1) / p.positions + 1 - first;
  // The cell of each sample: of [images of the chunk, offset groups, H, W], or their number where
  // the sample reaches no pixel.
  const int cells = narrow(images * p.offset_groups * p.pixels());
  const Tensor cell_of_samples = empty({p.samples()}, grad_columns.options().dtype(kInt));
  int* cell = elements(cell_of_samples);
  for_each(p.samples(), [=] __device__(int64_t i) {
    const auto s = sample_of(p, static_cast<int>(i));
    const int pixel = math::cell_of(s.corners.at);
    const int64_t map = (s.image - first) * p.offset_groups + s.group;
    cell[i] = pixel < 0 ? cells : static_cast<int>(map * p.pixels() + pixel);
  });
  // In the order of the cells: the samples' shares in theirs, and their rows of the columns.
  const SortedSamples sorted = sort_samples(cell_of_samples, cells);
  const Tensor shares = empty({p.samples(), 4}, grad_columns.options());
  const Tensor rows = empty_like(cell_of_samples);
  const int64_t* order = elements(sorted.order);
  Vector<A, 4>* share = elements(shares);
  int* row = elements(rows);
  for_each(p.samples(), [=] __device__(int64_t j) {
    auto s = sample_of(p, static_cast<int>(order[j]));
    int y = static_cast<int>(s.at.y), x = static_cast<int>(s.at.x);
    math::move_into_map(y, x, s.shares.at);
    share[j] = s.shares;
    row[j] = s.row;
  });
  A* to = elements(grad_input);
  with_channels(p, to, [&](auto n) {
    launch(deform_input_kernel<T, n>,
           blocks_for(images * p.pixels(), rows_per_block(p.channels / n)), p, grad_columns, first,
           images, shares, rows, sorted.begin, to);
  });
}

}  // namespace

void deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                           const std::optional<Tensor>& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, Tensor& output) {
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const ScalarType type = compute_type(input.scalar_type());
  const DeformInputs in(g, type, input, offset, mask, weight);
  const Tensor last = output.permute({0, 2, 3, 1}), sums = sums_for(last, type);  // [N, H, W, O]
  if (bias) sums.copy_(*bias);  // for each position
  const Tensor rows = sums.view({g.images * g.positions(), g.groups, g.group_outputs()});
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    each_chunk(g, in.params<scalar_t>(g), [&](const DeformParams<scalar_t>& p) {
      const Tensor columns = make_columns(p, in.weight);
      const Tensor to = rows.narrow(0, p.first, p.count).transpose(0, 1);
      if (bias) {
        baddbmm_out(to, to, columns, in.weight.transpose(1, 2));
      } else {
        bmm_out(to, columns, in.weight.transpose(1, 2));
      }
    });
  });
  if (!sums.is_same(last)) last.copy_(sums);
}

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
  const Tensor last = wanted[0] ? to_input.permute({0, 2, 3, 1}) : Tensor();
  const Tensor inputs = wanted[0] ? sums_for(last, type).zero_() : Tensor();
  const Tensor offsets = wanted[1] ? to_offset : Tensor();
  const Tensor masks = wanted[2] && mask ? to_mask : Tensor();
  const Tensor weights = wanted[3] ? zeros_like(in.weight) : Tensor();
  const bool samples_wanted = offsets.defined() || masks.defined();
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    each_chunk(g, in.params<scalar_t>(g), [&](const DeformParams<scalar_t>& p) {
      const Tensor outer = rows.narrow(0, p.first, p.count).transpose(0, 1);
      if (wanted[0] || samples_wanted) {
        const Tensor grad_columns =
            empty({outer.size(0), outer.size(1), in.weight.size(2)}, outer.options());
        bmm_out(grad_columns, outer, in.weight);
        if (samples_wanted) {
          with_channels(p, p.input, [&](auto n) {
            launch(deform_offset_kernel<scalar_t, n>, blocks_for(p.samples(), kBlockSamples), p,
                   grad_columns, lanes_for_runs(p.sample_channels()), offsets, masks);
          });
        }
        if (wanted[0]) add_input_gradient(p, grad_columns, inputs);
      }
      if (wanted[3]) {
        baddbmm_out(weights, weights, outer.transpose(1, 2), make_columns(p, in.weight));
      }
    });
  });
  if (wanted[0] && !inputs.is_same(last)) last.copy_(inputs);
  if (wanted[3]) {
    to_weight.copy_(weights.view({g.outputs, g.kernel_height, g.kernel_width, g.group_channels()})
                        .permute({0, 3, 1, 2}));
  }
  if (wanted[4] && bias) {
    to_bias.copy_(sum_of_rows(rows.view({g.images * g.positions(), g.outputs})).view({g.outputs}));
  }
}

}  // namespace detops::cuda
