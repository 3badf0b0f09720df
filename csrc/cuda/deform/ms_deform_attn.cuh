// SPDX-License-Identifier: MIT
#pragma once

#include "../../deform/levels.h"
#include "../../math/ms_deform_attn.h"
#include "../../ops.h"
#include "../common/launch.cuh"
#include "../common/vector.cuh"

// A row is a query's head in an image: of the locations, of the weights, of the output. Where its
// samples lie is computed once, by one thread each, and shared with the threads over its channels.
namespace detops::cuda {

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
inline Tensor on_device(const Tensor& t, const Tensor& value) {
  return empty(t.sizes(), value.options().dtype(kLong)).copy_(t);
}

inline void check_levels_on_cpu(const char* op, const Tensor& value, const Tensor& shapes,
                                const Tensor& starts) {
  if (shapes.is_cpu() && starts.is_cpu()) {
    check_levels(op, shapes, starts, value.size(1));
  }
}

}  // namespace detops::cuda
