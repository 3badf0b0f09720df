// SPDX-License-Identifier: MIT
#include "../math/ms_deform_attn.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "../ops.h"
#include "launch.cuh"

namespace detops::cuda {
namespace {

template <typename T>
struct AttentionParams {
  using A = at::opmath_type<T>;
  const T* value;         // [N, S, M, D]
  const int64_t* shapes;  // [L, 2]
  const int64_t* starts;  // [L]
  const A* locations;     // [N, Q, M, L, P, 2]
  const A* weights;       // [N, Q, M, L, P]
  int64_t images, positions, heads, channels, queries, levels, points;
};

// A level that reaches beyond the positions has no corner that counts.
template <typename T>
__device__ math::Level level_of(const AttentionParams<T>& p, int64_t l) {
  const math::Level level{p.shapes[2 * l], p.shapes[2 * l + 1], p.starts[l]};
  const bool valid = math::lies_within(level, p.positions);
#ifdef DETOPS_DEBUG
  CUDA_KERNEL_ASSERT(valid && "detops.ms_deform_attn: a level reaches beyond value's positions");
#endif
  return valid ? level : math::Level{0, 0, 0};
}

template <typename A>
struct Sample {
  math::attention::Place<A> place;
  math::attention::Corners<int64_t> positions;
  math::attention::Corners<A> shares;
};

template <typename A>
__device__ Sample<A> place_sample(const A* location, const math::Level& level) {
  using namespace math::attention;
  const Place<A> at = place<A>(location[0], location[1], A(level.width), A(level.height));
  return {at,
          positions(static_cast<int64_t>(at.x), static_cast<int64_t>(at.y), level.width,
                    level.height, level.start),
          shares<A>(at)};
}

template <typename T>
__global__ void ms_deform_attn_forward_kernel(AttentionParams<T> p, T* output) {
  using A = at::opmath_type<T>;
  const int64_t stride = p.heads * p.channels;
  DETOPS_FOR_EACH(i, p.images * p.queries * stride) {
    const int64_t head = i / p.channels, image = head / (p.queries * p.heads);
    const T* value = p.value + image * p.positions * stride + i % stride;
    A sum = 0;
    for (int64_t l = 0; l < p.levels; ++l) {
      const math::Level level = level_of(p, l);
      for (int64_t k = 0; k < p.points; ++k) {
        const int64_t at = (head * p.levels + l) * p.points + k;
        const Sample<A> s = place_sample(p.locations + 2 * at, level);
        for (int corner = 0; corner < 4; ++corner) {
          const int64_t position = s.positions.at[corner];
          if (position >= 0) {
            sum += p.weights[at] * s.shares.at[corner] * A(value[position * stride]);
          }
        }
      }
    }
    output[i] = static_cast<T>(sum);
  }
}


// A warp per sample: the products of the query's gradient with the values at the corners.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sample_gradients_kernel(AttentionParams<T> p, const T* grad, at::opmath_type<T>* to_locations,
                            at::opmath_type<T>* to_weights) {
  using A = at::opmath_type<T>;
  const int64_t stride = p.heads * p.channels;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t samples = p.images * p.queries * p.heads * p.levels * p.points;
  const int64_t warps = int64_t(gridDim.x) * (kThreads / kWarp);
  for (int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp; i < samples;
       i += warps) {
    const math::Level level = level_of(p, i / p.points % p.levels);
    const int64_t head = i / (p.levels * p.points), image = head / (p.queries * p.heads);
    const T* value = p.value + image * p.positions * stride + head % p.heads * p.channels;
    const Sample<A> s = place_sample(p.locations + 2 * i, level);
    math::attention::Corners<A> products{};
    for (int64_t c = lane; c < p.channels; c += kWarp) {
      const A g = A(grad[head * p.channels + c]);
      for (int corner = 0; corner < 4; ++corner) {
        const int64_t position = s.positions.at[corner];
        if (position >= 0) products.at[corner] += g * A(value[position * stride + c]);
      }
    }
    for (int corner = 0; corner < 4; ++corner) {
      for (int step = kWarp / 2; step > 0; step /= 2) {
        products.at[corner] += __shfl_xor_sync(0xffffffffu, products.at[corner], step);
      }
    }
    if (lane != 0) continue;
    const auto to = math::attention::gradient<A>(s.place, p.weights[i], A(level.width),
                                                 A(level.height), products);
    to_locations[2 * i] = to.x;
    to_locations[2 * i + 1] = to.y;
    to_weights[i] = to.weight;
  }
}

// Owner-computes: a block owns a tile of an image's positions for one head and a few channels, and
// adds the samples that reach the tile in their order. No atomics, so the same bits every run.
constexpr int kTile = 128;                // positions
constexpr int kWarps = kThreads / kWarp;  // a warp has every kWarps-th position of the tile

template <typename T>
__global__ void __launch_bounds__(kThreads)
    value_gradient_kernel(AttentionParams<T> p, const T* grad, T* to_value) {
  using A = at::opmath_type<T>;
  __shared__ A sums[kTile][kWarp];
  __shared__ int corner_of[4][kThreads];  // within the tile, or -1
  __shared__ A share_of[4][kThreads];
  __shared__ unsigned reached[kWarps];
  const int self = static_cast<int>(threadIdx.x), lane = self % kWarp, warp = self / kWarp;
  const int64_t tiles = (p.positions + kTile - 1) / kTile;
  const int64_t tile = blockIdx.x % tiles * kTile;
  const int64_t head = blockIdx.x / tiles % p.heads, image = blockIdx.x / tiles / p.heads;
  const int64_t channel = int64_t(blockIdx.y) * kWarp + lane;
  for (int row = warp; row < kTile; row += kWarps) sums[row][lane] = 0;

  for (int64_t l = 0; l < p.levels; ++l) {
    const math::Level level = level_of(p, l);
    // The same for the whole block.
    if (level.start >= tile + kTile || level.start + level.height * level.width <= tile) continue;
    for (int64_t base = 0; base < p.queries * p.points; base += kThreads) {
      __syncthreads();
      const int64_t mine = base + self;
      bool reaches = false;
      if (mine < p.queries * p.points) {
        const int64_t row = (image * p.queries + mine / p.points) * p.heads + head;
        const int64_t at = (row * p.levels + l) * p.points + mine % p.points;
        const Sample<A> s = place_sample(p.locations + 2 * at, level);
        for (int corner = 0; corner < 4; ++corner) {
          const int64_t position = s.positions.at[corner] - tile;
          const bool within = position >= 0 && position < kTile;
          corner_of[corner][self] = within ? static_cast<int>(position) : -1;
          share_of[corner][self] = p.weights[at] * s.shares.at[corner];
          reaches |= within;
        }
      }
      const unsigned votes = __ballot_sync(0xffffffffu, reaches);
      if (lane == 0) reached[warp] = votes;
      __syncthreads();
      for (int group = 0; group < kWarps; ++group) {
        for (unsigned left = reached[group]; left != 0; left &= left - 1) {
          const int i = group * kWarp + __ffs(static_cast<int>(left)) - 1;
          const int64_t query = image * p.queries + (base + i) / p.points;
          A g = 0;
          if (channel < p.channels) {
            g = A(grad[(query * p.heads + head) * p.channels + channel]);
          }
          for (int corner = 0; corner < 4; ++corner) {
            const int row = corner_of[corner][i];
            if (row >= 0 && row % kWarps == warp) sums[row][lane] += share_of[corner][i] * g;
          }
        }
      }
    }
  }

  if (channel >= p.channels) return;
  for (int row = warp; row < kTile && tile + row < p.positions; row += kWarps) {
    const int64_t position = image * p.positions + tile + row;
    to_value[(position * p.heads + head) * p.channels + channel] = static_cast<T>(sums[row][lane]);
  }
}

// All tensors contiguous; locations and weights of the type to accumulate in.
template <typename T>
AttentionParams<T> make_params(const Tensor& value, const Tensor& shapes, const Tensor& starts,
                               const Tensor& locations, const Tensor& weights) {
  return {value.const_data_ptr<T>(),
          shapes.const_data_ptr<int64_t>(),
          starts.const_data_ptr<int64_t>(),
          locations.const_data_ptr<at::opmath_type<T>>(),
          weights.const_data_ptr<at::opmath_type<T>>(),
          value.size(0),
          value.size(1),
          value.size(2),
          value.size(3),
          locations.size(1),
          locations.size(3),
          locations.size(4)};
}

// Levels on the CPU are checked there; those on the device are made safe in the kernels.
Tensor on_device(const Tensor& t, const Tensor& value) {
  return t.to(value.device(), at::kLong, /*non_blocking=*/true).contiguous();
}

void check_levels_on_cpu(const char* op, const Tensor& value, const Tensor& shapes,
                         const Tensor& starts) {
  if (shapes.is_cpu() && starts.is_cpu()) {
    meta::check_levels(op, shapes, starts, value.size(1));
  }
}

}  // namespace

Tensor ms_deform_attn_forward(const Tensor& value, const Tensor& spatial_shapes,
                              const Tensor& level_start_index, const Tensor& sampling_locations,
                              const Tensor& attention_weights) {
  const at::cuda::OptionalCUDAGuard guard(value.device());
  Tensor output = meta::ms_deform_attn_forward(value, spatial_shapes, level_start_index,
                                               sampling_locations, attention_weights);
  check_levels_on_cpu("ms_deform_attn", value, spatial_shapes, level_start_index);
  if (output.numel() == 0) return output;
  const Tensor shapes = on_device(spatial_shapes, value);
  const Tensor starts = on_device(level_start_index, value);
  const at::ScalarType wide = compute_type(value.scalar_type());
  const Tensor values = value.contiguous();
  const Tensor locations = as_type(sampling_locations, wide).contiguous();
  const Tensor weights = as_type(attention_weights, wide).contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, value.scalar_type(), "detops.ms_deform_attn", [&] {
        launch("ms_deform_attn", ms_deform_attn_forward_kernel<scalar_t>,
               blocks_for(output.numel()),
               make_params<scalar_t>(values, shapes, starts, locations, weights),
               output.mutable_data_ptr<scalar_t>());
      });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> ms_deform_attn_backward(const Tensor& grad, const Tensor& value,
                                                           const Tensor& spatial_shapes,
                                                           const Tensor& level_start_index,
                                                           const Tensor& sampling_locations,
                                                           const Tensor& attention_weights) {
  const at::cuda::OptionalCUDAGuard guard(value.device());
  Tensor to_value, to_locations, to_weights;
  std::tie(to_value, to_locations, to_weights) = meta::ms_deform_attn_backward(
      grad, value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  check_levels_on_cpu("ms_deform_attn_backward", value, spatial_shapes, level_start_index);
  const at::ScalarType type = value.scalar_type(), wide = compute_type(type);
  const Tensor shapes = on_device(spatial_shapes, value);
  const Tensor starts = on_device(level_start_index, value);
  const Tensor values = value.contiguous(), outer = as_type(grad, type).contiguous();
  const Tensor locations = as_type(sampling_locations, wide).contiguous();
  const Tensor weights = as_type(attention_weights, wide).contiguous();
  // Themselves, unless of another dtype.
  const Tensor at_locations = as_type(to_locations, wide), at_weights = as_type(to_weights, wide);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, type, "detops.ms_deform_attn_backward", [&] {
        using wide_t = at::opmath_type<scalar_t>;
        const auto params = make_params<scalar_t>(values, shapes, starts, locations, weights);
        const scalar_t* g = outer.const_data_ptr<scalar_t>();
        if (weights.numel() > 0) {
          launch("ms_deform_attn_backward", sample_gradients_kernel<scalar_t>,
                 blocks_for(weights.numel(), kWarps), params, g,
                 at_locations.mutable_data_ptr<wide_t>(), at_weights.mutable_data_ptr<wide_t>());
        }
        if (value.numel() > 0) {
          const int64_t tiles = (params.positions + kTile - 1) / kTile;
          const dim3 grid(static_cast<unsigned>(params.images * params.heads * tiles),
                          static_cast<unsigned>((params.channels + kWarp - 1) / kWarp));
          launch("ms_deform_attn_backward", value_gradient_kernel<scalar_t>, grid, params, g,
                 to_value.mutable_data_ptr<scalar_t>());
        }
      });
  return {to_value, as_type(at_locations, to_locations.scalar_type()),
          as_type(at_weights, to_weights.scalar_type())};
}

}  // namespace detops::cuda
