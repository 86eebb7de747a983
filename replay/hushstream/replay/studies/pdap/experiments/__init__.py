"""Experiments on P-DAP: the paper's figures and tables, and the sound form beside them."""
