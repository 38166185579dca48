"""Data-parallel training in PaddlePaddle: `fleet` averages the gradients of all trainers.

`fleet.init` finds the others through PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ENDPOINTS and
PADDLE_MASTER, which `python -m paddle.distributed.launch` sets too. Without them it trains alone: `python train.py`.
"""

import os
import sys
import zlib

# Members of a gang that share a machine share its cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import paddle
from paddle import nn
from paddle.distributed import fleet

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 64  # Samples over all trainers, the batch in each of them.
LEARNING_RATE = 0.1


def make_data(rank, world):
    """A function to learn, with noise; everyone draws the same samples and keeps its share."""
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = np.tanh(x @ random.normal(size=(FEATURES, 1)) / FEATURES**0.5) + 0.1 * random.normal(size=(SAMPLES, 1))
    return x[rank::world], y[rank::world].astype("float32")


def main():
    if not paddle.is_compiled_with_cuda():
        paddle.set_device("cpu")
    fleet.init(is_collective=True)
    rank, world = fleet.worker_index(), fleet.worker_num()

    paddle.seed(rank)  # Different on purpose: fleet gives everyone the parameters of rank 0.
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    parallel = model
    optimizer = paddle.optimizer.SGD(LEARNING_RATE, parameters=model.parameters())
    if world > 1:
        parallel = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)

    x, y = make_data(rank, world)
    order = np.random.default_rng(rank)
    first = last = None
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(order.permutation(len(x)), range(BATCH, len(x), BATCH)):
            loss = nn.functional.mse_loss(parallel(paddle.to_tensor(x[batch])), paddle.to_tensor(y[batch]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        mean = paddle.to_tensor(float(np.mean(losses)))
        if world > 1:
            paddle.distributed.all_reduce(mean)
        last = float(mean) / world
        first = last if first is None else first
        if rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    checksum = zlib.crc32(b"".join(parameter.numpy().tobytes() for parameter in model.parameters()))
    print(f"rank {rank} of {world}: final loss {last:.4f}, parameter checksum {checksum:08x}", flush=True)
    if last >= first:
        sys.exit(f"rank {rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
