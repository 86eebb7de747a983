"""`verify`: checks that the published records follow from the logs."""
