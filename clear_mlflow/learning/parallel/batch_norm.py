"""Batch normalisation over a batch that lies in several processes, on CPUs or GPUs.

torch's own, SyncBatchNorm, is for GPUs alone. Under autocast a process without images sends zeros
in bfloat16 there and the others statistics in float32, so all wait for ever; and which processes
count is found with masks, for which the host waits at every layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm


class SynchronizedBatchNorm(_BatchNorm):
    """Batch normalisation with the mean and variance of all processes' images, in training only.

    Source:
        Chan et al., Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
        1979, equation 2.1b, for the variance of several parts.
    """

    @classmethod
    def convert(cls, module: nn.Module) -> nn.Module:
        """Replace all layers of batch normalisation in a module.

        Returns the module, or its replacement if it is such a layer itself.
        """
        if isinstance(module, _BatchNorm):
            layer = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
            )
            layer.train(module.training)
            for name, parameter in module.named_parameters(recurse=False):
                setattr(layer, name, parameter)
            for name, buffer in module.named_buffers(recurse=False):
                layer.register_buffer(name, buffer)
            return layer
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child))
        return module

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the name of the method replaced)
        """Normalise (N, C, ...). N may be 0 here if another process has images."""
        if not (self.training or self.running_mean is None):
            return super().forward(input)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps)
        if self.training and self.running_mean is not None and self.running_var is not None:
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            share = self.momentum
            if share is None:  # the mean of all batches so far
                share = 1.0 / float(self.num_batches_tracked or 1)
            with torch.no_grad():
                self.running_mean.lerp_(mean, share)
                self.running_var.lerp_(variance * (count / (count - 1)), share)
        return torch.as_tensor(output)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        return  # whatever has channels


class _Normalize(torch.autograd.Function):
    """One exchange forward, one backward; statistics in float32 whatever the input is."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Give the output, and the mean, (biased) variance and number of values of each channel."""
        channels = images.shape[1]
        over = [d for d in range(images.dim()) if d != 1]
        count = images.numel() // channels
        part = torch.zeros(3, channels, dtype=torch.float32, device=images.device)
        if count:
            variance, mean = torch.var_mean(images.float(), dim=over, correction=0)
            part = torch.stack([mean, variance, torch.full_like(mean, count)])
        parts = part.new_empty(3 * dist.get_world_size(), channels)
        dist.all_gather_into_tensor(parts, part)
        means, variances, counts = parts.view(-1, 3, channels).unbind(1)  # (processes, channels)
        total = counts.sum(0)
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean).square()) * counts).sum(0) / total
        ctx.save_for_backward(images, weight, mean, variance, total)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance, total)
        output = batch_norm(images, mean, variance, weight, bias, training=False, eps=eps)
        return output, mean, variance, total

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """The gradient through the statistics, too, to which every process's images contribute."""
        images, weight, mean, variance, total = ctx.saved_tensors
        over = [d for d in range(images.dim()) if d != 1]
        shape = [-1 if d == 1 else 1 for d in range(images.dim())]
        scale = (variance + ctx.eps).rsqrt()
        whitened = (images.float() - mean.view(shape)) * scale.view(shape)
        slope = gradient.float()
        sums = torch.stack([slope.sum(over), (slope * whitened).sum(over)])
        of_bias, of_weight = sums.clone()  # of this process's images: they are averaged later
        dist.all_reduce(sums)
        means = sums / total
        slope = slope - means[0].view(shape) - whitened * means[1].view(shape)
        slope = slope * (scale if weight is None else scale * weight).view(shape)
        return (
            slope.to(images.dtype),
            None if weight is None else of_weight,
            None if weight is None else of_bias,
            None,
        )
