"""Slurm's own commands: the user's sinfo, scontrol, sbatch, srun, squeue and scancel.

They are asked with `-o` formats, whose meaning has stayed the same since Slurm 17; the shapes of
`--json` change with every release.
"""
