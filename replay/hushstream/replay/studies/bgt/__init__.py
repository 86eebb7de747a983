"""Studies of BGTplanner: rating data, the three slots compared with the paper's planner, attacks and speed."""
