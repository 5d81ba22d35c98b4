"""One rank of models sharded in each way, on the CPU; prints what `facts.describe` tells."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

from topsmon.training.recorder import facts


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.table(x))


def tell(way: str) -> dict[str, object]:
    torch.manual_seed(0)
    model: nn.Module = Net()
    if way == "fully_shard":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        held = sum(item.to_local().numel() for item in model.parameters())
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            use_orig_params=way == "fsdp-original-parameters",
            device_id=torch.device("cpu"),
        )
        held = sum(item.numel() for item in model.parameters())
    return {**facts.describe(model), "held": held}


def main(rank: int, store: str, ways: list[str]) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    print(json.dumps({way: tell(way) for way in ways}))
    dist.destroy_process_group()


main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
