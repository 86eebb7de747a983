"""Reports on a deployment: facts for its statement, its lift, its model, and plans."""
