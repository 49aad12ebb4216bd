"""One pass through a model that is not trained: extraction and testing."""
