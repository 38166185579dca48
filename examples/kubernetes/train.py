"""Data-parallel training with nothing but numpy: gradients are added up over plain sockets.

Every process reads what muster tells it (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`); rank 0 adds up what the
others send. Started without them, `python3 train.py` trains alone.
"""

import os
import socket
import sys
import time
import zlib

# Members of a gang that share a machine share its cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 64  # Samples over all ranks, the batch in each of them.
LEARNING_RATE = 0.1
PATIENCE_S = 120  # Pods of a gang start together; images are pulled at different speeds.


class Gang:
    """The sum over all ranks, by a star around rank 0."""

    def __init__(self):
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.peers = []
        if self.size == 1:
            return
        port = int(os.environ["MASTER_PORT"])
        if self.rank == 0:
            server = socket.create_server(("", port))
            self.peers = [server.accept()[0].makefile("rwb") for _ in range(self.size - 1)]
        else:
            self.peers = [connect((os.environ["MASTER_ADDR"], port)).makefile("rwb")]

    def sum(self, values):
        """What all ranks have given, added up; the same bytes for everybody."""
        if self.rank == 0:
            total = values + sum(receive(peer, values) for peer in self.peers)
            for peer in self.peers:
                send(peer, total)
            return total
        for peer in self.peers:
            send(peer, values)
            values = receive(peer, values)
        return values


def connect(address):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(address, timeout=PATIENCE_S)
        except OSError:
            # Its name, or its port, comes with its process.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def send(peer, values):
    peer.write(values.tobytes())
    peer.flush()


def receive(peer, like):
    return np.frombuffer(peer.read(like.nbytes), like.dtype)


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
    gang = Gang()
    parameters = make_parameters()
    x, y = make_data(gang.rank, gang.size)
    order = np.random.default_rng(gang.rank)
    first = last = None
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in np.split(order.permutation(len(x)), range(BATCH, len(x), BATCH)):
            loss, gradients = loss_and_gradients(parameters, x[batch], y[batch])
            # One message for everything: the loss and all gradients, end to end.
            message = gang.sum(np.concatenate([[loss], *(gradient.ravel() for gradient in gradients)])) / gang.size
            losses.append(message[0])
            at = 1
            for parameter in parameters:
                parameter -= LEARNING_RATE * message[at : at + parameter.size].reshape(parameter.shape)
                at += parameter.size
        last = float(np.mean(losses))
        first = last if first is None else first
        if gang.rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    checksum = zlib.crc32(b"".join(parameter.tobytes() for parameter in parameters))
    where = os.environ.get("MUSTER_NODE_NAME", socket.gethostname())
    print(f"rank {gang.rank} of {gang.size} on {where}: final loss {last:.4f}, checksum {checksum:08x}", flush=True)
    if last >= first:
        sys.exit(f"rank {gang.rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
