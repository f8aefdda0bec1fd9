"""Networks of the zoo in PyTorch, with as many parameters: what torch_bench.py trains. torch_training.py uses their parts.

Images are 3 × 224 × 224 and have 1,000 classes; texts are 128 tokens.
"""

import torch
from torch import nn
from torch.nn import functional


def normalised(channels, out, kernel, stride=1, groups=1):
    """A convolution and its normalisation."""
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.one = normalised(channels, width, 1)
        self.two = normalised(width, width, 3, stride)
        self.three = normalised(width, out, 1)
        changes = stride != 1 or channels != out
        self.shortcut = normalised(channels, out, 1, stride) if changes else nn.Identity()

    def forward(self, x):
        y = functional.relu(self.one(x), inplace=True)
        y = functional.relu(self.two(y), inplace=True)
        return functional.relu(self.three(y) + self.shortcut(x), inplace=True)


def resnet(blocks):
    layers = [normalised(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class InvertedResidual(nn.Module):
    def __init__(self, channels, out, stride, expansion):
        super().__init__()
        hidden = channels * expansion
        layers = []
        if expansion != 1:
            layers += [normalised(channels, hidden, 1), nn.ReLU6(inplace=True)]
        layers += [normalised(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, normalised(hidden, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x):
        y = self.layers(x)
        return x + y if self.adds else y


# Expansion, channels, blocks, stride of the first.
MOBILENET = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def mobilenet_v2():
    layers = [normalised(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    channels = 32
    for expansion, out, count, stride in MOBILENET:
        for block in range(count):
            layers.append(InvertedResidual(channels, out, stride if block == 0 else 1, expansion))
            channels = out
    layers += [normalised(channels, 1280, 1), nn.ReLU6(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class TransformerBlock(nn.Module):
    """Of GPT-2: normalised first, all earlier tokens are seen. Without biases queries, keys and values have none."""

    def __init__(self, width, heads, bias=True):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width, bias=bias)
        self.projection = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.attention(self.before_attention(x)).split(width, dim=2)
        query, key, value = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, tokens, width))
        y = functional.gelu(self.wide(self.before_mlp(x)), approximate="tanh")
        return x + self.narrow(y)


class Gpt(nn.Module):
    """GPT-2 with its scores of tokens, whose table is that of the embedding."""

    def __init__(self, vocabulary, positions, width, heads, layers, bias=True):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.table, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        x = self.table(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.table.weight)


IMAGE = (3, 224, 224)

# By the zoo's names: how to make the network, the shape of a sample, and whether that is text.
NETWORKS = {
    "resnet50": (lambda: resnet([3, 4, 6, 3]), IMAGE, False),
    "resnet152": (lambda: resnet([3, 8, 36, 3]), IMAGE, False),
    "mobilenet_v2": (mobilenet_v2, IMAGE, False),
    "gpt2_lm": (lambda: Gpt(50257, 1024, 768, 12, 12), (128,), True),
}


def loss_of(scores, targets):
    """Cross-entropy over the last axis, of texts for each token."""
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


# Of AdamW, here and there. By PyTorch's 1e-8 a first step would make as much of a gradient of nearly nothing as of any other.
EPSILON = 1e-6


def optimizer_of(model, name, rate):
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate, eps=EPSILON, weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
