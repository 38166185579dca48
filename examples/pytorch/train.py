"""Data-parallel training in PyTorch: DistributedDataParallel averages the gradients of all processes.

`init_process_group` finds the others through MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE (`env://`; `torchrun` sets
the same). With a GPU each process takes the one of its LOCAL_RANK and talks over NCCL, without one over gloo.
Without these variables it trains alone: `python train.py`.
"""

import gc
import os
import sys
import zlib

# Members of a gang that share a machine share its cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = int(os.environ.get("EPOCHS", "5"))
SAMPLES, FEATURES, HIDDEN, BATCH = 2048, 16, 32, 64  # Samples over all processes, the batch in each of them.
LEARNING_RATE = 0.1


def make_data():
    """A function to learn, with noise; the same samples in every process."""
    random = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, FEATURES, generator=random)
    y = torch.tanh(x @ torch.randn(FEATURES, 1, generator=random) / FEATURES**0.5)
    return TensorDataset(x, y + 0.1 * torch.randn(SAMPLES, 1, generator=random))


def main():
    rank, world = 0, 1
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        # BACKEND=gloo lets several processes share one GPU, which NCCL refuses.
        dist.init_process_group(os.environ.get("BACKEND", "nccl" if device.type == "cuda" else "gloo"))
        rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"{world} processes on {device.type}, torch {torch.__version__}", flush=True)

    torch.manual_seed(rank)  # Different on purpose: DDP gives everyone the parameters of rank 0.
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).to(device)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(parallel.parameters(), lr=LEARNING_RATE)
    loss_of = nn.MSELoss()
    sampler = DistributedSampler(data := make_data(), num_replicas=world, rank=rank, seed=1)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)

    first = last = None
    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(parallel(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        if dist.is_initialized():
            dist.all_reduce(total)
        last = total.item() / world
        first = last if first is None else first
        if rank == 0:
            print(f"epoch {epoch}  loss {last:.4f}", flush=True)

    checksum = zlib.crc32(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters()))
    print(f"rank {rank} of {world}: final loss {last:.4f}, parameter checksum {checksum:08x}", flush=True)
    if dist.is_initialized():
        # The group's threads end with it, which is when nothing holds it any more; left to the interpreter's end, one
        # of them may still be letting go of a tensor.
        del parallel, optimizer, loss, total
        gc.collect()
        dist.destroy_process_group()
    if last >= first:
        sys.exit(f"rank {rank}: the loss did not fall ({first:.4f} to {last:.4f})")


if __name__ == "__main__":
    main()
