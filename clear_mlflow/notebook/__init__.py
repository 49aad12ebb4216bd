"""What a training gives back to Python, and what a notebook shows of it and while it runs."""
