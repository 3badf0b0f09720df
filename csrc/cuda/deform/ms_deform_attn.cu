// SPDX-License-Identifier: MIT
#include "../../host/conv_geometry.h"
#include "../../math/deform.h"
#include "../common/sorted_samples.cuh"

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
  __device__ const T* head_value(int64_t row) const {
    return value + row / (int64_t(queries) * heads) * positions * stride() + row % heads * channels;
  }
};

// Returns level l, or an empty one without valid corners if it reaches beyond the positions.
template <typename T>
__device__ math::Level load_level(const AttentionParams<T>& p, int l) {
  const math::Level level{p.shapes[2 * l], p.shapes[2 * l + 1], p.starts[l]};
  const bool valid = math::is_within(level, p.positions);
#ifdef DETOPS_DEBUG
  CUDA_KERNEL_ASSERT(valid && "detops.ms_deform_attn: levels must lie within value's positions");
#endif
  return valid ? level : math::Level{0, 0, 0};
}

template <typename A>
struct Sample {
  math::Level level;
  math::attention::SampleLocation<A> place;
  Vector<int, 4> corners;       // positions, or -1
  Vector<A, 4> corner_weights;  // times the attention weight; 0 off the map
};

// Returns sample `index`, counted over all rows.
template <typename T, typename A = accumulate_t<T>>
__device__ Sample<A> locate_sample(const AttentionParams<T>& p, int64_t index) {
  Sample<A> s;
  const int l = static_cast<int>(index % p.samples()) / p.points;
  const math::Level level = s.level = load_level(p, l);
  s.place = math::attention::locate<A>(p.locations[2 * index], p.locations[2 * index + 1],
                                       A(level.width), A(level.height));
  const auto corners = math::attention::positions(
      static_cast<int>(s.place.x), static_cast<int>(s.place.y), static_cast<int>(level.width),
      static_cast<int>(level.height), static_cast<int>(level.start));
  const auto weights = math::attention::corner_weights<A>(s.place);
  for (int i = 0; i < 4; ++i) {
    s.corners.at[i] = corners.at[i];
    s.corner_weights.at[i] = corners.at[i] >= 0 ? p.weights[index] * weights.at[i] : A(0);
  }
  return s;
}

// Contiguous inputs on the device; locations and weights have the accumulation type. Levels on the
// CPU are checked here. On the device, kernels replace invalid levels.
struct AttentionInputs {
  Tensor value, shapes, starts, locations, weights;

  AttentionInputs(const char* op, const Tensor& values, const Tensor& spatial_shapes,
                  const Tensor& level_start_index, const Tensor& sampling_locations,
                  const Tensor& attention_weights)
      : value(values.contiguous()),
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
  __shared__ Vector<A, 4> corner_weights[kStaged];
  const Lanes lanes(p.channels / n);
  const int channel = (static_cast<int>(blockIdx.y) * lanes.count + lanes.lane) * n;
  // An odd number of slots per row, so that rows lie in different banks of shared memory.
  const int capacity = (kStaged / lanes.rows - 1) | 1;
  const int chunk = min(p.samples(), capacity), row_stride = chunk | 1;
  const int64_t stride = p.stride(), rows = p.rows();
  for (int64_t first = int64_t(blockIdx.x) * lanes.rows; first < rows;
       first += int64_t(gridDim.x) * lanes.rows) {
    const int64_t row = first + lanes.row;
    const bool active = !lanes.idle && row < rows && channel < p.channels;
    const T* value = active ? p.head_value(row) + channel : nullptr;
    Vector<A, n> sums{};
    for (int begin = 0; begin < p.samples(); begin += chunk) {
      const int count = min(chunk, p.samples() - begin);
      __syncthreads();
      for (int i = threadIdx.x; i < lanes.rows * count; i += kForwardThreads) {
        const int local_row = i / count, k = i % count;
        if (first + local_row >= rows) break;
        const Sample<A> s = locate_sample(p, (first + local_row) * p.samples() + begin + k);
        corners[local_row * row_stride + k] = s.corners;
        corner_weights[local_row * row_stride + k] = s.corner_weights;
      }
      __syncthreads();
      if (!active) continue;
      for (int k = lanes.row * row_stride; k < lanes.row * row_stride + count; ++k) {
        add_corners(value, stride, corners[k], corner_weights[k], sums);
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
                            A* to_weights, Vector<int, 2>* sample_cells) {
  __shared__ Vector<int, 4> corners[kBlockSamples];
  __shared__ Vector<A, 4> products[kBlockSamples];
  __shared__ const T *values[kBlockSamples], *grads[kBlockSamples];
  const int self = static_cast<int>(threadIdx.x);
  const int64_t samples = p.rows() * p.samples();
  const int cells = static_cast<int>(p.images * p.heads * p.positions);
  for (int64_t first = int64_t(blockIdx.x) * kBlockSamples; first < samples;
       first += int64_t(gridDim.x) * kBlockSamples) {
    const int count = static_cast<int>(min(int64_t(kBlockSamples), samples - first));
    const int64_t index = first + self;
    Sample<A> s;
    if (self < count) {
      const int64_t row = index / p.samples();
      s = locate_sample(p, index);
      corners[self] = s.corners;
      values[self] = p.head_value(row);
      grads[self] = grad + row * p.channels;
      const int64_t map = row / (int64_t(p.queries) * p.heads) * p.heads + row % p.heads;
      const int corner = math::corner_cell(s.corners.at);
      const int cell = corner < 0 ? cells : static_cast<int>(map * p.positions + corner);
      sample_cells[index] = {{static_cast<int>(index), cell}};
    } else if (self < kBlockSamples) {
      corners[self] = {{-1, -1, -1, -1}};
    }
    __syncthreads();
    dot_corners<n>(
        corners, values, p.stride(), p.channels, lanes, [&](int i, int c) { return grads[i] + c; },
        products);
    __syncthreads();
    if (self >= count) continue;
    math::attention::Corners<A> product;
    for (int k = 0; k < 4; ++k) product.at[k] = products[self].at[k];
    const auto to = math::attention::gradient<A>(s.place, p.weights[index], A(s.level.width),
                                                 A(s.level.height), product);
    to_locations[2 * index] = to.x;
    to_locations[2 * index + 1] = to.y;
    to_weights[index] = to.weight;
  }
}

// A thread owns a vector of channels at a position.
template <typename T, int n, typename A = accumulate_t<T>>
__global__ void __launch_bounds__(kThreads)
    value_gradient_kernel(AttentionParams<T> p, const T* grad, const Vector<A, 4>* corner_weights,
                          const Vector<int, 2>* sources, const int* begin, T* to_value) {
  const int vectors = p.channels / n;
  const Lanes lanes(vectors);
  if (lanes.idle) return;
  const int64_t step = int64_t(gridDim.x) * lanes.rows;
  for (int64_t map = blockIdx.y; map < p.images * p.heads; map += gridDim.y) {
    const int64_t image = map / p.heads, head = map % p.heads;
    for (int64_t position = int64_t(blockIdx.x) * lanes.rows + lanes.row; position < p.positions;
         position += step) {
      for (int c = lanes.lane * n; c < p.channels; c += lanes.count * n) {
        Vector<A, n> sums{};
        for (int l = 0; l < p.levels; ++l) {
          const math::Level level = load_level(p, l);
          const int64_t level_position = position - level.start;
          if (level_position < 0 || level_position >= level.height * level.width) continue;
          const int width = static_cast<int>(level.width);
          const int y = static_cast<int>(level_position) / width,
                    x = static_cast<int>(level_position) % width;
          visit_samples(begin, map * p.positions + position, y, x, width, [&](int j, int corner) {
            const Vector<int, 2> source = sources[j];
            const A weight = corner_weights[j].at[corner];
            // Levels may overlap, so samples of other levels are skipped, as are weights of 0.
            if (source.at[1] != l || weight == A(0)) return;
            add_weighted(weight, load<n>(grad + int64_t(source.at[0]) * p.channels + c), sums);
          });
        }
        T* to = to_value + ((image * p.positions + position) * p.heads + head) * p.channels + c;
        store_channels<n, true>(to, 0, n, sums);
      }
    }
  }
}

// Samples or cells that are sorted at a time, or those of one image if it has more. They take
// 400 MB.
#ifdef DETOPS_EMULATE_CUDA
constexpr int64_t kMaxSorted = 1 << 9;
#else
constexpr int64_t kMaxSorted = 1 << 23;
#endif

template <typename T, typename A = accumulate_t<T>>
void backward(const AttentionParams<T>& p, const T* grad, A* to_locations, A* to_weights,
              T* to_value, const Options& options) {
  const int64_t samples = p.rows() * p.samples(), cells = p.images * p.heads * p.positions;
  const Tensor sample_cells = empty({narrow(samples), 2}, options.dtype(kInt));
  with_vector<T, kRun>(p.channels, {p.value, grad}, [&](auto n) {
    launch(sample_gradients_kernel<T, n>, blocks_for(samples, kBlockSamples), p, grad,
           lanes_for_runs(p.channels), to_locations, to_weights, sample_cells);
  });
  if (cells * p.channels == 0) return;
  // Sorted by cell: the corner weights of each sample in its cell, and its row and level.
  const Tensor corner_weights = empty({samples, 4}, options.dtype(compute_type(options.type)));
  const Tensor sample_sources = empty_like(sample_cells);
  Vector<A, 4>* corner_weight = elements(corner_weights);
  Vector<int, 2>* source = elements(sample_sources);
  const auto store_sorted = [=] __device__(int64_t j, int index) {
    auto s = locate_sample(p, index);
    int y = static_cast<int>(s.place.y), x = static_cast<int>(s.place.x);
    math::clamp_to_map(y, x, s.corner_weights.at);
    corner_weight[j] = s.corner_weights;
    source[j] = {{index / p.samples(), index % p.samples() / p.points}};
  };
  const SortedSamples sorted = sort_samples(sample_cells, narrow(cells), store_sorted);
  with_vector<T>(p.channels, {grad, to_value}, [&](auto n) {
    const dim3 grid(blocks_for(p.positions, rows_per_block(p.channels / n)),
                    std::min(blocks_for(p.images * p.heads, 1), 65535u));
    launch(value_gradient_kernel<T, n>, grid, p, grad, corner_weight, source, sorted.begin,
           to_value);
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
  const Tensor upstream = grad.to(value.scalar_type()).contiguous();
  DETOPS_FLOAT_SWITCH(value.scalar_type(), [&] {
    auto p = in.params<scalar_t>();
    const scalar_t* g = elements(upstream);
    scalar_t* to = elements(to_value);
    accumulate_t<scalar_t>*location = elements(to_locations), *weight = elements(to_weights);
    const int64_t total_images = p.images, rows = int64_t(p.queries) * p.heads,
                  samples = rows * p.samples();
    const int64_t image_items = std::max<int64_t>({1, samples, int64_t(p.heads) * p.positions});
    const int64_t max_images = std::max<int64_t>(1, kMaxSorted / image_items);
    for (int64_t first = 0; first < total_images; first += max_images) {
      p.images = std::min(max_images, total_images - first);
      backward(p, g, location, weight, to, in.value.options());
      // Advances to the next images.
      g += p.images * rows * p.channels;
      p.value += p.images * p.positions * p.stride(), to += p.images * p.positions * p.stride();
      p.locations += 2 * p.images * samples, location += 2 * p.images * samples;
      p.weights += p.images * samples, weight += p.images * samples;
    }
  });
}

}  // namespace detops::cuda
