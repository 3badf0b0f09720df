// SPDX-License-Identifier: MIT
#include "../../math/box_coder.h"
#include "../../boxes/box_lists.h"

namespace detops::cpu {
namespace {

template <typename Each>
void for_each(const char*, int64_t n, const Each& each) {
  constexpr int64_t kGrain = 4096;
  parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) each(i);
  });
}

}  // namespace

#include "../../boxes/box_coder.inl"

}  // namespace detops::cpu
