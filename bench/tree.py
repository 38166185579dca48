"""Directories to send, the same ones every time: made of what project folders are made of."""

import random
from pathlib import Path

SOURCE = """
def train(model, batch, optimizer, device=None): loss = model(batch.to(device)) ; optimizer.step() ; return loss
for epoch in range(config.epochs): for index, batch in enumerate(loader): gradient = tensor.shape[layer.value]
class Dataset: if self.checkpoint is not None else import True False with evaluate(learning_rate=0.1) as result:
"""
TEXT_BYTES = 8 << 20


class Tree:
    """A directory of `files` files and about `total` bytes: half of the bytes text, half that nothing can compress."""

    def __init__(self, folder, files, total, seed=7):
        self.folder, self.files, self.total = Path(folder), files, total
        self.random = random.Random(seed)
        self.changes = 0

    def make(self):
        text = self._text()
        # Sizes as in real projects: most files are small, a few hold most of the bytes.
        weights = [self.random.lognormvariate(0, 2) for _ in range(self.files)]
        scale = self.total / sum(weights)
        for index, weight in enumerate(weights):
            size = int(weight * scale) + 1
            folder = self.folder / f"part{index % 97:02}" / f"group{index % 7}"
            folder.mkdir(parents=True, exist_ok=True)
            if index % 2:
                (folder / f"data{index}.bin").write_bytes(self.random.randbytes(size))
            else:
                start = self.random.randrange(len(text))
                content = text[start:] + text * (size // len(text) + 1)
                (folder / f"module{index}.py").write_bytes(content[:size])
        return self

    def _text(self):
        words = self.random.choices(SOURCE.split(), k=TEXT_BYTES // 5)
        lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]
        return "\n".join(lines).encode()

    def change_one_line(self):
        """What someone does between two runs: one line more in one source file."""
        self.changes += 1
        with (self.folder / "part00" / "group0" / "module0.py").open("a") as file:
            file.write(f"\nLEARNING_RATE = 0.{self.changes}\n")
