"""What the learners share: intake, feedback that waits or comes early, readers of models."""
