"""Experiments on P-DAP: the paper's figures and tables, compared with the sound form."""
