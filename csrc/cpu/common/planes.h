// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include "../../math/half.h"

namespace detops::cpu {

// Channels are worked on in blocks of this many. A block of a map in lanes is in the order
// [position, kRoIChannels], where one position's channels are neighbours.
constexpr int64_t kRoIChannels = 32;

// A map (or the pooled RoIs) of one image, in either layout.
template <typename T>
struct Planes {
  T* data;
  int64_t channels, height, width;
  bool channels_last;
  int64_t planes_apart = 1;  // from one of these channels to the next, without channels_last

  int64_t stride() const { return channels_last ? channels : planes_apart * height * width; }
  T* at(int64_t channel, int64_t row, int64_t col) const {
    const int64_t position = row * width + col;
    return data + (channels_last ? position * channels + channel : channel * stride() + position);
  }
  Planes<const T> for_reading() const {
    return {data, channels, height, width, channels_last, planes_apart};
  }
};

// Brings `count` neighbouring positions of a block of channels into lanes; zeros stand in for the
// channels beyond.
template <typename T>
void load_lanes(const Planes<const T>& map, int64_t channel, int64_t channels, int64_t row,
                int64_t col, int64_t count, accumulate_t<T>* lanes);

template <typename T>
void store_lanes(const accumulate_t<T>* lanes, const Planes<T>& map, int64_t channel,
                 int64_t channels, int64_t row, int64_t col, int64_t count);

// Positions [begin, end) of a block of channels, counted row by row, become zero.
template <typename T>
void clear_positions(const Planes<T>& map, int64_t channel, int64_t channels, int64_t begin,
                     int64_t end) {
  if (begin >= end) return;
  // Neighbours are the positions of a plane, the channels of a position, or all.
  int64_t runs = map.channels_last ? end - begin : channels;
  int64_t length = map.channels_last ? channels : end - begin;
  if (map.channels_last && channels == map.channels) length *= runs, runs = 1;
  T* run = map.at(channel, 0, begin);
  for (int64_t i = 0; i < runs; ++i, run += map.stride()) std::fill_n(run, length, T{});
}

}  // namespace detops::cpu
