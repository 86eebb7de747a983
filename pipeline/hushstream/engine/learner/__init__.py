"""What learners share: decoding of input, feedback that comes early or is still awaited, readers of models."""
