"""What users' devices and a deployment send each other in any system: sealed slots, signed models, and their keys."""
