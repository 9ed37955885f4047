"""The originals' weights in our agents, and proof that both compute the same."""
