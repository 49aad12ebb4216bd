"""NCM: the class whose mean is nearest, on frozen features."""

from __future__ import annotations

from clear_mlflow.learning.strategies._statistics import ClosedFormStrategy, set_head
from clear_mlflow.learning.training.trainer import Trainer


class Ncm(ClosedFormStrategy):
    """Nearest class mean: the running mean of each class over all buckets so far.

    Each image is seen once and no gradient is descended, so epochs, batch_size and all else of the
    optimiser mean nothing, and neither does the seed. The logit of class c is -||x - mu_c||^2 but
    for what all classes have in common; with ||x||^2 taken away that is linear in x, and the model
    stays the linear head.

    Source:
        Mensink, Verbeek, Perronnin and Csurka, Distance-Based Image Classification, TPAMI 2013;
        as continual learners compare it: Rebuffi et al., iCaRL, arXiv:1611.07725, section 2.1,
        there of exemplars, here of all images.
    """

    def learn(self, position: int, trainer: Trainer) -> None:
        """Count the bucket's images into the means."""
        for features, labels in self.pass_over(position, trainer):
            self.count(features, labels)
        means, seen = self._means, self._counts > 0
        # Around a point in their middle, where the square of a mean is as small as can be.
        middle = means[seen].mean(dim=0)
        away = means - middle
        set_head(self._head, 2 * away, -(away * (means + middle)).sum(dim=1), seen)
