"""Experiments on PDOL: the paper's figures and tables, compared with the sound form."""
