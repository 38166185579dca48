"""Data-parallel training in MindSpore on CPU: the gradients of all workers are added up with AllReduce.

`init()` finds the others through MS_SCHED_HOST, MS_SCHED_PORT, MS_WORKER_NUM and MS_ROLE ("dynamic cluster"; `msrun`
sets the same). A scheduler process brings the workers together: MindSpore's convention is to start this same script
once more with MS_ROLE=MS_SCHED, where `init()` serves until all workers have gone and does not return.
Without these variables it trains alone: `python train.py`.
"""

import os
import sys
import zlib

# Members of a gang that share a machine share its cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mindspore as ms
import numpy as np
from mindspore import communication, nn, ops

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 128  # Samples over all workers, the batch in each of them.
LEARNING_RATE = 0.1


def make_data(rank, world):
    """A function to learn, with noise; everyone draws the same samples and keeps its share."""
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = np.tanh(x @ random.normal(size=(FEATURES, 1)) / FEATURES**0.5) + 0.1 * random.normal(size=(SAMPLES, 1))
    return x[rank::world], y[rank::world].astype("float32")


def main():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    rank, world = 0, 1
    if "MS_ROLE" in os.environ:
        communication.init()
        rank, world = communication.get_rank(), communication.get_group_size()

    ms.set_seed(1)  # Every worker starts from the same parameters.
    model = nn.SequentialCell(nn.Dense(FEATURES, HIDDEN), nn.Tanh(), nn.Dense(HIDDEN, 1))
    optimizer = nn.SGD(model.trainable_params(), learning_rate=LEARNING_RATE)
    loss_of = nn.MSELoss()
    value_and_grad = ms.value_and_grad(lambda x, y: loss_of(model(x), y), None, optimizer.parameters)
    all_reduce = ops.AllReduce() if world > 1 else (lambda tensor: tensor)

    x, y = make_data(rank, world)
    order = np.random.default_rng(rank)
    first = last = None
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(order.permutation(len(x)), range(BATCH, len(x), BATCH)):
            loss, gradients = value_and_grad(ms.Tensor(x[batch]), ms.Tensor(y[batch]))
            optimizer(tuple(all_reduce(gradient) / world for gradient in gradients))
            losses.append(float(loss.asnumpy()))
        last = float(all_reduce(ms.Tensor([np.mean(losses)], ms.float32)).asnumpy()[0]) / world
        first = last if first is None else first
        if rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    checksum = zlib.crc32(b"".join(parameter.asnumpy().tobytes() for parameter in model.trainable_params()))
    print(f"rank {rank} of {world}: final loss {last:.4f}, parameter checksum {checksum:08x}", flush=True)
    if last >= first:
        sys.exit(f"rank {rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
