"""Experiments on BGTplanner: the paper's figures and tables, and the sound form beside them."""
