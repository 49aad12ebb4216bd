"""NCM: nearest class mean, on frozen features."""

from __future__ import annotations

from clear_mlflow.learning.strategies._statistics import ClosedFormStrategy, set_head
from clear_mlflow.learning.training.trainer import Trainer


class Ncm(ClosedFormStrategy):
    """Nearest class mean: each class's running mean over all buckets.

    Each image is read once, without gradients, so the seed and all parameters of the optimiser have
    no effect. The logit of class c is -||x - mu_c||^2 plus a term that all classes share. Without
    ||x||^2, it is linear in x, so the model is a linear head.

    Source:
        Mensink, Verbeek, Perronnin and Csurka, Distance-Based Image Classification, TPAMI 2013;
        in continual learning: Rebuffi et al., iCaRL, arXiv:1611.07725, section 2.1, with means of
        exemplars; here with means of all images.
    """

    def learn(self, bucket_index: int, trainer: Trainer) -> None:
        """Add the bucket to the means, and set the head."""
        for features, labels in self.iter_bucket_blocks(bucket_index, trainer):
            self.add_to_means(features, labels)
        means, has_images = self._means, self._counts > 0
        # Centred means, whose squares are small numbers that lose fewer digits.
        centre = means[has_images].mean(dim=0)
        centred = means - centre
        set_head(self._head, 2 * centred, -(centred * (means + centre)).sum(dim=1), has_images)
