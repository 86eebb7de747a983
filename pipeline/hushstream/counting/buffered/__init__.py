"""The buffered linear Toeplitz counter and its shapes."""
