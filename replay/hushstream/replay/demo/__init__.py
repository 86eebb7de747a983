"""`hushstream demo --serve`: a deployment on this machine with a page, simulated visitors, and the owner's figures."""
