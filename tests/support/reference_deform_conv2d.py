"""A slow, obvious deformable convolution."""

import torch
from torch import Tensor


def sample(image: Tensor, y: Tensor, x: Tensor, edge_gradient: bool) -> Tensor:
    """Returns bilinear samples ``[C, P]`` of ``image [C, H, W]`` at ``y, x [P]``, zeros outside.

    A sample at exactly -1 is zero. For torchvision, its derivative by position is that of the side
    within the image. For detectron2, mmcv and maskrcnn-benchmark it is zero: their formulas begin
    with ``if (y <= -1 || y >= height || ...) return 0``.
    """
    height, width = image.shape[1:]
    # Comparisons with NaN are false.
    if edge_gradient:
        is_sampled = (y >= -1) & (y < height) & (x >= -1) & (x < width)
    else:
        is_sampled = (y > -1) & (y < height) & (x > -1) & (x < width)
    y, x = torch.where(is_sampled, y, -9.0), torch.where(is_sampled, x, -9.0)
    low_y, low_x = y.detach().floor(), x.detach().floor()
    total = image.new_zeros(image.size(0), y.numel())
    for at_y, weight_y in ((low_y, low_y + 1 - y), (low_y + 1, y - low_y)):
        for at_x, weight_x in ((low_x, low_x + 1 - x), (low_x + 1, x - low_x)):
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            value = image[:, at_y.long().clamp(0, height - 1), at_x.long().clamp(0, width - 1)]
            total = total + torch.where(inside, value, 0) * weight_y * weight_x
    return total


def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    mask: Tensor | None = None,
    edge_gradient: bool = True,
) -> Tensor:
    """Sums over kernel points, differentiably, by torchvision's rule; ``sample`` has the other."""
    outputs, per_group, kernel_height, kernel_width = weight.shape
    images, channels = input.shape[:2]
    points = kernel_height * kernel_width
    offset_groups = offset.size(1) // (2 * points)
    size = offset.shape[2:]
    offset = offset.view(images, offset_groups, points, 2, -1)
    positions = (torch.arange(n, device=input.device) for n in size)
    row, column = torch.meshgrid(*positions, indexing="ij")
    row, column = row.flatten() * stride[0], column.flatten() * stride[1]
    results = []
    for n in range(images):
        result = input.new_zeros(outputs, row.numel())
        for k in range(points):
            y = row - padding[0] + k // kernel_width * dilation[0]
            x = column - padding[1] + k % kernel_width * dilation[1]
            samples = []
            for d, channels_of_group in enumerate(input[n].chunk(offset_groups)):
                location = y + offset[n, d, k, 0], x + offset[n, d, k, 1]
                value = sample(channels_of_group, *location, edge_gradient)
                if mask is not None:
                    value = value * mask[n].view(offset_groups, points, -1)[d, k]
                samples.append(value)
            groups = torch.cat(samples).split(per_group)
            kernels = weight[:, :, k // kernel_width, k % kernel_width].chunk(len(groups))
            result = result + torch.cat([w @ v for w, v in zip(kernels, groups, strict=True)])
        results.append(result if bias is None else result + bias[:, None])
    return torch.stack(results).view(images, outputs, *size)
