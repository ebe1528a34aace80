"""One training run over several processes, as `torchrun` starts them: gloo on CPUs, nccl on GPUs.

Each process takes a part of the global batch's rows; DistributedDataParallel and `regimes.backward` make loss
and gradient those of all rows together, so that the run is the one that a single process would have made.
Alone, without torchrun, everything here is what one process does anyway.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ocean_train.wording import counted


def start() -> torch.device:
    """Join the processes that torchrun started, if it did; the device that this process computes on."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def finish() -> None:
    """Leave the processes, if there are several."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leads() -> bool:
    """Whether this process measures, saves and speaks for all."""
    return not dist.is_initialized() or dist.get_rank() == 0


def shared(model: nn.Module) -> nn.Module:
    """The model whose gradients are averaged over the processes."""
    return DistributedDataParallel(model) if dist.is_initialized() else model


def own_rows(rows: Tensor) -> Tensor:
    """This process's part of (B, ...); ValueError where a process would have none."""
    return rows[_part(len(rows))]


def all_rows(rows: Tensor, B: int) -> Tensor:
    """What `own_rows` divided, (B, ...), from the parts of all processes."""
    if not dist.is_initialized():
        return rows
    whole = rows.new_zeros(B, *rows.shape[1:])
    whole[_part(B)] = rows
    dist.all_reduce(whole)
    return whole


def _part(B: int) -> slice:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if world > B:
        raise ValueError(
            f"a batch of {counted(B, 'row')} is too small for {world} processes; give a larger --batch"
        )
    return slice(B * rank // world, B * (rank + 1) // world)


def any_says(flag: bool, device: torch.device) -> bool:
    """Whether any process says so: all of them must stop at the same step."""
    if not dist.is_initialized():
        return flag
    said = torch.tensor(float(flag), device=device)
    dist.all_reduce(said)
    return said.item() > 0
