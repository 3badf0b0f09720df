// SPDX-License-Identifier: MIT
// See host_device.h.

namespace inside {

// Tests the point (x, y) against one side of a polygon. Toggles `crossed` if a ray from the point
// to the right crosses the side, which includes its lower end but not its upper one. Sets `met` if
// the point lies on the side.
template <typename V>
DETOPS_HD void look(V x, V y, V x1, V y1, V x2, V y2, decltype(V{} < V{})& crossed,
                    decltype(V{} < V{})& met) {
  const V turn = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1);
  const V along = (x - x1) * (x - x2) + (y - y1) * (y - y2);  // above 0 beyond the ends
  crossed =
      crossed ^ (((y1 <= y) & (y < y2) & (turn > V{})) | ((y2 <= y) & (y < y1) & (turn < V{})));
  met = met | ((turn == V{}) & (along <= V{}));
}

// Returns whether the point (x, y) lies inside the quadrilateral with the corners (xs[i], ys[i]).
template <typename V>
DETOPS_HD auto within(V x, V y, const V* xs, const V* ys) {
  auto crossed = V{} < V{}, met = V{} < V{};
  for (int i = 0; i < 4; ++i)
    look(x, y, xs[(i + 3) % 4], ys[(i + 3) % 4], xs[i], ys[i], crossed, met);
  return crossed & (met ^ (V{} == V{}));
}

}  // namespace inside
