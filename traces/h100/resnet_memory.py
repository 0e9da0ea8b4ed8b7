"""Peak memory of ResNet-50 steps on one GPU, by PyTorch: `python resnet_memory.py > resnet-memory.jsonl`, 25 s."""

import itertools
import json
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def normalised(enters: int, leaves: int, window: int, stride: int) -> nn.Sequential:
    """A convolution without bias, and its batch normalisation."""
    convolution = nn.Conv2d(enters, leaves, window, stride, window // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(leaves))


class Bottleneck(nn.Module):
    """Three convolutions, of which the second strides, and a shortcut."""

    def __init__(self, enters: int, width: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = normalised(enters, width, 1, 1), normalised(width, width, 3, stride)
        self.c = normalised(width, 4 * width, 1, 1)
        self.shortcut = normalised(enters, 4 * width, 1, stride) if stride > 1 or enters != 4 * width else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = self.c(self.relu(self.b(self.relu(self.a(x)))))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


def resnet_50() -> nn.Sequential:
    """The network."""
    layers: list[nn.Module] = [normalised(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    enters = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(enters, width, 1 if block else stride))
            enters = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


for dtype, batch in itertools.product((torch.float32, torch.bfloat16), (16, 32, 64, 128)):
    model = resnet_50().to("cuda", dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=dtype)
    classes = torch.randint(1000, (batch,), device="cuda")
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        loss = cross_entropy(model(images), classes)
        allocated = torch.cuda.memory_allocated()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    row = {
        "model": "resnet-50", "dtype": {"float32": "fp32", "bfloat16": "bf16"}[str(dtype)[6:]], "batch": batch,
        "before_backward_bytes": allocated, "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
    }  # fmt: skip
    sys.stdout.write(f"{json.dumps(row)}\n")
    del model, optimizer, images, classes, loss
    torch.cuda.empty_cache()
