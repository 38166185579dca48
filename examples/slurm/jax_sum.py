"""JAX finds the other processes in Slurm's variables: `initialize` is told nothing."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils


def main():
    jax.distributed.initialize()
    rank, world = jax.process_index(), jax.process_count()
    ranks = multihost_utils.process_allgather(jnp.array([rank]))
    print(f"process {rank} of {world}: the ranks add up to {int(ranks.sum())}", flush=True)


if __name__ == "__main__":
    main()
