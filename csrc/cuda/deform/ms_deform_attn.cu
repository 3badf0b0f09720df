// SPDX-License-Identifier: MIT
#include "ms_deform_attn.cuh"

namespace detops::cuda {
namespace {

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

}  // namespace detops::cuda
