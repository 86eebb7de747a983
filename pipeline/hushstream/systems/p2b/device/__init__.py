"""What devices and a deployment say to each other: the agreement, slots as they travel, models under a signature."""
