"""The training of one bucket: its steps, what limits them, and what observes them."""
