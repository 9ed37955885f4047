"""Many runs: sweeps, tuning, and the machines that run them."""
