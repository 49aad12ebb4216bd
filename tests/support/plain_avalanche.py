"""Avalanche's plugins with a deviation from their papers undone."""

from avalanche.training import plugins


class PerImageEwc(plugins.EWCPlugin):
    """The gradient of each image squared, and not that of a batch's mean."""

    def compute_importances(self, model, criterion, optimizer, dataset, device, batch_size, **more):
        return super().compute_importances(model, criterion, optimizer, dataset, device, 1, **more)


class LwfInEvaluation(plugins.LwFPlugin):
    """The teacher answers in evaluation mode."""

    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        self.lwf.prev_model.eval()
