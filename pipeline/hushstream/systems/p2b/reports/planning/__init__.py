"""What a deployment will bring, said beforehand."""
