"""The statement of a deployment for its data-protection officer."""
