// SPDX-License-Identifier: MIT
#include "ms_deform_attn.cuh"
#include "sorted_samples.cuh"

namespace detops::cuda {
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
