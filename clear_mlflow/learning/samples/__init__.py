"""What a model is trained on: decoded images or stored features, by index."""
