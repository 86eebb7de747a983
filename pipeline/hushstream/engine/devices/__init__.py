"""What users' devices and a deployment say to each other in any system: sealed slots, signed models, and their keys."""
