"""Prices of BGTplanner's rounds: sensitivity, guarantee, budget, advice."""
