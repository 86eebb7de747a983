"""One user's learner, feedback and contribution in one object, for a device or an application's process."""
