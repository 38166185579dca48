"""Trains a softmax classifier of headlines, data-parallel, with nothing but Python.

Every rank has the whole model and a part of the headlines. After each batch the ranks add up their gradients, so that
all end with the same parameters. Ranks and their number are those of mpirun; sums go through rank 0, over TCP.
"""

import argparse
import hashlib
import json
import math
import os
import random
import socket
import struct
import sys
import time
from array import array
from pathlib import Path

BUCKETS = 4096
BATCH = 32
LEARNING_RATE = 2.0
PORT = 29123
DEADLINE_S = 60


class Peers:
    """The ranks of the training: each sends its vector to rank 0, and gets the sum back."""

    def __init__(self, rank, world, master):
        self.rank, self.world = rank, world
        self.lines = []
        if world == 1:
            return
        if rank == 0:
            with socket.create_server((master, PORT), backlog=world) as server:
                server.settimeout(DEADLINE_S)
                self.lines = [server.accept()[0] for _ in range(world - 1)]
        else:
            self.lines = [self.dial(master)]

    @staticmethod
    def dial(master):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return socket.create_connection((master, PORT), timeout=DEADLINE_S)
            except OSError:
                # Rank 0 is starting.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def sum(self, values):
        if self.world == 1:
            return values
        if self.rank == 0:
            for line in self.lines:
                for i, value in enumerate(receive(line)):
                    values[i] += value
        else:
            send(self.lines[0], values)
            return receive(self.lines[0])
        for line in self.lines:
            send(line, values)
        return values


def send(line, values):
    body = values.tobytes()
    line.sendall(struct.pack("<I", len(body)) + body)


def receive(line):
    (size,) = struct.unpack("<I", exactly(line, 4))
    return array("d", exactly(line, size))


def exactly(line, size):
    body = bytearray()
    while len(body) < size:
        piece = line.recv(size - len(body))
        if not piece:
            raise ConnectionError("a rank has gone")
        body += piece
    return bytes(body)


def features(text):
    """Words and pairs of words, as numbers that are the same on every machine."""
    words = text.lower().split()
    pairs = [f"{a} {b}" for a, b in zip(words, words[1:])]  # noqa: B905, RUF007 - hosts may have an old Python
    return [int.from_bytes(hashlib.md5(one.encode()).digest()[:4], "little") % BUCKETS for one in words + pairs]


def probabilities(weights, labels, active):
    scores = [sum(weights[label * BUCKETS + i] for i in active) for label in range(labels)]
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def load(folder):
    lines = (Path(folder) / "news.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t", 1) for line in lines]
    labels = sorted({label for label, _ in rows})
    examples = [(labels.index(label), features(text)) for label, text in rows]
    random.Random(7).shuffle(examples)
    held_out = len(examples) // 5
    return labels, examples[held_out:], examples[:held_out]


def train(args, peers):
    labels, training, test = load(args.data_dir)
    weights = array("d", bytes(8 * BUCKETS * len(labels)))
    for epoch in range(1, args.num_train_epochs + 1):
        loss = 0.0
        for begin in range(0, len(training), BATCH):
            batch = training[begin : begin + BATCH]
            # The last number of what is added up is the loss.
            gradient = array("d", bytes(8 * (len(weights) + 1)))
            for label, active in batch[peers.rank :: peers.world]:
                chances = probabilities(weights, len(labels), active)
                gradient[-1] -= math.log(chances[label])
                for other, chance in enumerate(chances):
                    error = chance - (other == label)
                    for i in active:
                        gradient[other * BUCKETS + i] += error
            gradient = peers.sum(gradient)
            loss += gradient.pop()
            for i, value in enumerate(gradient):
                if value:
                    weights[i] -= LEARNING_RATE * value / len(batch)
        if peers.rank == 0:
            say(f"epoch {epoch}  loss {loss / len(training):.4f}")
    right = sum(best(probabilities(weights, len(labels), active)) == label for label, active in test)
    return labels, weights, right / len(test)


def say(line):
    """In one piece: mpirun mixes what the ranks write as it comes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def best(chances):
    return chances.index(max(chances))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--num_train_epochs", type=int, default=6)
    args = parser.parse_args()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    world = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    labels, weights, accuracy = train(args, Peers(rank, world, args.master))
    # Sums of the same numbers in the same order: equal to the last bit.
    digest = hashlib.sha256(weights.tobytes()).hexdigest()[:8]
    say(f"rank {rank} of {world}: accuracy {accuracy:.3f}, parameters {digest}")
    if rank == 0:
        model = {"labels": labels, "buckets": BUCKETS, "weights": weights.tolist()}
        (Path(args.output_dir) / "model.json").write_text(json.dumps(model))


if __name__ == "__main__":
    main()
