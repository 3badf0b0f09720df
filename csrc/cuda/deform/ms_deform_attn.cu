// SPDX-License-Identifier: MIT
#include "../../deform/geometry.h"
#include "../../math/deform.h"
#include "../../ops.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"
#include "sorted_samples.cuh"

// A row is a query's head in an image: of the locations, of the weights, of the output. Where its
// samples lie is computed once, by one thread each, and shared with the threads over its channels.
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
  __host__ __device__ int samples() const { return levels * points; }  // of a row

  // The value of a row's image and head at the first position.
  __device__ const T* value_of(int64_t row) const {
    return value + row / (int64_t(queries) * heads) * positions * stride() + row % heads * channels;
  }
};

// A level that reaches beyond the positions has no corner that counts.
template <typename T>
__device__ math::Level level_of(const AttentionParams<T>& p, int l) {
  const math::Level level{p.shapes[2 * l], p.shapes[2 * l + 1], p.starts[l]};
  const bool valid = math::lies_within(level, p.positions);
#ifdef DETOPS_DEBUG
  CUDA_KERNEL_ASSERT(valid && "detops.ms_deform_attn: a level reaches beyond value's positions");
#endif
  return valid ? level : math::Level{0, 0, 0};
}

template <typename A>
struct Sample {
  math::Level level;
  math::attention::Place<A> place;
  Vector<int, 4> corners;  // positions, or -1
  Vector<A, 4> shares;     // times the weight; 0 off the map
};

// Of all samples, number `at`.
template <typename T, typename A = accumulate_t<T>>
__device__ Sample<A> sample_of(const AttentionParams<T>& p, int64_t at) {
  Sample<A> s;
  const int l = static_cast<int>(at % p.samples()) / p.points;
  const math::Level level = s.level = level_of(p, l);
  s.place = math::attention::place<A>(p.locations[2 * at], p.locations[2 * at + 1], A(level.width),
                                      A(level.height));
  const auto corners = math::attention::positions(
      static_cast<int>(s.place.x), static_cast<int>(s.place.y), static_cast<int>(level.width),
      static_cast<int>(level.height), static_cast<int>(level.start));
  const auto shares = math::attention::shares<A>(s.place);
  for (int i = 0; i < 4; ++i) {
    s.corners.at[i] = corners.at[i];
    s.shares.at[i] = corners.at[i] >= 0 ? p.weights[at] * shares.at[i] : A(0);
  }
  return s;
}

// All tensors contiguous; locations and weights of the type to accumulate in.
template <typename T>
AttentionParams<T> make_params(const Tensor& value, const Tensor& shapes, const Tensor& starts,
                               const Tensor& locations, const Tensor& weights) {
  const auto narrow = [](int64_t size) { return cuda::narrow("ms_deform_attn", size); };
  return {value.const_data_ptr<T>(),
          shapes.const_data_ptr<int64_t>(),
          starts.const_data_ptr<int64_t>(),
          locations.const_data_ptr<accumulate_t<T>>(),
          weights.const_data_ptr<accumulate_t<T>>(),
          value.size(0),
          narrow(value.size(1)),
          narrow(value.size(2)),
          narrow(value.size(3)),
          narrow(locations.size(1)),
          narrow(locations.size(3)),
          narrow(locations.size(4))};
}

// Levels on the CPU are checked there; those on the device are made safe in the kernels.
Tensor on_device(const Tensor& t, const Tensor& value) {
  return empty(t.sizes(), value.options().dtype(kLong)).copy_(t);
}

void check_levels_on_cpu(const char* op, const Tensor& value, const Tensor& shapes,
                         const Tensor& starts) {
  if (shapes.is_cpu() && starts.is_cpu()) {
    check_levels(op, shapes, starts, value.size(1));
  }
}
constexpr int kForwardThreads = 128;
constexpr int kStaged = 544;  // samples: those of 32 rows of 16, and a gap after each row

// A thread per row and vector of channels.
template <typename T, int n>
__global__ void __launch_bounds__(kForwardThreads)
    ms_deform_attn_forward_kernel(AttentionParams<T> p, T* output) {
  using A = accumulate_t<T>;
  __shared__ Vector<int, 4> corners[kStaged];
  __shared__ Vector<A, 4> shares[kStaged];
  const Lanes lanes(p.channels / n);
  const int channel = (static_cast<int>(blockIdx.y) * lanes.count + lanes.lane) * n;
  // An odd number of places a row, so that rows lie in different banks of the memory.
  const int room = (kStaged / lanes.rows - 1) | 1;
  const int portion = min(p.samples(), room), places = portion | 1;
  const int64_t stride = p.stride(), rows = p.rows();
  for (int64_t first = int64_t(blockIdx.x) * lanes.rows; first < rows;
       first += int64_t(gridDim.x) * lanes.rows) {
    const int64_t row = first + lanes.row;
    const bool active = !lanes.idle && row < rows && channel < p.channels;
    const T* value = active ? p.value_of(row) + channel : nullptr;
    A sums[n] = {};
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
        const Vector<int, 4> at = corners[k];
        const Vector<A, 4> share = shares[k];
        Vector<T, n> found[4] = {};
        for (int i = 0; i < 4; ++i) {
          if (at.at[i] >= 0) found[i] = load<n>(value + at.at[i] * stride);
        }
        for (int i = 0; i < 4; ++i) {
          for (int c = 0; c < n; ++c) {
            sums[c] = multiply_add(share.at[i], A(found[i].at[c]), sums[c]);
          }
        }
      }
    }
    if (!active) continue;
    Vector<T, n> result;
    for (int c = 0; c < n; ++c) result.at[c] = static_cast<T>(sums[c]);
    store(output + row * p.channels + channel, result);
  }
}

}  // namespace

void ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                            const Tensor& level_start_index, const Tensor& sampling_locations,
                            const Tensor& attention_weights, Tensor& output) {
  check_levels_on_cpu("ms_deform_attn", value, spatial_shapes, level_start_index);
  const Tensor shapes = on_device(spatial_shapes, value);
  const Tensor starts = on_device(level_start_index, value);
  const ScalarType wide = compute_type(value.scalar_type());
  const Tensor values = value.contiguous();
  const Tensor locations = as_type(sampling_locations, wide).contiguous();
  const Tensor weights = as_type(attention_weights, wide).contiguous();
  DETOPS_FLOAT_SWITCH(value.scalar_type(), [&] {
    const auto p = make_params<scalar_t>(values, shapes, starts, locations, weights);
    scalar_t* out = output.mutable_data_ptr<scalar_t>();
    with_vector<scalar_t>(p.channels, {p.value, out}, [&](auto n) {
      const int64_t vectors = p.channels / n;
      const dim3 grid(blocks_for(p.rows(), rows_per_block(vectors, kForwardThreads)),
                      static_cast<unsigned>(ceil_div(vectors, kForwardThreads)));
      launch("ms_deform_attn", ms_deform_attn_forward_kernel<scalar_t, n>,
             Launch(grid, kForwardThreads), p, out);
    });
  });
}
namespace {

// [N, M, S], or as many as there are for a sample that does not count.
template <typename T, typename A>
__device__ int cell_of(const AttentionParams<T>& p, const Sample<A>& s, int64_t row) {
  const int64_t map = row / (int64_t(p.queries) * p.heads) * p.heads + row % p.heads;
  const int corner = math::cell_of(s.corners.at);
  return static_cast<int>(corner < 0 ? p.images * p.heads * p.positions
                                     : map * p.positions + corner);
}

constexpr int kBlockSamples = 64;  // samples

// The gradients of locations and weights, from the products of the row's gradient with the values
// at the corners; and the cell of each sample: of [N, M, S], or their number where none counts.
template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    sample_gradients_kernel(AttentionParams<T> p, const T* grad, int lanes,
                            accumulate_t<T>* to_locations, accumulate_t<T>* to_weights, int* cell) {
  using A = accumulate_t<T>;
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> products[kBlockSamples];
  __shared__ const T *values[kBlockSamples], *grads[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x), lane = self % lanes;
  const int64_t samples = p.rows() * p.samples(), stride = p.stride();
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
      cell[at] = cell_of(p, s, row);
    }
    __syncthreads();
    for (int i = self / lanes; i < kBlockSamples; i += kThreads / lanes) {
      Vector<A, 4> sums{};
      if (i < count) {
        const Vector<int, 4> corner = corners[i];
        for (int c = lane * kRun; c < p.channels; c += lanes * kRun) {
          const auto load_at = [&](const T* from) {
            return load_run<n, A>(p.channels - c, [&](int k) { return from + c + k; });
          };
          const auto g = load_at(grads[i]);
          for (int k = 0; k < 4; ++k) {
            if (corner.at[k] < 0) continue;
            sums.at[k] = dot(g, load_at(values[i] + corner.at[k] * stride), sums.at[k]);
          }
        }
      }
      sum_over_lanes(sums, lanes);
      if (lane == 0) products[i] = sums;
    }
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

// Shares of samples in their cell, in the order of the cells, and what they are of: row and level.
template <typename T>
__global__ void sorted_shares_kernel(AttentionParams<T> p, const int64_t* order,
                                     Vector<accumulate_t<T>, 4>* shares, Vector<int, 2>* of) {
  DETOPS_FOR_EACH(j, p.rows() * p.samples()) {
    const int at = static_cast<int>(order[j]);
    auto s = sample_of(p, at);
    int y = static_cast<int>(s.place.y), x = static_cast<int>(s.place.x);
    math::move_into_map(y, x, s.shares.at);
    shares[j] = s.shares;
    of[j] = {{at / p.samples(), at % p.samples() / p.points}};
  }
}

// A thread owns a vector of channels at a position.
template <typename T, int n>
__global__ void __launch_bounds__(kThreads)
    value_gradient_kernel(AttentionParams<T> p, const T* grad,
                          const Vector<accumulate_t<T>, 4>* shares, const Vector<int, 2>* of,
                          const int* begin, T* to_value) {
  using A = accumulate_t<T>;
  const int vectors = p.channels / n;
  const Lanes lanes(vectors);
  if (lanes.idle) return;
  const int64_t step = int64_t(gridDim.x) * lanes.rows;
  for (int64_t map = blockIdx.y; map < p.images * p.heads; map += gridDim.y) {
    const int64_t image = map / p.heads, head = map % p.heads;
    for (int64_t at = int64_t(blockIdx.x) * lanes.rows + lanes.row; at < p.positions; at += step) {
      for (int c = lanes.lane * n; c < p.channels; c += lanes.count * n) {
        A sums[n] = {};
        for (int l = 0; l < p.levels; ++l) {
          const math::Level level = level_of(p, l);
          const int64_t inside = at - level.start;
          if (inside < 0 || inside >= level.height * level.width) continue;
          const int width = static_cast<int>(level.width);
          const int y = static_cast<int>(inside) / width, x = static_cast<int>(inside) % width;
          visit_samples(begin, map * p.positions + at, y, x, width, [&](int j, int corner) {
            const Vector<int, 2> from = of[j];
            const A share = shares[j].at[corner];
            // Levels may lie in one place. What a sample has no share of is not looked at.
            if (from.at[1] != l || share == A(0)) return;
            const Vector<T, n> g = load<n>(grad + int64_t(from.at[0]) * p.channels + c);
            for (int k = 0; k < n; ++k) sums[k] = multiply_add(share, A(g.at[k]), sums[k]);
          });
        }
        Vector<T, n> result;
        for (int k = 0; k < n; ++k) result.at[k] = static_cast<T>(sums[k]);
        store(to_value + ((image * p.positions + at) * p.heads + head) * p.channels + c, result);
      }
    }
  }
}

// Of some images.
template <typename T>
void backward(const AttentionParams<T>& p, const T* grad, accumulate_t<T>* to_locations,
              accumulate_t<T>* to_weights, T* to_value, const Tensor& like) {
  using A = accumulate_t<T>;
  constexpr const char* kOp = "ms_deform_attn_backward";
  const int64_t samples = p.rows() * p.samples(), cells = p.images * p.heads * p.positions;
  Tensor cell = empty({narrow(kOp, samples)}, like.options().dtype(kInt));
  if (samples > 0) {
    with_vector<T, kRun>(p.channels, {p.value, grad}, [&](auto n) {
      launch(kOp, sample_gradients_kernel<T, n>, blocks_for(samples, kBlockSamples), p, grad,
             lanes_for_runs(p.channels), to_locations, to_weights, cell.mutable_data_ptr<int>());
    });
  }
  if (cells * p.channels == 0) return;
  const SortedSamples sorted = sort_samples(cell, narrow(kOp, cells));
  const Tensor shares =
      empty({samples, 4}, like.options().dtype(torch::headeronly::CppTypeToScalarType<A>::value));
  const Tensor of = empty({samples, 2}, cell.options());
  auto* to_shares = reinterpret_cast<Vector<A, 4>*>(shares.mutable_data_ptr<A>());
  auto* to_of = reinterpret_cast<Vector<int, 2>*>(of.mutable_data_ptr<int>());
  if (samples > 0) {
    launch(kOp, sorted_shares_kernel<T>, blocks_for(samples), p,
           sorted.order.const_data_ptr<int64_t>(), to_shares, to_of);
  }
  with_vector<T>(p.channels, {grad, to_value}, [&](auto n) {
    const dim3 grid(blocks_for(p.positions, rows_per_block(p.channels / n)),
                    std::min(blocks_for(p.images * p.heads, 1), 65535u));
    launch(kOp, value_gradient_kernel<T, n>, grid, p, grad, to_shares, to_of,
           sorted.begin.const_data_ptr<int>(), to_value);
  });
}

// Calls visit(first, count) for some images at a time: those whose samples and cells take up to 400
// MB while they are sorted, or one.
template <typename Visit>
void each_images(int64_t images, int64_t samples, int64_t cells, const Visit& visit) {
#ifdef DETOPS_EMULATE_CUDA
  constexpr int64_t kNumbers = 1 << 9;
#else
  constexpr int64_t kNumbers = 1 << 23;
#endif
  const int64_t most = std::max<int64_t>(1, kNumbers / std::max<int64_t>({1, samples, cells}));
  for (int64_t first = 0; first < images; first += most) {
    visit(first, std::min(most, images - first));
  }
}

}  // namespace

void ms_deform_attn_backward(const Tensor& grad, const Tensor& value, const Tensor& spatial_shapes,
                             const Tensor& level_start_index, const Tensor& sampling_locations,
                             const Tensor& attention_weights, Tensor& to_value,
                             Tensor& to_locations, Tensor& to_weights) {
  check_levels_on_cpu("ms_deform_attn_backward", value, spatial_shapes, level_start_index);
  const ScalarType type = value.scalar_type(), wide = compute_type(type);
  const Tensor shapes = on_device(spatial_shapes, value);
  const Tensor starts = on_device(level_start_index, value);
  const Tensor values = value.contiguous(), outer = as_type(grad, type).contiguous();
  const Tensor locations = as_type(sampling_locations, wide).contiguous();
  const Tensor weights = as_type(attention_weights, wide).contiguous();
  // Themselves, unless of another dtype.
  const Tensor at_locations = as_type(to_locations, wide), at_weights = as_type(to_weights, wide);
  DETOPS_FLOAT_SWITCH(type, [&] {
    using wide_t = accumulate_t<scalar_t>;
    auto p = make_params<scalar_t>(values, shapes, starts, locations, weights);
    const scalar_t *g = outer.const_data_ptr<scalar_t>(), *v = p.value;
    const wide_t *at = p.locations, *weight = p.weights;
    const int64_t all = p.images, rows = int64_t(p.queries) * p.heads;
    const int64_t of_image = rows * p.samples(), cells = int64_t(p.heads) * p.positions;
    each_images(all, of_image, cells, [&](int64_t first, int64_t count) {
      p.images = count;
      p.value = v + first * p.positions * p.stride();
      p.locations = at + 2 * first * of_image;
      p.weights = weight + first * of_image;
      backward<scalar_t>(p, g + first * rows * p.channels,
                         at_locations.mutable_data_ptr<wide_t>() + 2 * first * of_image,
                         at_weights.mutable_data_ptr<wide_t>() + first * of_image,
                         to_value.mutable_data_ptr<scalar_t>() + (p.value - v), values);
    });
  });
  to_locations = as_type(at_locations, to_locations.scalar_type());
  to_weights = as_type(at_weights, to_weights.scalar_type());
}

}  // namespace detops::cuda
