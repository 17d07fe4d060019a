"""Prints in which job step of Slurm it runs, as hetagent reads it."""

import os

from hetagent.cli.slurm import find_job_step

step = find_job_step(os.environ, reads_gpus=True)
print("IT IS", None if step is None else (step.node, step.nodes, step.job_nodes, step.tasks, step.gpus))
