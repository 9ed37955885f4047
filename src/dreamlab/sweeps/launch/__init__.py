"""Launchers of jobs: processes on this machine, SLURM, a Ray cluster."""
