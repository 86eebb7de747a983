"""`verify`: checks that the published records follow from the logs. With its checkpoints and findings."""
