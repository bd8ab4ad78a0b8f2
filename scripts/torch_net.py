#!/usr/bin/python3
"""A PyTorch network from a Darknet cfg: the other side of scripts/bench-cpu.

    from torch_net import DarknetNet
    net = DarknetNet("yolo.cfg")          # random weights
    net.load_weights("yolo.weights")      # Darknet's file format, save_weights writes it
    heads = net(images)                   # images: float [batch, channels, height, width]

`heads` are the tensors that Darknet's loss layers ([yolo], [region], ...) read: raw
values, before their logistic. A net without a loss layer has one head, its output.
A construct that is not known here is an error that names it.

    torch_net.py CFG WEIGHTS --steps N --warmup W [--layout nchw|channels_last] [--threads T]
    torch_net.py CFG WEIGHTS --check DIR
    torch_net.py CFG WEIGHTS --prepare DIR

The first form times training steps (forward, backward from fixed head gradients, SGD update
with momentum and decay) on one preloaded batch, and prints one JSON line
{"seconds": [...]}. The second reads input.bin and delta_<i>.bin, the head
gradients, from DIR and compares heads and weight gradients with head_<i>.bin and
layer_<i>_dw.bin there (raw float32; NCHW and OIHW): one JSON line
{"heads": {"0": error}, "weights": {"0": error}}, errors relative in the L2 norm. The third
writes random WEIGHTS and random delta_<i>.bin into DIR, the same ones every time.

Batch-norm is PyTorch's own, as users write it: variance with 1/N and eps 1e-5 inside the
root, where Darknet's CPU code has 1/(N-1) and adds 1e-6 to the root. With N values per
channel the two differ by about 1/(2N) per layer; a comparison must allow for that.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

LOSSES = {"yolo", "region", "detection", "softmax", "cost", "logistic", "iseg"}
SHORT_NAMES = {"conv": "convolutional", "max": "maxpool", "avg": "avgpool", "conn": "connected",
               "soft": "softmax"}
ACTIVATIONS = {
    "linear": nn.Identity,
    "leaky": lambda: nn.LeakyReLU(0.1, inplace=True),
    "relu": lambda: nn.ReLU(inplace=True),
    "relie": lambda: nn.LeakyReLU(0.01, inplace=True),
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "hardtan": nn.Hardtanh,
}


class CfgError(Exception):
    pass


def read_cfg(path):
    """[(section name, {key: text})] in file order; read as Darknet does: blanks dropped."""
    sections = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        line = "".join(line.split())
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            name = line.strip("[]")
            sections.append((SHORT_NAMES.get(name, name), {}))
        elif "=" in line and sections:
            key, value = line.split("=", 1)
            sections[-1][1][key] = value
        else:
            raise CfgError(f"{path}:{number}: neither a section nor key=value: {line}")
    if not sections or sections[0][0] not in ("net", "network"):
        raise CfgError(f"{path}: the first section is not [net]")
    return sections


def activation(options, default):
    name = options.get("activation", default)
    if name not in ACTIVATIONS:
        raise CfgError(f"activation={name} is not known here, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


class Convolutional(nn.Module):
    def __init__(self, options, shape):
        super().__init__()
        filters, size = int(options.get("filters", 1)), int(options.get("size", 1))
        stride, groups = int(options.get("stride", 1)), int(options.get("groups", 1))
        padding = size // 2 if int(options.get("pad", 0)) else int(options.get("padding", 0))
        norm = int(options.get("batch_normalize", 0))
        self.weighted = nn.Conv2d(shape[0], filters, size, stride, padding, groups=groups,
                                  bias=not norm)
        self.norm = nn.BatchNorm2d(filters, eps=1e-5, momentum=0.01) if norm else None
        self.activation = activation(options, "logistic")

    def forward(self, x):
        x = self.weighted(x)
        return self.activation(self.norm(x) if self.norm else x)


class Connected(nn.Module):
    def __init__(self, options, shape):
        super().__init__()
        outputs, norm = int(options.get("output", 1)), int(options.get("batch_normalize", 0))
        self.weighted = nn.Linear(int(np.prod(shape)), outputs, bias=not norm)
        self.norm = nn.BatchNorm1d(outputs, eps=1e-5, momentum=0.01) if norm else None
        self.activation = activation(options, "logistic")

    def forward(self, x):
        x = self.weighted(x.flatten(1))
        return self.activation(self.norm(x) if self.norm else x)[..., None, None]


class Maxpool(nn.Module):
    """Darknet pads by `padding` in all (default size - 1), half of it, rounded down, before."""

    def __init__(self, options, _):
        super().__init__()
        self.stride = int(options.get("stride", 1))
        self.size = int(options.get("size", self.stride))
        self.padding = int(options.get("padding", self.size - 1))

    def before_after(self, length):
        outputs = (length + self.padding - self.size) // self.stride + 1
        before = self.padding // 2
        return before, (outputs - 1) * self.stride + self.size - length - before

    def forward(self, x):
        sides = (*self.before_after(x.shape[3]), *self.before_after(x.shape[2]))
        if any(sides):
            x = F.pad(x, sides, value=-float("inf"))
        return F.max_pool2d(x, self.size, self.stride)


class Upsample(nn.Module):
    def __init__(self, options, _):
        super().__init__()
        self.stride, self.scale = int(options.get("stride", 2)), float(options.get("scale", 1))

    def forward(self, x):
        x = F.interpolate(x, scale_factor=self.stride, mode="nearest")
        return x if self.scale == 1 else x * self.scale


class Reorg(nn.Module):
    """Darknet's reorg, whose element order is its own (a view of the memory, not of the image)."""

    def __init__(self, options, _):
        super().__init__()
        for key in ("flatten", "extra"):
            if int(options.get(key, 0)):
                raise CfgError(f"[reorg] {key}= is not known here")
        self.stride, self.reverse = int(options.get("stride", 1)), int(options.get("reverse", 0))

    def forward(self, x):
        s, (n, c, h, w) = self.stride, x.shape
        if self.reverse:
            x = x.reshape(n, s, s, c // s**2, h, w).permute(0, 3, 4, 1, 5, 2)
            return x.reshape(n, c // s**2, h * s, w * s)
        x = x.reshape(n, c // s**2, h, s, w, s).permute(0, 3, 5, 1, 2, 4)
        return x.reshape(n, c * s**2, h // s, w // s)


class Shortcut(nn.Module):
    """alpha * x + beta * the other layer, where both have elements; x elsewhere."""

    def __init__(self, options):
        super().__init__()
        self.alpha, self.beta = float(options.get("alpha", 1)), float(options.get("beta", 1))
        self.activation = activation(options, "linear")

    def forward(self, x, other):
        other = other if self.beta == 1 else self.beta * other
        if x.shape == other.shape:
            return self.activation((x if self.alpha == 1 else self.alpha * x) + other)
        channels = min(x.shape[1], other.shape[1])
        step_x = max(1, x.shape[3] // other.shape[3])
        step_other = max(1, other.shape[3] // x.shape[3])
        x = x.clone()
        common = x[:, :channels, ::step_x, ::step_x]
        common.mul_(self.alpha).add_(other[:, :channels, ::step_other, ::step_other])
        return self.activation(x)


SIMPLE = {
    "convolutional": Convolutional,
    "connected": Connected,
    "maxpool": Maxpool,
    "upsample": Upsample,
    "reorg": Reorg,
    "avgpool": lambda options, _: nn.AdaptiveAvgPool2d(1),
    "dropout": lambda options, _: nn.Dropout(float(options.get("probability", 0.5))),
    "activation": lambda options, _: activation(options, "linear"),
}


class DarknetNet(nn.Module):
    """self.layers[i] is Darknet's layer i; a loss layer is nn.Identity and adds a head."""

    def __init__(self, cfg):
        super().__init__()
        (_, self.options), *sections = read_cfg(cfg)
        self.cfg = cfg
        self.kinds = [kind for kind, _ in sections]
        self.sources = {}  # layer -> the earlier layers that a route or shortcut reads
        self.layers = nn.ModuleList()
        try:
            self.make_layers([options for _, options in sections])
        except (CfgError, KeyError) as error:
            index = len(self.layers)
            raise CfgError(f"{cfg}: layer {index} [{self.kinds[index]}]: {error}") from None
        self.kept = {source for sources in self.sources.values() for source in sources}

    def input_shape(self, batch=None):
        """(batch, channels, height, width) as the cfg says."""
        sizes = [int(self.options[key]) for key in ("channels", "height", "width")]
        per_pass = int(self.options.get("batch", 1)) // int(self.options.get("subdivisions", 1))
        return (batch or per_pass, *sizes)

    @torch.no_grad()
    def make_layers(self, sections):
        """Make the layers one by one; an image of zeros goes along and gives each its shapes."""
        x, outputs = torch.zeros(self.input_shape(1)), []
        for index, options in enumerate(sections):
            layer = self.make_layer(index, options, x.shape[1:]).eval()
            self.layers.append(layer)
            x = self.run_layer(index, x, outputs)
            outputs.append(x)
        self.train()

    def make_layer(self, index, options, shape):
        kind = self.kinds[index]
        if kind in LOSSES:
            return nn.Identity()
        if kind in ("route", "shortcut"):
            listed = options["layers" if kind == "route" else "from"].split(",")
            self.sources[index] = [int(i) if int(i) >= 0 else index + int(i) for i in listed if i]
            return Shortcut(options) if kind == "shortcut" else nn.Identity()
        if kind not in SIMPLE:
            raise CfgError("this type of layer is not known here")
        return SIMPLE[kind](options, shape)

    def run_layer(self, index, x, outputs):
        """Output of layer `index` from the output of the one before; outputs[i] is layer i's."""
        if index not in self.sources:
            return self.layers[index](x)
        parts = [outputs[source] for source in self.sources[index]]
        if self.kinds[index] == "shortcut":
            return self.layers[index](x, parts[0])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def forward(self, x):
        outputs, heads = {}, []
        for index, kind in enumerate(self.kinds):
            if kind in LOSSES:
                heads.append(x)
            x = self.run_layer(index, x, outputs)
            if index in self.kept:
                outputs[index] = x
        return heads or [x]

    def weighted(self):
        """[(Darknet's layer index, layer)] of the layers with weights, in file order."""
        return [(i, layer) for i, layer in enumerate(self.layers) if hasattr(layer, "weighted")]

    def weight_tensors(self):
        """The tensors of a .weights file, in its order."""
        for _, layer in self.weighted():
            norm, weight = layer.norm, layer.weighted.weight
            if norm is None:
                yield from (layer.weighted.bias, weight)
                continue
            statistics = (norm.weight, norm.running_mean, norm.running_var)
            if isinstance(layer, Convolutional):
                yield from (norm.bias, *statistics, weight)
            else:
                yield from (norm.bias, weight, *statistics)

    @torch.no_grad()
    def load_weights(self, path):
        raw = Path(path).read_bytes()
        major, minor = np.frombuffer(raw, "<i4", 2)
        if major > 1000 or minor > 1000:
            raise CfgError(f"{path}: transposed weights are not known here")
        start = 20 if major * 10 + minor >= 2 else 16
        values = torch.from_numpy(np.frombuffer(raw, "<f4", -1, start).copy())
        wanted = sum(tensor.numel() for tensor in self.weight_tensors())
        if wanted != len(values):
            raise CfgError(f"{path} holds {len(values)} values, {self.cfg} needs {wanted}")
        for tensor in self.weight_tensors():
            part, values = values[:tensor.numel()], values[tensor.numel():]
            tensor.copy_(part.view(tensor.shape))

    def save_weights(self, path):
        with open(path, "wb") as file:
            file.write(np.array([0, 2, 0], "<i4").tobytes() + np.array([0], "<u8").tobytes())
            for tensor in self.weight_tensors():
                file.write(tensor.detach().contiguous().numpy().astype("<f4").tobytes())


def time_steps(net, steps, warmup, layout):
    """Seconds of each of `steps` training steps."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(net.input_shape(), generator=generator)
    if layout == "channels_last":
        net = net.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    deltas = [torch.randn(head.shape, generator=generator) * 0.01 for head in net(images)]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6,
                                momentum=float(net.options.get("momentum", 0.9)),
                                weight_decay=float(net.options.get("decay", 0.0005)))
    seconds = []
    for _ in range(warmup + steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(net(images), deltas)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds[warmup:]


def prepare(net, weights, folder):
    """Random weights into the file and random head gradients into delta_<i>.bin."""
    net.save_weights(weights)
    with torch.no_grad():
        heads = net(torch.zeros(net.input_shape()))
    for i, head in enumerate(heads):
        (torch.randn(head.shape) * 0.01).numpy().tofile(folder / f"delta_{i}.bin")


def read_floats(path, shape):
    values = np.fromfile(path, "<f4")
    if values.size != np.prod(shape):
        raise CfgError(f"{path} holds {values.size} values, expected {tuple(shape)}")
    return torch.from_numpy(values).view(shape)


def relative_error(ours, theirs):
    return float((ours - theirs).norm() / ours.norm())


def check(net, folder):
    """Errors of the heads and weight gradients dumped in `folder` against this net's."""
    heads = net(read_floats(folder / "input.bin", net.input_shape()))
    deltas = [read_floats(folder / f"delta_{i}.bin", head.shape) for i, head in enumerate(heads)]
    torch.autograd.backward(heads, deltas)
    return {
        "heads": {i: relative_error(head.detach(), read_floats(folder / f"head_{i}.bin",
                                                               head.shape))
                  for i, head in enumerate(heads)},
        "weights": {i: relative_error(layer.weighted.weight.grad,
                                      read_floats(folder / f"layer_{i}_dw.bin",
                                                  layer.weighted.weight.shape))
                    for i, layer in net.weighted()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cfg")
    parser.add_argument("weights")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--layout", choices=["nchw", "channels_last"], default="nchw")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", type=Path, metavar="DIR")
    parser.add_argument("--prepare", type=Path, metavar="DIR")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    net = DarknetNet(args.cfg)
    if args.prepare:
        return prepare(net, args.weights, args.prepare)
    net.load_weights(args.weights)
    if args.check:
        print(json.dumps(check(net, args.check)))
    else:
        seconds = time_steps(net, args.steps, args.warmup, args.layout)
        print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    try:
        main()
    except CfgError as error:
        sys.exit(f"torch_net: {error}")
