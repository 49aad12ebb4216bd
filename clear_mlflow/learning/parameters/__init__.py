"""The parameters of a training: declarations, conflicts, recipes, and what runs log."""
