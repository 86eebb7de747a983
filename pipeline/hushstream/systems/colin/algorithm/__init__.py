"""The collaborative estimator, its sums under noise, its confidence width."""
