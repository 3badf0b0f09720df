// SPDX-License-Identifier: MIT
#include "../../host/map_geometry.h"
#include "../common/host.h"

namespace detops::cpu {
namespace {

constexpr int64_t kElementsPerThread = 1 << 15;

// Mapping of filter entries to rotated positions. to[rotation, entry] is the position that an entry
// moves to. `first` is the first entry that moves to each position of each rotation. `next` links
// each entry to the next one with the same position, or is -1.
struct EntryMapping {
  std::vector<int32_t> to, first, next;
  bool is_permutation = true;  // every position receives one entry

  EntryMapping(const char* op, const Tensor& indices, const RotatedFilters& g)
      : to(g.rotations * g.entries), first(to.size(), -1), next(to.size(), -1) {
    const Tensor positions = indices.to(kLong).contiguous();
    const int64_t* position = positions.const_data_ptr<int64_t>();
    for (int64_t k = 0; k < g.rotations; ++k) {
      for (int64_t l = g.entries - 1; l >= 0; --l) {
        const int64_t at = position[l * g.rotations + k], offset = k * g.entries;
        check(at >= 1 && at <= g.entries, "detops.", op, ": indices must be in [1, ", g.entries,
              "], got ", at);
        to[offset + l] = static_cast<int32_t>(at - 1);
        next[offset + l] = first[offset + at - 1];
        first[offset + at - 1] = static_cast<int32_t>(l);
        is_permutation &= next[offset + l] < 0;
      }
    }
  }
};

template <typename Run>
void parallel_filters(const RotatedFilters& g, const Run& run) {
  parallel_each(g.filters(), grain_for(kElementsPerThread, g.entries * g.rotations), run);
}

// Copies entries, or sums them if positions receive none or several.
template <bool kPermutation, typename T>
void rotate(const RotatedFilters& g, const EntryMapping& mapping, const T* input, T* output) {
  parallel_filters(g, [&](int64_t i) {
    const T* from = input + i * g.entries;
    const int32_t *first = mapping.first.data(), *next = mapping.next.data();
    for (int64_t k = 0; k < g.rotations; ++k, first += g.entries, next += g.entries) {
      T* to = output + g.rotated_offset(i, k);
      for (int64_t e = 0; e < g.entries; ++e) {
        if constexpr (kPermutation) {
          to[e] = from[first[e]];
        } else {
          T sum = 0;
          for (int32_t l = first[e]; l >= 0; l = next[l]) sum += from[l];
          to[e] = sum;
        }
      }
    }
  });
}

}  // namespace

void active_rotated_filter_forward(const Tensor& input, const Tensor& indices, Tensor& output) {
  const RotatedFilters g(input.size(0), input.size(1), indices);
  const EntryMapping mapping("active_rotated_filter", indices, g);
  if (mapping.is_permutation) {
    const Tensor filters = input.contiguous();
    return with_element_type(input.scalar_type(), [&](auto element) {
      using T = decltype(element);
      rotate<true>(g, mapping, elements<T>(filters), mutable_elements<T>(output));
    });
  }
  const Tensor filters = wide(input);
  output = output.to(filters.scalar_type());
  DETOPS_WIDE_SWITCH(filters.scalar_type(), [&] {
    rotate<false>(g, mapping, filters.const_data_ptr<scalar_t>(),
                  output.mutable_data_ptr<scalar_t>());
  });
}

void active_rotated_filter_backward(const Tensor& grad, const Tensor& indices, int64_t outputs,
                                    int64_t inputs, Tensor& to_input) {
  const RotatedFilters g(outputs, inputs, indices);
  const EntryMapping mapping("active_rotated_filter_backward", indices, g);
  const Tensor upstream = wide(grad);
  to_input = to_input.to(upstream.scalar_type());
  DETOPS_WIDE_SWITCH(upstream.scalar_type(), [&] {
    const scalar_t* rotated = upstream.const_data_ptr<scalar_t>();
    scalar_t* filters = to_input.mutable_data_ptr<scalar_t>();
    parallel_filters(g, [&](int64_t i) {
      const scalar_t* from = rotated + g.rotated_offset(i, 0);
      const int64_t rotation_stride = g.inputs * g.entries;
      for (int64_t l = 0; l < g.entries; ++l) {
        const int32_t* at = mapping.to.data() + l;
        scalar_t sum = 0;
        for (int64_t k = 0; k < g.rotations; ++k)
          sum += from[k * rotation_stride + at[k * g.entries]];
        filters[i * g.entries + l] = sum;
      }
    });
  });
}

}  // namespace detops::cpu
