"""Features of images: computed, shipped with a dataset, or extracted by a backbone."""
