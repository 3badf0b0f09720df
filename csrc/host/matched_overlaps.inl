// SPDX-License-Identifier: MIT
// Host functions of the overlaps of matched boxes. Each backend defines forward<loss> and
// backward<loss>, which compute the losses if `loss`, otherwise the overlaps.

void box_iou_aligned_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                             double eps, Tensor& output) {
  forward<false>(boxes1, boxes2, kind, eps, output);
}

void box_iou_aligned_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                              std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  backward<false>(grad, boxes1, boxes2, kind, eps, grad1, grad2);
}

void box_iou_loss_forward(const Tensor& boxes1, const Tensor& boxes2, std::string_view kind,
                          double eps, Tensor& loss) {
  forward<true>(boxes1, boxes2, kind, eps, loss);
}

void box_iou_loss_backward(const Tensor& grad, const Tensor& boxes1, const Tensor& boxes2,
                           std::string_view kind, double eps, Tensor& grad1, Tensor& grad2) {
  backward<true>(grad, boxes1, boxes2, kind, eps, grad1, grad2);
}
