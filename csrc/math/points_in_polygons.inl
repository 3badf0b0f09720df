// SPDX-License-Identifier: MIT
// See host_device.h.

namespace inside {

// Tests the point (x, y) against one side of a polygon. Toggles `crossed` if a ray from the point
// to the right crosses the side, which includes its lower end but not its upper one. Sets `on_side`
// if the point lies on the side.
template <typename V>
DETOPS_HD void test_side(V x, V y, V x1, V y1, V x2, V y2, decltype(V{} < V{})& crossed,
                         decltype(V{} < V{})& on_side) {
  const V cross = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1);
  const V dot = (x - x1) * (x - x2) + (y - y1) * (y - y2);  // above 0 beyond the ends
  crossed =
      crossed ^ (((y1 <= y) & (y < y2) & (cross > V{})) | ((y2 <= y) & (y < y1) & (cross < V{})));
  on_side = on_side | ((cross == V{}) & (dot <= V{}));
}

// Returns whether the point (x, y) lies inside the quadrilateral with the corners (xs[i], ys[i]).
template <typename V>
DETOPS_HD auto within(V x, V y, const V* xs, const V* ys) {
  auto crossed = V{} < V{}, on_side = V{} < V{};
  for (int i = 0; i < 4; ++i)
    test_side(x, y, xs[(i + 3) % 4], ys[(i + 3) % 4], xs[i], ys[i], crossed, on_side);
  return crossed & (on_side ^ (V{} == V{}));
}

}  // namespace inside
