"""Data-parallel training in JAX: every process computes gradients on its own data, `pmean` averages them.

The processes meet at `JAX_COORDINATOR_ADDRESS`; `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` say how many there are and
which one this is. Without them it trains alone: `python train.py`.
"""

import os
import sys
import zlib

# Members of a gang that share a machine share its cores.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 64  # Samples over all processes, the batch in each of them.
LEARNING_RATE = 0.1


def make_data(rank, world):
    """A function to learn, with noise; everyone draws the same samples and keeps its share."""
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = np.tanh(x @ random.normal(size=(FEATURES, 1)) / FEATURES**0.5) + 0.1 * random.normal(size=(SAMPLES, 1))
    return x[rank::world], y[rank::world].astype("float32")


def make_parameters():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w1": jax.random.normal(keys[0], (FEATURES, HIDDEN)) / FEATURES**0.5,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(keys[1], (HIDDEN, 1)) / HIDDEN**0.5,
        "b2": jnp.zeros(1),
    }


def loss_of(parameters, x, y):
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    return jnp.mean((hidden @ parameters["w2"] + parameters["b2"] - y) ** 2)


def make_step(mesh):
    """One step on one batch: each device its own part of it, the same update on all."""

    def step(parameters, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        loss, gradients = jax.lax.pmean((loss, gradients), "data")
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients), loss

    # The result is the same on every device because of `pmean`, which is what check_vma would have us prove.
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(sharded)


def main():
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize(
            coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
            process_id=int(os.environ["JAX_PROCESS_ID"]),
        )
    rank, world = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    share = NamedSharding(mesh, P("data"))
    parameters = multihost_utils.host_local_array_to_global_array(make_parameters(), mesh, P())
    step = make_step(mesh)
    x, y = make_data(rank, world)
    order = np.random.default_rng(rank)
    first = last = None
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(order.permutation(len(x)), range(BATCH, len(x), BATCH)):
            part = [jax.make_array_from_process_local_data(share, array[batch]) for array in (x, y)]
            parameters, loss = step(parameters, *part)
            losses.append(loss)
        last = float(np.mean([float(loss) for loss in losses]))
        first = last if first is None else first
        if rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    own = [np.asarray(leaf.addressable_data(0)).tobytes() for leaf in jax.tree.leaves(parameters)]
    checksum = zlib.crc32(b"".join(own))
    print(f"rank {rank} of {world}: final loss {last:.4f}, parameter checksum {checksum:08x}", flush=True)
    if last >= first:
        sys.exit(f"rank {rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
