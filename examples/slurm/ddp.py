"""Fits a line with DistributedDataParallel; every process must end with the same parameters.

Ranks come from torchrun where that starts it, and from Slurm's variables under a plain srun.
"""

import os
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def place():
    """The rank, how many there are, and the number on this node."""
    if "RANK" in os.environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    else:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    return [int(os.environ[name]) for name in names]


def main():
    rank, world, local = place()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local % torch.cuda.device_count()) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = torch.arange(4.0, device=device)
    for _ in range(100):
        x = torch.randn(32, 4, device=device)
        loss = ((model(x).squeeze(1) - x @ truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = torch.cat([it.detach().flatten().cpu() for it in model.parameters()])
    checksum = zlib.crc32(weights.numpy().tobytes())
    print(f"rank {rank} of {world}: loss {loss.item():.4f} parameters {checksum:08x}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
