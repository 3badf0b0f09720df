// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"

#include "../common/launch.cuh"

namespace detops::cuda {
namespace {

// Returns the zero-based position of entry l in a rotation, or -1 if its index is out of range.
__device__ int64_t rotated_position(const RotatedFilters& g, const int64_t* indices,
                                    int64_t rotation, int64_t l) {
  const int64_t at = indices[l * g.rotations + rotation];
  return at >= 1 && at <= g.entries ? at - 1 : -1;
}

}  // namespace

void active_rotated_filter_forward(const Tensor& input, const Tensor& indices, Tensor& output) {
  const RotatedFilters g(input.size(0), input.size(1), indices);
  const Tensor filters = input.contiguous(), wide_indices = indices.to(kLong).contiguous();
  const Tensor first = empty({g.rotations, g.entries}, indices.options().dtype(kInt));
  const Tensor next = empty_like(first);
  const int64_t* indices_data = elements(wide_indices);
  int *first_entry = elements(first), *next_entry = elements(next);
  // Linked lists per rotation: for each position the first entry that moves there, and for each
  // entry the next one with the same position. -1 ends a list.
  for_each(first.numel(), [=] __device__(int64_t i) {
    const int64_t rotation = i / g.entries, index = i % g.entries;
    const int64_t target = rotated_position(g, indices_data, rotation, index);
    int first_source = -1, next_source = -1;
    for (int64_t l = g.entries - 1; l >= 0; --l) {
      const int64_t at = rotated_position(g, indices_data, rotation, l);
      if (at == index) first_source = static_cast<int>(l);
      if (at == target && l > index) next_source = static_cast<int>(l);
    }
    first_entry[i] = first_source;
    next_entry[i] = next_source;
  });
  DETOPS_FLOAT_SWITCH(input.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* all = elements(filters);
    scalar_t* to = elements(output);
    for_each(output.numel(), [=] __device__(int64_t i) {
      const int64_t row = i / g.entries, at = i % g.entries;
      const int64_t rotation = row / g.inputs % g.rotations, begin = rotation * g.entries;
      const int64_t filter = row / g.inputs / g.rotations * g.inputs + row % g.inputs;
      const scalar_t* from = all + filter * g.entries;
      A sum = 0;
      for (int l = first_entry[begin + at]; l >= 0; l = next_entry[begin + l]) {
        sum += static_cast<A>(from[l]);
      }
      to[i] = static_cast<scalar_t>(sum);
    });
  });
}

void active_rotated_filter_backward(const Tensor& grad, const Tensor& indices, int64_t outputs,
                                    int64_t inputs, Tensor& to_input) {
  const RotatedFilters g(outputs, inputs, indices);
  const Tensor upstream = grad.contiguous(), wide_indices = indices.to(kLong).contiguous();
  const int64_t* indices_data = elements(wide_indices);
  DETOPS_FLOAT_SWITCH(grad.scalar_type(), [&] {
    using A = accumulate_t<scalar_t>;
    const scalar_t* from = elements(upstream);
    scalar_t* to = elements(to_input);
    // One thread per element, which adds its rotations in order.
    for_each(to_input.numel(), [=] __device__(int64_t i) {
      A sum = 0;
      for (int64_t rotation = 0; rotation < g.rotations; ++rotation) {
        const int64_t at = rotated_position(g, indices_data, rotation, i % g.entries);
        if (at >= 0) sum += static_cast<A>(from[g.rotated_offset(i / g.entries, rotation) + at]);
      }
      to[i] = static_cast<scalar_t>(sum);
    });
  });
}

}  // namespace detops::cuda
