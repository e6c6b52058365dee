"""Loads the newest checkpoint of each run below a directory, as its framework would to resume.

    resume.py DIR

Prints what was loaded, a line each; fails where one cannot be. Run by the interpreter that has
torch.
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from transformers.trainer_utils import get_last_checkpoint


def trainer(run: str) -> str | None:
    """The Trainer takes the highest `checkpoint-N`."""
    newest = get_last_checkpoint(run)
    if newest is None:
        return None
    with open(os.path.join(newest, "trainer_state.json")) as file:
        step = json.load(file)["global_step"]
    assert newest.endswith(f"checkpoint-{step}"), (newest, step)
    assert load_file(os.path.join(newest, "model.safetensors"))
    assert torch.load(os.path.join(newest, "optimizer.pt"), weights_only=False)["state"]
    return newest


def accelerate(run: str) -> str | None:
    """Scripts take the highest `checkpoint_N`."""
    steps = [int(name.rpartition("_")[2]) for name in os.listdir(run)]
    if not steps:
        return None
    newest = os.path.join(run, f"checkpoint_{max(steps)}")
    assert load_file(os.path.join(newest, "model.safetensors"))
    assert torch.load(os.path.join(newest, "optimizer.bin"), weights_only=False)["state"]
    return newest


def sharded(run: str) -> str | None:
    """The highest `step_N` with a `.metadata`; every shard that it names is read."""
    steps = [int(name.rpartition("_")[2]) for name in os.listdir(run)]
    if not steps:
        return None
    newest = os.path.join(run, f"step_{max(steps)}")
    metadata = FileSystemReader(newest).read_metadata()
    for where in metadata.storage_data.values():
        with open(os.path.join(newest, where.relative_path), "rb") as file:
            file.seek(where.offset)
            assert len(file.read(where.length)) == where.length
    return newest


LOADERS = {"single": trainer, "checkpoints": accelerate, "plain": sharded}


def main() -> None:
    """Load all there is."""
    for folder, directories, _ in os.walk(sys.argv[1]):
        for name in directories:
            if name in LOADERS:
                print("loaded", LOADERS[name](os.path.join(folder, name)))


if __name__ == "__main__":
    main()
