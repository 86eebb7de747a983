"""Studies of BGTplanner: rating data, the three slots beside the paper's planner, attacks and speed."""
