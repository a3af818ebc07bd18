# SPDX-License-Identifier: Apache-2.0
"""The GPT example's training in Python: PyTorch's own DistributedDataParallel, ZeroRedundancyOptimizer or fully_shard
over gloo. What scripts/verify_python holds the example against.

Model, batches and learning rates are written a second time here, from examples/gpt; everything else is PyTorch's.
"""
import argparse
import contextlib
import json
import math
import os
import tempfile

import safetensors.torch
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

PRESETS = {  # layers, width, heads, context, windows per batch, learning rate
    "tiny": (2, 32, 2, 32, 4, 2e-3),
    "small": (4, 128, 4, 64, 8, 2e-3),
}
ADAMW = {"betas": (0.9, 0.99), "weight_decay": 0.01}


# ---- The model ------------------------------------------------------------------------------------------------------

class Embeddings(nn.Module):
    def __init__(self, vocabulary, context, width):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens):
        return self.token(tokens) + self.position.weight.narrow(0, 0, tokens.size(1))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, time, width = x.shape
        packed = self.query_key_value(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, time, width))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.narrow(functional.gelu(self.widen(self.mlp_norm(x))))


class Head(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.logits(self.norm(x))


class Gpt(nn.Module):
    """Its parameters have the names and the order of the example's."""

    def __init__(self, vocabulary, layers, width, heads, context):
        super().__init__()
        self.embeddings = Embeddings(vocabulary, context, width)
        self.blocks = []  # a plain list: not part of any parameter's name
        for layer in range(layers):
            self.blocks.append(Block(width, heads))
            self.add_module(f"block{layer}", self.blocks[-1])
        self.head = Head(width, vocabulary)

    def forward(self, tokens):
        x = self.embeddings(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# ---- The data and the schedule --------------------------------------------------------------------------------------

def scatter(value):
    """The finisher of splitmix64."""
    mask = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
    return value ^ value >> 31


class Text:
    """The first nine tenths of a text as numbers of characters."""

    def __init__(self, path):
        with open(path, "rb") as file:
            characters = file.read().decode("utf-8")
        numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
        self.vocabulary = len(numbers)
        training = characters[:len(characters) - len(characters) // 10]
        self.numbers = torch.tensor([numbers[character] for character in training])

    def batch(self, seed, number, rank, rows, context):
        windows = []
        for row in range(rows):
            value = scatter(seed)
            for part in (number, rank, row):
                value = scatter(value ^ part)
            start = value % (len(self.numbers) - context)
            windows.append(self.numbers[start:start + context + 1])
        batch = torch.stack(windows)
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def learning_rate(peak, step, steps):
    """Rises over the first twentieth of the steps, then falls along half a cosine to a tenth."""
    warm_up, floor = steps // 20, 0.1 * peak
    if step < warm_up:
        return peak * (step + 1) / warm_up
    over = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    return floor + (peak - floor) * (0.5 * (1.0 + math.cos(math.pi * over)))


# ---- The ways of training -------------------------------------------------------------------------------------------

class Ddp:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)

    def accumulating(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()

    def weights(self):
        return dict(self.model.module.named_parameters())


class ZeroRedundancy(Ddp):
    def __init__(self, model):
        super().__init__(model)
        self.optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, **ADAMW)


class FullyShard:
    """A unit for the embeddings, for each block, and for the head."""

    def __init__(self, model):
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for unit in (model.embeddings, *model.blocks, model.head):
            fully_shard(unit, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)

    def accumulating(self, last):
        self.model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def weights(self):
        return {name: parameter.full_tensor() for name, parameter in self.model.named_parameters()}


WAYS = {"ddp": Ddp, "zero_redundancy": ZeroRedundancy, "fully_shard": FullyShard}


def train(options, rank):
    layers, width, heads, context, rows, peak = PRESETS[options.preset]
    text = Text(options.data)
    torch.manual_seed(options.seed)
    way = WAYS[options.way](Gpt(text.vocabulary, layers, width, heads, context))
    losses, clipped = [], 0
    for step in range(options.steps):
        way.optimizer.zero_grad()
        step_loss = 0.0
        for index in range(options.accumulate):
            tokens, following = text.batch(options.seed, step * options.accumulate + index, rank, rows, context)
            with way.accumulating(last=index + 1 == options.accumulate):
                loss = functional.cross_entropy(way.model(tokens).flatten(0, 1), following.flatten())
                (loss / options.accumulate).backward()
            step_loss += loss.item()
        losses.append(step_loss / options.accumulate)
        if options.clip > 0:
            norm = nn.utils.clip_grad_norm_(way.model.parameters(), options.clip)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            clipped += norm.item() > options.clip
        for group in way.optimizer.param_groups:
            group["lr"] = learning_rate(peak, step, options.steps)
        way.optimizer.step()
    return losses, clipped, way.weights()


def rank_main(rank, options, meeting):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(meeting, options.ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=options.ranks)
    losses, clipped, weights = train(options, rank)
    of_ranks = [None] * options.ranks
    torch.distributed.all_gather_object(of_ranks, losses)
    if rank == 0:
        safetensors.torch.save_file({name: value.detach().contiguous() for name, value in weights.items()},
                                    options.weights)
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"losses": [sum(of_step) / options.ranks for of_step in zip(*of_ranks)],
                       "steps_clipped": clipped,
                       "torch": torch.__version__,
                       "cpu_capability": torch.backends.cpu.get_cpu_capability()}, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    for name, default in (("ranks", 2), ("steps", 20), ("accumulate", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--clip", type=float, default=1.0)
    for name in ("data", "weights", "json"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_main, (options, os.path.join(folder, "meeting")), nprocs=options.ranks)


if __name__ == "__main__":
    main()
