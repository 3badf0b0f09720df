// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI.

// to[i] = keep * first[i] + share * second[i]. What is not finite must not meet a share of zero.
template <typename To, typename A>
DETOPS_INLINE void blend(const A* first, const A* second, A keep, A share, int64_t count, To* to) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t n = count - i;
    Vector<A> sum = load_first(first + i, n);
    if (share != 0) sum = fused(splat(share), load_first(second + i, n), splat(keep) * sum);
    store_first(to + i, sum, n);
  }
}

template <typename From, typename A>
DETOPS_INLINE void copy_wide(const From* from, int64_t count, A* to) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    store_first(to + i, load_first(from + i, count - i), count - i);
  }
}

template <typename From, typename To>
void switch_roi(const SwitchTask<From, To>& task) {
  const SwitchTask<From, To> t = task;  // see spread_planes in ps_roi_align.inl
  const auto& how = t.how;
  if (!t.channels_last) {
    // An orientation is a plane of bins.
    const int64_t group = t.orientations * t.bins;
    for (int64_t c = 0; c < t.channels; c += t.orientations) {
      copy_wide(t.from + c * t.bins, group, t.scratch);
      for (int64_t o = 0; o < t.orientations; ++o) {
        const int64_t first = (o + how.first) % t.orientations;
        const int64_t second = (o + how.second) % t.orientations;
        blend(t.scratch + first * t.bins, t.scratch + second * t.bins, how.keep, how.share, t.bins,
              t.to + (c + o) * t.bins);
      }
    }
    return;
  }
  // The orientations of a channel are neighbours: all positions read the same places.
  const int64_t n = t.orientations;
  int32_t *first = t.places, *second = first + t.channels;
  for (int64_t c = 0; c < t.channels; ++c) {
    const int64_t o = c % n;
    first[c] = static_cast<int32_t>(c - o + (o + how.first) % n);
    second[c] = static_cast<int32_t>(c - o + (o + how.second) % n);
  }
  for (int64_t at = 0; at < t.bins * t.channels; at += t.channels) {
    copy_wide(t.from + at, t.channels, t.scratch);
    if (how.share == 0) {
      for (int64_t c = 0; c < t.channels; ++c) math::from_float(t.scratch[first[c]], t.to[at + c]);
      continue;
    }
    for (int64_t c = 0; c < t.channels; ++c) {
      math::from_float(how.keep * t.scratch[first[c]] + how.share * t.scratch[second[c]],
                       t.to[at + c]);
    }
  }
}
