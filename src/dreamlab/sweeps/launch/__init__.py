"""Ways to carry out many jobs: processes of this machine, SLURM, a Ray cluster."""
