"""Data-parallel training of a small network on handwritten digits, with nothing but numpy and sockets.

Every rank holds the whole model and a part of the data. After each step the ranks average their gradients with a ring
all-reduce, so all of them make the same update and end with the same parameters, bit for bit.

How the ranks find each other is what a platform has to say, in four environment variables:

    MASTER_ADDR, MASTER_PORT   where rank 0 waits for the others
    RANK, WORLD_SIZE           which one this is, and how many there are

Without them it trains alone: `python train.py`.
"""

import os

# Ranks that share a machine share its cores: without this each would start a thread per core for tiny matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hashlib
import importlib.util
import json
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

EPOCHS = int(os.environ.get("EPOCHS", "40"))
BATCH = 64  # Over all ranks: the same training whatever the number of ranks.
HIDDEN = 256
LEARNING_RATE = 0.1
MOMENTUM = 0.9
TEST_IMAGES = 360
SEED = 7
RENDEZVOUS_DEADLINE_S = 60


class Ring:
    """Ranks in a circle: each sends to the next one and receives from the one before."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.previous = self.next = None
        # Sending and receiving at once: if every rank only sent first, full socket buffers would stop them all.
        self.sender = ThreadPoolExecutor(max_workers=1)

    @classmethod
    def form(cls, rank, world, master):
        """Meets the other ranks at `master` and connects the circle."""
        ring = cls(rank, world)
        if world == 1:
            return ring
        deadline = time.monotonic() + RENDEZVOUS_DEADLINE_S
        if rank == 0:
            addresses, listener = ring._gather_addresses(master, deadline)
        else:
            addresses, listener = ring._announce(master, deadline)
        ring.next = connect(addresses[(rank + 1) % world], deadline)
        listener.settimeout(max(deadline - time.monotonic(), 1))
        ring.previous, _ = listener.accept()
        listener.close()
        for peer in (ring.previous, ring.next):
            peer.settimeout(RENDEZVOUS_DEADLINE_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ring

    def _gather_addresses(self, master, deadline):
        """Rank 0: waits until everyone has said where it listens, then tells everyone about all of them."""
        meeting = socket.create_server(master, backlog=self.world)
        listener = socket.create_server((master[0], 0))
        addresses = {0: listener.getsockname()[:2]}
        members = []
        while len(addresses) < self.world:
            meeting.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                member, _ = meeting.accept()
            except TimeoutError:
                missing = sorted(set(range(self.world)) - set(addresses))
                sys.exit(f"rank 0: ranks {missing} did not come within {RENDEZVOUS_DEADLINE_S} s")
            rank, port = receive_json(member)
            addresses[rank] = (member.getpeername()[0], port)
            members.append(member)
        for member in members:
            send_json(member, addresses)
            member.close()
        meeting.close()
        return addresses, listener

    def _announce(self, master, deadline):
        """The other ranks: listen, say where, and hear where everyone else listens."""
        member = connect(master, deadline)
        # The address of this machine that reaches rank 0 is the one its neighbours can reach too.
        listener = socket.create_server((member.getsockname()[0], 0))
        send_json(member, (self.rank, listener.getsockname()[1]))
        addresses = {int(rank): tuple(address) for rank, address in receive_json(member).items()}
        member.close()
        return addresses, listener

    def mean(self, values):
        """The mean of `values` over all ranks, the same bytes on each of them.

        The vector is cut into one chunk for each rank. While sums go round, each rank adds its own part to the chunk
        that passes by, until every chunk is complete at one rank; then the complete chunks go round once more. Every
        rank sends 2 (world - 1) / world of the vector, however many ranks there are.
        """
        if self.world == 1:
            return values
        chunks = np.array_split(values.copy(), self.world)
        for step in range(self.world - 1):
            outgoing = chunks[(self.rank - step) % self.world]
            chunks[(self.rank - step - 1) % self.world] += self._exchange(outgoing)
        for step in range(self.world - 1):
            outgoing = chunks[(self.rank + 1 - step) % self.world]
            chunks[(self.rank - step) % self.world] = self._exchange(outgoing)
        return np.concatenate(chunks) / self.world

    def _exchange(self, outgoing):
        sent = self.sender.submit(send, self.next, outgoing.tobytes())
        incoming = np.frombuffer(receive(self.previous), dtype=outgoing.dtype)
        sent.result()
        return incoming


def connect(address, deadline):
    """Connects, trying again until the deadline: the other side may not have begun to listen."""
    while True:
        try:
            return socket.create_connection(address, timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"cannot reach {address[0]}:{address[1]} within {RENDEZVOUS_DEADLINE_S} s: {error}")
            time.sleep(0.05)


def send(peer, data):
    peer.sendall(struct.pack("!Q", len(data)) + data)


def receive(peer):
    (length,) = struct.unpack("!Q", receive_exactly(peer, 8))
    return receive_exactly(peer, length)


def receive_exactly(peer, length):
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = peer.recv_into(view)
        if count == 0:
            sys.exit("another rank is gone: its connection was closed")
        view = view[count:]
    return bytes(data)


def send_json(peer, value):
    send(peer, json.dumps(value).encode())


def receive_json(peer):
    return json.loads(receive(peer))


def load_digits():
    """1,797 images of 8 by 8 pixels with their digits, shuffled the same way on every rank."""
    package = importlib.util.find_spec("sklearn")
    if package is None:
        sys.exit("the data set is part of scikit-learn: pip install -r requirements.txt")
    file = Path(package.submodule_search_locations[0]) / "datasets/data/digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float64)
    table = np.random.default_rng(SEED).permutation(table)
    images, digits = table[:, :-1] / 16.0, table[:, -1].astype(int)
    train = images[TEST_IMAGES:], digits[TEST_IMAGES:]
    test = images[:TEST_IMAGES], digits[:TEST_IMAGES]
    return train, test


class Network:
    """64 pixels, one hidden layer, 10 digits; all parameters in one vector, as an all-reduce likes it."""

    SHAPES = ((64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,))

    def __init__(self):
        rng = np.random.default_rng(SEED)
        # He initialisation for weights, zero for biases.
        parts = [
            rng.normal(0, np.sqrt(2 / shape[0]), shape) if len(shape) == 2 else np.zeros(shape) for shape in self.SHAPES
        ]
        self.parameters = np.concatenate([part.ravel() for part in parts])
        self.velocity = np.zeros_like(self.parameters)

    def layers(self):
        """Views into the parameter vector, in the shapes of the layers."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.SHAPES])
        return [
            part.reshape(shape) for part, shape in zip(np.split(self.parameters, ends[:-1]), self.SHAPES, strict=True)
        ]

    def scores(self, images):
        w1, b1, w2, b2 = self.layers()
        hidden = np.maximum(images @ w1 + b1, 0)
        return hidden, hidden @ w2 + b2

    def gradient(self, images, digits):
        """Cross-entropy loss and its gradient over one batch."""
        _, _, w2, _ = self.layers()
        hidden, scores = self.scores(images)
        scores -= scores.max(axis=1, keepdims=True)
        probabilities = np.exp(scores)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        rows = np.arange(len(digits))
        loss = -np.log(probabilities[rows, digits]).mean()
        error = probabilities
        error[rows, digits] -= 1
        error /= len(digits)
        back = (error @ w2.T) * (hidden > 0)
        parts = images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)
        return loss, np.concatenate([part.ravel() for part in parts])

    def update(self, gradient, rate):
        self.velocity = MOMENTUM * self.velocity - rate * gradient
        self.parameters += self.velocity

    def correct(self, images, digits):
        return (self.scores(images)[1].argmax(axis=1) == digits).sum()


def main():
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    master = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    started = time.monotonic()

    def say(text):
        # One write for the line and its end, so that lines of ranks that share an output never mix.
        print(text + "\n", end="", flush=True)

    ring = Ring.form(rank, world, master)
    train, test = load_digits()
    images, digits = train[0][rank::world], train[1][rank::world]
    test_images, test_digits = test[0][rank::world], test[1][rank::world]
    meeting = f", met at {master[0]}:{master[1]}" if world > 1 else ""
    say(f"rank {rank} of {world}: {len(images)} of {len(train[0])} images{meeting}")

    network = Network()
    batch = BATCH // world
    # The same number of steps on every rank, also where its part has one image more.
    steps = (len(train[0]) // world) // batch
    shuffle = np.random.default_rng((SEED, rank))
    accuracy = 0.0
    for epoch in range(1, EPOCHS + 1):
        order = shuffle.permutation(len(images))
        losses = 0.0
        for step in range(steps):
            chosen = order[step * batch : (step + 1) * batch]
            loss, gradient = network.gradient(images[chosen], digits[chosen])
            rate = LEARNING_RATE * (1 - (epoch - 1) / EPOCHS)
            network.update(ring.mean(gradient), rate)
            losses += loss
        correct = float(network.correct(test_images, test_digits))
        loss, correct = ring.mean(np.array([losses / steps, correct]))
        accuracy = correct * world / len(test[0])
        if rank == 0 and (epoch == 1 or epoch % 5 == 0 or epoch == EPOCHS):
            seconds = time.monotonic() - started
            say(f"epoch {epoch:>2}/{EPOCHS}  loss {loss:.4f}  test accuracy {accuracy:.3f}  {seconds:.1f} s")

    checksum = hashlib.sha256(network.parameters.tobytes()).hexdigest()[:16]
    say(f"rank {rank}: parameters sha256 {checksum}")
    if rank == 0:
        folder = os.environ.get("MUSTER_OUTPUT_DIR")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            np.savez(Path(folder) / "model.npz", parameters=network.parameters)
            say("wrote model.npz")
        say(f"final test accuracy {accuracy:.3f} after {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
