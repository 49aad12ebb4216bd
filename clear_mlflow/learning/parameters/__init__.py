"""What a training is given: which parameters there are, their values, and what runs log of them."""
