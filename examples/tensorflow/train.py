"""Data-parallel training in TensorFlow: MultiWorkerMirroredStrategy adds up the gradients of all workers.

The strategy finds the others through TF_CONFIG, a piece of JSON: the addresses of all workers and which one this is.
Without it, it trains alone: `python train.py`.
"""

import json
import os
import sys
import zlib

# Members of a gang that share a machine share its cores; the log is for warnings.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 64  # Samples over all workers, the batch in each of them.
LEARNING_RATE = 0.1


def make_data(rank, world):
    """A function to learn, with noise; everyone draws the same samples and keeps its share."""
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = np.tanh(x @ random.normal(size=(FEATURES, 1)) / FEATURES**0.5) + 0.1 * random.normal(size=(SAMPLES, 1))
    return x[rank::world], y[rank::world].astype("float32")


def make_parameters():
    random = np.random.default_rng(0)
    values = [
        random.normal(size=(FEATURES, HIDDEN)) / FEATURES**0.5,
        np.zeros(HIDDEN),
        random.normal(size=(HIDDEN, 1)) / HIDDEN**0.5,
        np.zeros(1),
    ]
    return [tf.Variable(value, dtype=tf.float32) for value in values]


def make_step(strategy, parameters):
    world = strategy.num_replicas_in_sync

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            w1, b1, w2, b2 = parameters
            loss = tf.reduce_mean((tf.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)
        gradients = tape.gradient(loss, parameters)
        summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, [loss, *gradients])
        for parameter, gradient in zip(parameters, summed[1:], strict=True):
            parameter.assign_sub(LEARNING_RATE / world * gradient)
        return summed[0] / world

    @tf.function
    def step(x, y):
        return strategy.run(on_replica, args=(x, y))

    return step


def main():
    # The strategy reads TF_CONFIG, and it must be made before anything else of TensorFlow is used.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    world = strategy.num_replicas_in_sync
    with strategy.scope():
        parameters = make_parameters()
    step = make_step(strategy, parameters)

    x, y = make_data(rank, world)
    order = np.random.default_rng(rank)
    first = last = None
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(order.permutation(len(x)), range(BATCH, len(x), BATCH)):
            losses.append(float(step(tf.constant(x[batch]), tf.constant(y[batch]))))
        last = float(np.mean(losses))
        first = last if first is None else first
        if rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    checksum = zlib.crc32(b"".join(parameter.numpy().tobytes() for parameter in parameters))
    print(f"rank {rank} of {world}: final loss {last:.4f}, parameter checksum {checksum:08x}", flush=True)
    if last >= first:
        sys.exit(f"rank {rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
