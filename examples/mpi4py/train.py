"""Data-parallel training with MPI: numpy computes the gradients, `Allreduce` adds them up.

`mpirun` starts the processes and tells each of them its rank; nothing is read from the environment here. Started
without it, `python train.py` trains alone.
"""

import os
import sys
import zlib

# Members of a gang that share a machine share its cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 64  # Samples over all ranks, the batch in each of them.
LEARNING_RATE = 0.1


def make_data(rank, world):
    """A function to learn, with noise; everyone draws the same samples and keeps its share."""
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES, FEATURES))
    y = np.tanh(x @ random.normal(size=(FEATURES, 1)) / FEATURES**0.5) + 0.1 * random.normal(size=(SAMPLES, 1))
    return x[rank::world], y[rank::world]


def make_parameters():
    random = np.random.default_rng(0)
    return [
        random.normal(size=(FEATURES, HIDDEN)) / FEATURES**0.5,
        np.zeros(HIDDEN),
        random.normal(size=(HIDDEN, 1)) / HIDDEN**0.5,
        np.zeros(1),
    ]


def loss_and_gradients(parameters, x, y):
    w1, b1, w2, b2 = parameters
    hidden = np.tanh(x @ w1 + b1)
    error = hidden @ w2 + b2 - y
    at_output = 2 * error / len(x)
    at_hidden = (at_output @ w2.T) * (1 - hidden**2)
    return np.mean(error**2), [x.T @ at_hidden, at_hidden.sum(0), hidden.T @ at_output, at_output.sum(0)]


def main():
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    parameters = make_parameters()
    x, y = make_data(rank, size)
    order = np.random.default_rng(rank)
    first = last = None
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(order.permutation(len(x)), range(BATCH, len(x), BATCH)):
            loss, gradients = loss_and_gradients(parameters, x[batch], y[batch])
            # One message for everything: the loss and all gradients, end to end.
            message = np.concatenate([[loss], *(gradient.ravel() for gradient in gradients)])
            world.Allreduce(MPI.IN_PLACE, message)
            message /= size
            losses.append(message[0])
            at = 1
            for parameter in parameters:
                parameter -= LEARNING_RATE * message[at : at + parameter.size].reshape(parameter.shape)
                at += parameter.size
        last = float(np.mean(losses))
        first = last if first is None else first
        if rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    checksum = zlib.crc32(b"".join(parameter.tobytes() for parameter in parameters))
    print(f"rank {rank} of {size}: final loss {last:.4f}, parameter checksum {checksum:08x}", flush=True)
    if last >= first:
        sys.exit(f"rank {rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
