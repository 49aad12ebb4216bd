"""What every room rests on: the matrix, its stored form, errors, texts."""
