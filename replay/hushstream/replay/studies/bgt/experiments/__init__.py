"""Experiments on BGTplanner: the paper's figures and tables, compared with the sound form."""
