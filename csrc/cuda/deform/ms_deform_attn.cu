// SPDX-License-Identifier: MIT
#include "../../deform/geometry.h"
#include "../../math/deform.h"
#include "sorted_samples.cuh"

// A row is one head of one query of an image, in the locations, the weights and the output. One
// thread computes the position of a sample once and shares it with the threads over its channels.
namespace detops::cuda {
namespace {

template <typename T>
struct AttentionParams {
  using A = accumulate_t<T>;
  const T* value;         // [N, S, M, D]
  const int64_t* shapes;  // [L, 2]
  const int64_t* starts;  // [L]
  const A* locations;     // [N, Q, M, L, P, 2]
  const A* weights;       // [N, Q, M, L, P]
  int64_t images;
  int positions, heads, channels, queries, levels, points;

  __host__ __device__ int64_t stride() const { return int64_t(heads) * channels; }
  __host__ __device__ int64_t rows() const { return images * queries * heads; }
  __host__ __device__ int samples() const { return levels * points; }  // per row

  // The value of a row's image and head at the first position.
  __device__ const T* value_of(int64_t row) const {
    return value + row / (int64_t(queries) * heads) * positions * stride() + row % heads * channels;
  }
};

// Returns level l, or an empty one without valid corners if it reaches beyond the positions.
template <typename T>
__device__ math::Level level_of(const AttentionParams<T>& p, int l) {
  const math::Level level{p.shapes[2 * l], p.shapes[2 * l + 1], p.starts[l]};
  const bool valid = math::is_within(level, p.positions);
#ifdef DETOPS_DEBUG
  CUDA_KERNEL_ASSERT(valid && "detops.ms_deform_attn: a level reaches beyond value's positions");
#endif
  return valid ? level : math::Level{0, 0, 0};
}

template <typename A>
struct Sample {
  math::Level level;
  math::attention::SampleLocation<A> place;
  Vector<int, 4> corners;  // positions, or -1
  Vector<A, 4> shares;     // times the attention weight; 0 off the map
};

// Returns sample `at`, counted over all rows.
template <typename T, typename A = accumulate_t<T>>
__device__ Sample<A> sample_of(const AttentionParams<T>& p, int64_t at) {
  Sample<A> s;
  const int l = static_cast<int>(at % p.samples()) / p.points;
  const math::Level level = s.level = level_of(p, l);
  s.place = math::attention::locate<A>(p.locations[2 * at], p.locations[2 * at + 1], A(level.width),
                                       A(level.height));
  const auto corners = math::attention::positions(
      static_cast<int>(s.place.x), static_cast<int>(s.place.y), static_cast<int>(level.width),
      static_cast<int>(level.height), static_cast<int>(level.start));
  const auto shares = math::attention::corner_weights<A>(s.place);
  for (int i = 0; i < 4; ++i) {
    s.corners.at[i] = corners.at[i];
    s.shares.at[i] = corners.at[i] >= 0 ? p.weights[at] * shares.at[i] : A(0);
  }
  return s;
}

// Contiguous inputs on the device; locations and weights have the accumulation type. Levels on the
// CPU are checked here. On the device, kernels replace invalid levels.
struct AttentionInputs {
  Tensor value, shapes, starts, locations, weights;

  AttentionInputs(const char* op, const Tensor& given, const Tensor& spatial_shapes,
                  const Tensor& level_start_index, const Tensor& sampling_locations,
                  const Tensor& attention_weights)
      : value(given.contiguous()),
        shapes(empty(spatial_shapes.sizes(), value.options().dtype(kLong)).copy_(spatial_shapes)),
        starts(empty(level_start_index.sizes(), value.options().dtype(kLong))
                   .copy_(level_start_index)),
        locations(wide(sampling_locations, value.scalar_type())),
        weights(wide(attention_weights, value.scalar_type())) {
    if (spatial_shapes.is_cpu() && level_start_index.is_cpu()) {
      check_levels(op, spatial_shapes, level_start_index, value.size(1));
    }
  }

  template <typename T>
  AttentionParams<T> params() const {
    narrow(locations.size(3) * locations.size(4));
    return {elements(value),           elements(shapes),          elements(starts),
            elements(locations),       elements(weights),         value.size(0),
            narrow(value.size(1)),     narrow(value.size(2)),     narrow(value.size(3)),
            narrow(locations.size(1)), narrow(locations.size(3)), narrow(locations.size(4))};
  }
};

constexpr int kForwardThreads = 128;
constexpr int kStaged = 544;  // samples: 32 rows of 16, with a gap of one after each row

// One thread per row and vector of channels.
template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kForwardThreads)
    ms_deform_attn_forward_kernel(AttentionParams<T> p, T* output) {
  __shared__ Vector<int, 4> corners[kStaged];
  __shared__ Vector<A, 4> shares[kStaged];
  const Lanes lanes(p.channels / n);
  const int channel = (static_cast<int>(blockIdx.y) * lanes.count + lanes.lane) * n;
  // An odd number of slots per row, so that rows lie in different banks of shared memory.
  const int room = (kStaged / lanes.rows - 1) | 1;
  const int portion = min(p.samples(), room), places = portion | 1;
  const int64_t stride = p.stride(), rows = p.rows();
  for (int64_t first = int64_t(blockIdx.x) * lanes.rows; first < rows;
       first += int64_t(gridDim.x) * lanes.rows) {
    const int64_t row = first + lanes.row;
    const bool active = !lanes.idle && row < rows && channel < p.channels;
    const T* value = active ? p.value_of(row) + channel : nullptr;
    Vector<A, n> sums{};
    for (int begin = 0; begin < p.samples(); begin += portion) {
      const int count = min(portion, p.samples() - begin);
      __syncthreads();
      for (int i = threadIdx.x; i < lanes.rows * count; i += kForwardThreads) {
        const int of = i / count, k = i % count;
        if (first + of >= rows) break;
        const Sample<A> s = sample_of(p, (first + of) * p.samples() + begin + k);
        corners[of * places + k] = s.corners;
        shares[of * places + k] = s.shares;
      }
      __syncthreads();
      if (!active) continue;
      for (int k = lanes.row * places; k < lanes.row * places + count; ++k) {
        add_corners(value, stride, corners[k], shares[k], sums);
      }
    }
    if (!active) continue;
    store_channels<n, true>(output + row * p.channels + channel, 0, n, sums);
  }
}

// Computes the gradients of locations and weights from the products of a row's gradient with the
// values at the corners. Also stores the cell of each sample: an index into [N, M, S], or N * M * S
// if no corner counts.
template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    sample_gradients_kernel(AttentionParams<T> p, const T* grad, int lanes, A* to_locations,
                            A* to_weights, Vector<int, 2>* numbered) {
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> products[kBlockSamples];
  __shared__ const T *values[kBlockSamples], *grads[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x);
  const int64_t samples = p.rows() * p.samples();
  const int cells = static_cast<int>(p.images * p.heads * p.positions);
  for (int64_t first = int64_t(blockIdx.x) * kBlockSamples; first < samples;
       first += int64_t(gridDim.x) * kBlockSamples) {
    const int count = static_cast<int>(min(int64_t(kBlockSamples), samples - first));
    const int64_t at = first + self;
    Sample<A> s;
    if (self < count) {
      const int64_t row = at / p.samples();
      s = sample_of(p, at);
      corners[self] = s.corners;
      values[self] = p.value_of(row);
      grads[self] = grad + row * p.channels;
      const int64_t map = row / (int64_t(p.queries) * p.heads) * p.heads + row % p.heads;
      const int corner = math::corner_cell(s.corners.at);
      const int cell = corner < 0 ? cells : static_cast<int>(map * p.positions + corner);
      numbered[at] = {{static_cast<int>(at), cell}};
    } else if (self < kBlockSamples) {
      corners[self] = {{-1, -1, -1, -1}};
    }
    __syncthreads();
    multiply_corners<n>(
        corners, values, p.stride(), p.channels, lanes, [&](int i, int c) { return grads[i] + c; },
        products);
    __syncthreads();
    if (self >= count) continue;
    math::attention::Corners<A> product;
    for (int k = 0; k < 4; ++k) product.at[k] = products[self].at[k];
    const auto to = math::attention::gradient<A>(s.place, p.weights[at], A(s.level.width),
                                                 A(s.level.height), product);
    to_locations[2 * at] = to.x;
    to_locations[2 * at + 1] = to.y;
    to_weights[at] = to.weight;
  }
}

// A thread owns a vector of channels at a position.
template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    value_gradient_kernel(AttentionParams<T> p, const T* grad, const Vector<A, 4>* shares,
                          const Vector<int, 2>* of, const int* begin, T* to_value) {
  const int vectors = p.channels / n;
  const Lanes lanes(vectors);
  if (lanes.idle) return;
  const int64_t step = int64_t(gridDim.x) * lanes.rows;
  for (int64_t map = blockIdx.y; map < p.images * p.heads; map += gridDim.y) {
    const int64_t image = map / p.heads, head = map % p.heads;
    for (int64_t at = int64_t(blockIdx.x) * lanes.rows + lanes.row; at < p.positions; at += step) {
      for (int c = lanes.lane * n; c < p.channels; c += lanes.count * n) {
        Vector<A, n> sums{};
        for (int l = 0; l < p.levels; ++l) {
          const math::Level level = level_of(p, l);
          const int64_t inside = at - level.start;
          if (inside < 0 || inside >= level.height * level.width) continue;
          const int width = static_cast<int>(level.width);
          const int y = static_cast<int>(inside) / width, x = static_cast<int>(inside) % width;
          visit_samples(begin, map * p.positions + at, y, x, width, [&](int j, int corner) {
            const Vector<int, 2> from = of[j];
            const A share = shares[j].at[corner];
            // Levels may overlap, so samples of other levels are skipped, as are shares of 0.
            if (from.at[1] != l || share == A(0)) return;
            add_weighted(share, load<n>(grad + int64_t(from.at[0]) * p.channels + c), sums);
          });
        }
        T* to = to_value + ((image * p.positions + at) * p.heads + head) * p.channels + c;
        store_channels<n, true>(to, 0, n, sums);
      }
    }
  }
}

// Samples or cells that are sorted at a time, or those of one image if it has more. They take
// 400 MB.
#ifdef DETOPS_EMULATE_CUDA
constexpr int64_t kSorted = 1 << 9;
#else
constexpr int64_t kSorted = 1 << 23;
#endif

template <typename T, typename A = accumulate_t<T>>
void backward(const AttentionParams<T>& p, const T* grad, A* to_locations, A* to_weights,
              T* to_value, const Options& options) {
  const int64_t samples = p.rows() * p.samples(), cells = p.images * p.heads * p.positions;
  const Tensor numbered = empty({narrow(samples), 2}, options.dtype(kInt));
  with_vector<T, kRun>(p.channels, {p.value, grad}, [&](auto n) {
    launch(sample_gradients_kernel<T, n>, blocks_for(samples, kBlockSamples), p, grad,
           lanes_for_runs(p.channels), to_locations, to_weights, numbered);
  });
  if (cells * p.channels == 0) return;
  // Sorted by cell: the shares of each sample in its cell, and its row and level.
  const Tensor shares = empty({samples, 4}, options.dtype(compute_type(options.type)));
  const Tensor sources = empty_like(numbered);
  Vector<A, 4>* share = elements(shares);
  Vector<int, 2>* of = elements(sources);
  const auto keep = [=] __device__(int64_t j, int at) {
    auto s = sample_of(p, at);
    int y = static_cast<int>(s.place.y), x = static_cast<int>(s.place.x);
    math::clamp_to_map(y, x, s.shares.at);
    share[j] = s.shares;
    of[j] = {{at / p.samples(), at % p.samples() / p.points}};
  };
  const SortedSamples sorted = sort_samples(numbered, narrow(cells), keep);
  with_vector<T>(p.channels, {grad, to_value}, [&](auto n) {
    const dim3 grid(blocks_for(p.positions, rows_per_block(p.channels / n)),
                    std::min(blocks_for(p.images * p.heads, 1), 65535u));
    launch(value_gradient_kernel<T, n>, grid, p, grad, share, of, sorted.begin, to_value);
  });
}

}  // namespace

void ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                            const Tensor& level_start_index, const Tensor& sampling_locations,
                            const Tensor& attention_weights, Tensor& output) {
  const AttentionInputs in("ms_deform_attn", value, spatial_shapes, level_start_index,
                           sampling_locations, attention_weights);
  DETOPS_FLOAT_SWITCH(value.scalar_type(), [&] {
    const auto p = in.params<scalar_t>();
    scalar_t* out = elements(output);
    with_vector<scalar_t>(p.channels, {p.value, out}, [&](auto n) {
      const int64_t vectors = p.channels / n;
      const dim3 grid(blocks_for(p.rows(), rows_per_block(vectors, kForwardThreads)),
                      static_cast<unsigned>(ceil_div(vectors, kForwardThreads)));
      launch(ms_deform_attn_forward_kernel<scalar_t, n>, {grid, kForwardThreads}, p, out);
    });
  });
}

void ms_deform_attn_backward(const Tensor& grad, const Tensor& value, const Tensor& spatial_shapes,
                             const Tensor& level_start_index, const Tensor& sampling_locations,
                             const Tensor& attention_weights, Tensor& to_value,
                             Tensor& to_locations, Tensor& to_weights) {
  const AttentionInputs in("ms_deform_attn_backward", value, spatial_shapes, level_start_index,
                           sampling_locations, attention_weights);
  const Tensor outer = grad.to(value.scalar_type()).contiguous();
  DETOPS_FLOAT_SWITCH(value.scalar_type(), [&] {
    auto p = in.params<scalar_t>();
    const scalar_t* g = elements(outer);
    scalar_t* to = elements(to_value);
    accumulate_t<scalar_t>*at = elements(to_locations), *weight = elements(to_weights);
    const int64_t all = p.images, rows = int64_t(p.queries) * p.heads, samples = rows * p.samples();
    const int64_t of_image = std::max<int64_t>({1, samples, int64_t(p.heads) * p.positions});
    const int64_t most = std::max<int64_t>(1, kSorted / of_image);
    for (int64_t first = 0; first < all; first += most) {
      p.images = std::min(most, all - first);
      backward(p, g, at, weight, to, in.value.options());
      // Advances to the next images.
      g += p.images * rows * p.channels;
      p.value += p.images * p.positions * p.stride(), to += p.images * p.positions * p.stride();
      p.locations += 2 * p.images * samples, at += 2 * p.images * samples;
      p.weights += p.images * samples, weight += p.images * samples;
    }
  });
}

}  // namespace detops::cuda
