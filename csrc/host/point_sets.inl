// SPDX-License-Identifier: MIT
// Host functions of both backends for sets of nine points, each with its own quadrilateral. Each
// backend defines for_each(n, each), which calls each(i) for every i below n.

void convex_giou_forward(const Tensor& pointsets, const Tensor& polygons, Tensor& giou) {
  const BoxLists lists(pointsets, polygons, giou.scalar_type());
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t* set = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* quad = lists.second.const_data_ptr<scalar_t>();
    scalar_t* to = giou.mutable_data_ptr<scalar_t>();
    for_each(giou.numel(), [=] DETOPS_EACH(int64_t i) {
      to[i] = static_cast<scalar_t>(
          math::convex_giou(math::point_set(set + 18 * i), math::quad(quad + 8 * i)));
    });
  });
}

void convex_giou_backward(const Tensor& grad, const Tensor& pointsets, const Tensor& polygons,
                          Tensor& to_pointsets) {
  const BoxListGradients lists(grad, pointsets, polygons);
  DETOPS_WIDE_SWITCH(lists.type(), [&] {
    const scalar_t* g = lists.grad.const_data_ptr<scalar_t>();
    const scalar_t* set = lists.first.const_data_ptr<scalar_t>();
    const scalar_t* quad = lists.second.const_data_ptr<scalar_t>();
    scalar_t* to = to_pointsets.mutable_data_ptr<scalar_t>();
    for_each(lists.grad.numel(), [=] DETOPS_EACH(int64_t i) {
      double gradient[2 * math::kSetPoints];
      math::convex_giou_gradient(math::point_set(set + 18 * i), math::quad(quad + 8 * i),
                                 double(g[i]), gradient);
      for (int k = 0; k < 18; ++k) to[18 * i + k] = static_cast<scalar_t>(gradient[k]);
    });
  });
}

void min_area_polygons(const Tensor& pointsets, Tensor& polygons) {
  const Tensor sets = wide(pointsets);
  DETOPS_WIDE_SWITCH(sets.scalar_type(), [&] {
    const scalar_t* set = sets.const_data_ptr<scalar_t>();
    scalar_t* to = polygons.mutable_data_ptr<scalar_t>();
    for_each(sets.size(0),
             [=] DETOPS_EACH(int64_t i) { math::min_area_polygon(set + 18 * i, to + 8 * i); });
  });
}
