// SPDX-License-Identifier: MIT
#include "../../math/box_coder.h"
#include "../../host/box_lists.h"
#include "../common/host.h"

namespace detops::cpu {
namespace {

template <typename Each>
void for_each(int64_t n, const Each& each) {
  parallel_each(n, 4096, each);
}

}  // namespace

#include "../../host/box_coder.inl"

}  // namespace detops::cpu
