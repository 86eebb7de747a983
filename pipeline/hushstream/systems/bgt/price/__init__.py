"""What BGTplanner's rounds cost: sensitivity, guarantee, budget, advice."""
