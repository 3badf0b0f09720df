// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "../ops.h"
#include "roi_window.h"
#include "sort.h"

// What the ops that pool RoIs share.
namespace detops::cpu {

// RoIs [begin, end) of the order of work lie on one level of one image.
struct Run {
  int64_t image, level, begin, end;
};

struct Plan {
  Buffer<uint32_t> order;  // by image, level and height in the picture
  std::vector<Run> runs;   // one for each level of each image
};

// `rois` are rows of `columns` numbers, the batch index first; level(roi) is asked for where there
// are several, top(roi) is where a RoI begins.
template <typename A, typename Level, typename Top>
Plan make_plan(const char* op, const A* rois, int64_t columns, int64_t count, int64_t images,
               int64_t levels, const Level& level, const Top& top) {
  TORCH_CHECK(count <= INT32_MAX, "detops.", op, ": at most ", INT32_MAX, " RoIs, got ", count);
  Buffer<uint64_t> keys(count);
  std::vector<int64_t> sizes(images * levels, 0);
  for (int64_t k = 0; k < count; ++k) {
    const A* roi = rois + columns * k;
    TORCH_CHECK(roi[0] >= 0 && roi[0] < A(images), "detops.", op, ": boxes[", k,
                ", 0] is a batch index and must be in [0, ", images, "), got ", roi[0]);
    const int64_t run = static_cast<int64_t>(roi[0]) * levels + (levels == 1 ? 0 : level(roi));
    keys[k] = uint64_t(run) << 32 | uint32_t(~descending_key(static_cast<float>(top(roi))));
    ++sizes[run];
  }
  Plan plan{Buffer<uint32_t>(count), {}};
  ArgSort<uint64_t>()(count, [&](int64_t k) { return keys[k]; }, plan.order.data());
  int64_t begin = 0;
  for (int64_t run = 0; run < images * levels; ++run) {
    plan.runs.push_back({run / levels, run % levels, begin, begin + sizes[run]});
    begin += sizes[run];
  }
  return plan;
}

template <typename T>
Planes<T> planes_of(const Tensor& maps, int64_t image, bool channels_last) {
  const int64_t channels = maps.size(1), height = maps.size(2), width = maps.size(3);
  auto* data = static_cast<std::remove_const_t<T>*>(const_cast<void*>(maps.const_data_ptr()));
  return {data + image * channels * height * width, channels, height, width, channels_last};
}

inline int64_t blocks_of(int64_t channels) { return (channels + kRoIChannels - 1) / kRoIChannels; }

// Some 16,000 outputs are worth a thread.
inline int64_t tasks_per_thread(int64_t tasks, int64_t outputs) {
  return std::max<int64_t>(1, tasks * 16384 / std::max<int64_t>(1, outputs));
}

// Calls run(T{}) with the kernels' type for a tensor's.
template <typename Run>
void with_element_type(at::ScalarType type, Run&& run) {
  switch (type) {
    case at::kDouble:
      return run(double());
    case at::kHalf:
      return run(Half());
    case at::kBFloat16:
      return run(BFloat16());
    default:
      return run(float());
  }
}

}  // namespace detops::cpu
