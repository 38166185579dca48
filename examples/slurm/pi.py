"""Pi by throwing darts, shared out over the ranks of MPI."""

import random
import sys

from mpi4py import MPI


def main():
    world = MPI.COMM_WORLD
    throws = int(sys.argv[1]) // world.size
    darts = random.Random(world.rank)
    inside = sum(darts.random() ** 2 + darts.random() ** 2 < 1 for _ in range(throws))
    total = world.reduce(inside)
    names = world.gather(MPI.Get_processor_name())
    if world.rank == 0:
        pi = 4 * total / throws / world.size
        print(f"{world.size} ranks on {len(names)} places: pi is about {pi:.3f}", flush=True)


if __name__ == "__main__":
    main()
