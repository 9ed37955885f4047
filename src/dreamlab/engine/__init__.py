"""The loop while it runs. It never names an algorithm."""
