#!/usr/bin/python3
"""A PyTorch network from a Darknet cfg: the other side of scripts/bench-cpu and scripts/bench-gpu.

    from torch_net import DarknetNet
    net = DarknetNet("yolo.cfg")          # random weights
    net.load_weights("yolo.weights")      # Darknet's file format, save_weights writes it
    heads = net(images)                   # images: float [batch, channels, height, width]

`heads` are the tensors that Darknet's loss layers ([yolo], [region], ...) read: raw
values, before their logistic. A net without a loss layer has one head, its output.
A construct that is not known here is an error that names it.

    torch_net.py CFG WEIGHTS --steps N --warmup W [--layout nchw|channels_last] [--threads T]
                 [--device cuda] [--amp fp16|bf16] [--compile MODE | --graphs] [--group N] [--serve] [--ddp]
    torch_net.py CFG WEIGHTS --check DIR.. [--device cuda] [--amp fp16|bf16]
    torch_net.py CFG WEIGHTS --prepare DIR
    torch_net.py CFG WEIGHTS --single DIR
    torch_net.py --check-single DIR.. [--amp fp16|bf16]

The first form times training steps (forward, backward from fixed head gradients, SGD update
with momentum and decay) on one preloaded batch, and prints one JSON line about itself and one
{"seconds": [...]}; on a GPU each number is the mean of --group steps with one wait for the device
at their end. --amp: torch.autocast, and for fp16 a GradScaler; heads are turned to FP32, as a loss
would. --compile: torch.compile with that mode. --graphs: the whole step, the update too, replayed as
one CUDA graph. --serve: as tests/bench/bench_step.c has it, for programs that take turns on a device.
--ddp: one of the processes of torch.distributed.run, which train together by DistributedDataParallel over
Gloo, each with CFG's batch; rank 0 alone answers.
On a GPU the first line has memory_bytes, the most device memory of --group steps after the warm-up, and
memory_from_start_bytes, that of the warm-up, in which cuDNN's engines are timed; with --compile also
cudagraph_skips, compiled graphs that run without CUDA graphs.

The second reads input.bin and delta_<i>.bin, the head gradients, from the first DIR and compares
head_<i>.bin and layer_<i>_dw.bin in each (raw float32; NCHW and OIHW) with heads and weight gradients in
FP64: a JSON line for each {"heads": {"0": error}, "weights": {"0": error}, "fp32": {"heads": ..,
"weights": ..}}, errors relative in the L2 norm; "fp32" are those of PyTorch's own FP32, with --amp "amp"
those of its mixed precision. FP64 takes twice FP32's memory, and on cards that are not made for it 32 to
64 times its time: seconds for yolov3 416 with 4 images. The third writes random WEIGHTS and random
delta_<i>.bin into DIR, the same ones every time.

--single makes of every kind of convolution in the network one of its own, in DIR/<layer>: net.cfg, init.weights,
and as input.bin and delta_0.bin what that layer reads in FP64 and the gradient of its output, from DIR's own
input.bin and delta_<i>.bin. In front of it is a 1x1 convolution that changes nothing: its weight gradient shows the
gradient of the layer's input. --check-single compares each, as --check does.

Batch-norm is PyTorch's own, as users write it: variance with 1/N and eps 1e-5 inside the
root. Darknet's CPU code has 1/(N-1) and adds 1e-6 to the root, AlexeyAB's (--rules fork) has
1/(N-1) too: with N values per channel that differs by about 1/(2N) per layer. On a CPU what is
dumped is checked by their rules.
"""

import argparse
import contextlib
import inspect
import json
import os
import sys
import threading
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
    "mish": nn.Mish,
    "swish": nn.SiLU,
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


class BatchNorm(nn.BatchNorm2d):
    rules = None  # None: PyTorch's; stock or fork: those of that Darknet's code for the CPU

    def forward(self, x):
        if not BatchNorm.rules:
            return super().forward(x)
        variance, mean = torch.var_mean(x, (0, 2, 3), keepdim=True)
        root = (variance + 1e-5).sqrt() if BatchNorm.rules == "fork" else variance.sqrt() + 1e-6
        scale, bias = (values.view(1, -1, 1, 1) for values in (self.weight, self.bias))
        return (x - mean) / root * scale + bias


class Convolutional(nn.Module):
    def __init__(self, options, shape):
        super().__init__()
        filters, size = int(options.get("filters", 1)), int(options.get("size", 1))
        stride, groups = int(options.get("stride", 1)), int(options.get("groups", 1))
        padding = size // 2 if int(options.get("pad", 0)) else int(options.get("padding", 0))
        norm = int(options.get("batch_normalize", 0))
        self.weighted = nn.Conv2d(shape[0], filters, size, stride, padding, groups=groups,
                                  bias=not norm)
        self.norm = BatchNorm(filters, eps=1e-5, momentum=0.01) if norm else None
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


class Route(nn.Module):
    """The channels of all sources; with groups, one group of each one's."""

    def __init__(self, options):
        super().__init__()
        self.groups, self.group = int(options.get("groups", 1)), int(options.get("group_id", 0))

    def forward(self, *parts):
        if self.groups > 1:
            parts = [part.chunk(self.groups, 1)[self.group] for part in parts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


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
        (_, self.options), *self.sections = read_cfg(cfg)
        self.cfg = cfg
        self.kinds = [kind for kind, _ in self.sections]
        self.sources = {}  # layer -> the earlier layers that a route or shortcut reads
        self.layers = nn.ModuleList()
        self.head_shapes = []  # (channels, height, width)
        try:
            self.make_layers([options for _, options in self.sections])
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
            if self.kinds[index] in LOSSES:
                self.head_shapes.append(x.shape[1:])
            x = self.run_layer(index, x, outputs)
            outputs.append(x)
        self.head_shapes = self.head_shapes or [x.shape[1:]]
        self.train()

    def make_layer(self, index, options, shape):
        kind = self.kinds[index]
        if kind in LOSSES:
            return nn.Identity()
        if kind in ("route", "shortcut"):
            listed = options["layers" if kind == "route" else "from"].split(",")
            self.sources[index] = [int(i) if int(i) >= 0 else index + int(i) for i in listed if i]
            return Shortcut(options) if kind == "shortcut" else Route(options)
        if kind not in SIMPLE:
            raise CfgError("this type of layer is not known here")
        return SIMPLE[kind](options, shape)

    def run_layer(self, index, x, outputs):
        """Output of layer `index` from the output of the one before; outputs[i] is layer i's."""
        if index not in self.sources:
            return self.layers[index](x)
        parts = [outputs[source] for source in self.sources[index]]
        return self.layers[index](x, parts[0]) if self.kinds[index] == "shortcut" else self.layers[index](*parts)

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


def new_scaler(device, enabled):
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # PyTorch before 2.3


def autocast(device, amp):
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=amp is not None)


def captured(run, before):
    """`run`, recorded as a CUDA graph; what it allocates stays at its address."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            before()
            run()
    torch.cuda.current_stream().wait_stream(stream)
    before()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # MemoryWatch asks meanwhile
        run()

    def replay(_used=run):  # the graph reads what run() holds: images, gradients of heads, momentum
        graph.replay()

    return replay


def training_step(net, args):
    """A function that does one training step on a batch that lies on the device."""
    device = torch.device(args.device)
    layout = {"memory_format": torch.channels_last} if args.layout == "channels_last" else {}
    generator = torch.Generator().manual_seed(1)
    net = net.to(device, **layout)
    images = torch.rand(net.input_shape(), generator=generator).to(device, **layout)
    deltas = [(torch.randn(len(images), *shape, generator=generator) * 0.01).to(device, **layout)
              for shape in net.head_shapes]  # as the heads lie, so that nothing is turned around
    fused = device.type == "cuda" and "fused" in inspect.signature(torch.optim.SGD).parameters
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6,
                                momentum=float(net.options.get("momentum", 0.9)),
                                weight_decay=float(net.options.get("decay", 0.0005)),
                                **({"fused": True} if fused else {}))
    scaler = new_scaler(device, args.amp == "fp16")
    if args.ddp:
        net = nn.parallel.DistributedDataParallel(net)
    forward = torch.compile(net, mode=args.compile) if args.compile else net

    def forget_gradients():
        optimizer.zero_grad(set_to_none=True)

    def work():
        with autocast(device, args.amp):
            heads = forward(images)
        torch.autograd.backward([head.float() for head in heads], scaler.scale(deltas))
        scaler.step(optimizer)  # a fused optimizer and the scaler wait for nothing
        scaler.update()

    if args.graphs:  # a replay overwrites the gradients
        return captured(work, forget_gradients)

    def step():
        if args.compile:
            torch.compiler.cudagraph_mark_step_begin()
        forget_gradients()
        work()

    return step


class MemoryWatch:
    """The most device memory in use inside `with`, less what was when this was made; of other programs'
    use only changes count."""

    def __init__(self):
        self.before = self.peak = self.used()
        self.running = True
        self.thread = threading.Thread(target=self.watch, daemon=True)  # an error ends the program

    @staticmethod
    def used():
        free, total = torch.cuda.mem_get_info()
        return total - free

    def watch(self):
        while self.running:
            self.peak = max(self.peak, self.used())
            time.sleep(0.02)

    def __enter__(self):
        self.peak = self.used()
        self.thread.start()

    def __exit__(self, *_):
        self.running = False
        self.thread.join()
        self.peak = max(self.peak, self.used())

    def bytes(self):
        return self.peak - self.before


def wait_for(args):
    if args.device != "cpu":
        torch.cuda.synchronize()


def run_steps(step, count, args):
    for _ in range(count):
        step()
    wait_for(args)


def time_steps(step, args, limit=0):
    """Seconds of each of --steps steps; with a limit, of steps for so many seconds."""
    seconds, begin = [], time.perf_counter()
    while True:
        start = time.perf_counter()
        run_steps(step, args.group, args)
        seconds.append((time.perf_counter() - start) / args.group)
        passed = time.perf_counter() - begin
        if passed >= limit if limit else len(seconds) * args.group >= args.steps:
            return seconds


def cudagraph_skips():
    """How many compiled graphs run without CUDA graphs; None where this PyTorch does not count them."""
    try:
        from torch._dynamo.utils import counters  # no public way
        return counters["inductor"]["cudagraph_skips"]
    except (ImportError, AttributeError, KeyError, TypeError):
        return None


def answer(value):
    if os.environ.get("RANK", "0") == "0":  # torch.distributed.run sets it
        print(json.dumps(value), flush=True)


def bench(args):
    if args.serve and not sys.stdin.readline():
        return
    use_device(args)
    on_device = args.device != "cpu"
    timing = MemoryWatch() if on_device else contextlib.nullcontext()
    training = MemoryWatch() if on_device else None
    net = DarknetNet(args.cfg)
    net.load_weights(args.weights)
    with timing:
        step = training_step(net, args)
        run_steps(step, args.warmup, args)
    about = {"torch": torch.__version__, "batch": net.input_shape()[0]}
    if on_device:
        torch.cuda.empty_cache()  # of what only the timing of cuDNN's engines took
        with training:
            run_steps(step, args.group, args)
        about.update(memory_bytes=training.bytes(), memory_from_start_bytes=timing.bytes(),
                     device={"name": torch.cuda.get_device_name(),
                             "cudnn": torch.backends.cudnn.version()})
    if args.compile:
        about["cudagraph_skips"] = cudagraph_skips()
    answer(about)
    if not args.serve:
        answer({"seconds": time_steps(step, args)})
        return
    for line in sys.stdin:
        run_steps(step, args.group, args)
        answer({"seconds": time_steps(step, args, float(line))})


def prepare(net, weights, folder):
    """Random weights into the file and random head gradients into delta_<i>.bin."""
    net.save_weights(weights)
    for i, shape in enumerate(net.head_shapes):
        delta = torch.randn(net.input_shape()[0], *shape) * 0.01
        delta.numpy().tofile(folder / f"delta_{i}.bin")


def read_floats(path, shape):
    values = np.fromfile(path, "<f4")
    if values.size != np.prod(shape):
        raise CfgError(f"{path} holds {values.size} values, expected {tuple(shape)}")
    return torch.from_numpy(values).view(shape)


def relative_error(reference, found):
    found = found.to(reference)
    return float((found - reference).norm() / reference.norm())


def results(net, images, deltas, device, amp=None, scale=1):
    """(heads, {layer: gradient of its weights}) of one pass, in the type of the head gradients."""
    net.zero_grad(set_to_none=True)
    with autocast(device, amp):
        heads = [head.to(delta.dtype) for head, delta in zip(net(images), deltas)]
    torch.autograd.backward(heads, [delta * scale for delta in deltas])
    return ([head.detach() for head in heads],
            {i: layer.weighted.weight.grad / scale for i, layer in net.weighted()})


def finite_results(net, images, deltas, device, amp):
    """As `results`, with the largest loss scale of 2^16, 2^12 .. 1 whose gradients are all finite."""
    for power in range(16, -1, -4):
        heads, gradients = results(net, images, deltas, device, amp, 2**power)
        if all(torch.isfinite(gradient).all() for gradient in gradients.values()):
            break
    return heads, gradients


def exact_results(net, images, deltas, device, rules=None):
    """As `results`, in FP64. The net has its weights back after it."""
    BatchNorm.rules = rules
    heads, gradients = results(net.double(), images.double(), [delta.double() for delta in deltas],
                               device)
    net.float()  # batch-norm's rolling statistics, which training does not read, have moved
    BatchNorm.rules = None
    return heads, gradients


def errors(reference, found):
    """Relative errors of (heads, gradients); of a gradient that was not found, none."""
    return {"heads": {i: relative_error(*pair) for i, pair in enumerate(zip(reference[0], found[0]))},
            "weights": {i: relative_error(reference[1][i], gradient)
                        for i, gradient in found[1].items()}}


def read_results(folder, reference):
    """The heads and weight gradients dumped in `folder`."""
    return ([read_floats(folder / f"head_{i}.bin", head.shape) for i, head in enumerate(reference[0])],
            {i: read_floats(folder / f"layer_{i}_dw.bin", gradient.shape)
             for i, gradient in reference[1].items() if (folder / f"layer_{i}_dw.bin").exists()})


def check(net, folders, device, amp, rules):
    """Prints for every folder the errors of what is dumped there against this net's in FP64, and those
    of this net's own in FP32 and with `amp`. All have the first one's images and head gradients."""
    net = net.to(device)
    images = read_floats(folders[0] / "input.bin", net.input_shape()).to(device)
    deltas = [read_floats(folders[0] / f"delta_{i}.bin", (len(images), *shape)).to(device)
              for i, shape in enumerate(net.head_shapes)]
    reference = exact_results(net, images, deltas, device)
    own = {"fp32": errors(reference, results(net, images, deltas, device))}
    if amp:
        own["amp"] = errors(reference, finite_results(net, images, deltas, device, amp))
    if device.type == "cpu":
        reference = exact_results(net, images, deltas, device, rules)
    for folder in folders:
        answer({**errors(reference, read_results(folder, reference)), **own})


def true_tensors(net, images, deltas):
    """{convolution: (what it reads, the gradient of its output)} of one pass in FP64."""
    net.double()
    x, outputs, heads, read = images.double(), [], [], {}
    for index, kind in enumerate(net.kinds):
        if kind in LOSSES:
            heads.append(x)
        if kind == "convolutional":
            read[index] = x
        x = net.run_layer(index, x, outputs)
        if kind == "convolutional":
            x.retain_grad()
        outputs.append(x)
    torch.autograd.backward(heads or [x], [delta.double() for delta in deltas])
    net.float()
    return {index: (x.detach(), outputs[index].grad) for index, x in read.items()}


SINGLE = """[net]
batch={}
channels={}
height={}
width={}
[convolutional]
filters={}
size=1
activation=linear
[convolutional]
{}
[yolo]
num=1
mask=0
anchors=1,1
classes={}
"""


def write_single(folder, layer, options, read, delta):
    batch, channels, height, width = read.shape
    folder.mkdir(exist_ok=True)
    kept = "\n".join(f"{key}={value}" for key, value in options.items() if key != "stopbackward")
    classes = delta.shape[1] - 5  # a head of one box a place takes any number of channels
    (folder / "net.cfg").write_text(SINGLE.format(batch, channels, height, width, channels, kept, classes))
    single = DarknetNet(folder / "net.cfg")
    before = single.layers[0].weighted
    with torch.no_grad():
        before.bias.zero_()
        before.weight.copy_(torch.eye(channels)[..., None, None])
    single.layers[1].load_state_dict(layer.state_dict())
    single.save_weights(folder / "init.weights")
    read.float().numpy().tofile(folder / "input.bin")
    delta.float().numpy().tofile(folder / "delta_0.bin")


def make_single(net, folder):
    """A folder for every kind of convolution but those of images: only these have no gradient of their input."""
    images = read_floats(folder / "input.bin", net.input_shape())
    deltas = [read_floats(folder / f"delta_{i}.bin", (len(images), *shape)) for i, shape in enumerate(net.head_shapes)]
    tensors = true_tensors(net, images, deltas)
    known = set()
    for index, (read, delta) in tensors.items():
        options = net.sections[index][1]
        kind = (read.shape, *sorted(options.items()))
        if index and kind not in known:
            known.add(kind)
            write_single(folder / str(index), net.layers[index], options, read, delta)


def use_device(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.device == "cpu":
        return
    if not torch.cuda.is_available():
        raise CfgError(f"--device {args.device}: PyTorch {torch.__version__} finds no GPU here")
    torch.backends.cudnn.benchmark = True
    if args.all_engines:
        torch.backends.cudnn.benchmark_limit = 0
    if args.check:  # FP32 is FP32, in FP64 and for one pass nothing is worth to be timed
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cfg", nargs="?")
    parser.add_argument("weights", nargs="?")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--layout", choices=["nchw", "channels_last"], default="nchw")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--amp", choices=["fp16", "bf16"])
    parser.add_argument("--compile", metavar="MODE",
                        help="default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs")
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--group", type=int, default=1)
    parser.add_argument("--all-engines", action="store_true",
                        help="cuDNN's timing takes all engines, not the first ten")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--check", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--rules", choices=["stock", "fork"], default="stock")
    parser.add_argument("--prepare", type=Path, metavar="DIR")
    parser.add_argument("--single", type=Path, metavar="DIR")
    parser.add_argument("--check-single", type=Path, nargs="+", metavar="DIR")
    args = parser.parse_args()
    if not args.weights and not args.check_single:
        parser.error("CFG and WEIGHTS are missing")
    if args.device == "cpu" and args.graphs:
        raise CfgError("--graphs needs --device cuda")
    if args.device == "cpu" and args.amp == "fp16" and not hasattr(torch.amp, "GradScaler"):
        raise CfgError(f"PyTorch {torch.__version__} has no float16 autocast on a CPU, 2.3 has; --amp bf16, or none")
    if args.ddp and (args.device != "cpu" or args.check or args.prepare):
        raise CfgError("--ddp is for timing on the CPU: Gloo carries the gradients")
    if args.graphs and args.compile:
        raise CfgError("--graphs and --compile exclude each other")

    if args.ddp:
        torch.distributed.init_process_group("gloo")
        bench(args)
        return torch.distributed.destroy_process_group()
    if not any((args.check, args.prepare, args.single, args.check_single)):
        return bench(args)
    use_device(args)
    for folder in args.check_single or []:
        net = DarknetNet(folder / "net.cfg")
        net.load_weights(folder / "init.weights")
        check(net, [folder], torch.device(args.device), args.amp, args.rules)
    if args.check_single:
        return None
    net = DarknetNet(args.cfg)
    if args.prepare:
        return prepare(net, args.weights, args.prepare)
    net.load_weights(args.weights)
    if args.single:
        return make_single(net, args.single)
    return check(net, args.check, torch.device(args.device), args.amp, args.rules)


if __name__ == "__main__":
    try:
        main()
    except CfgError as error:
        sys.exit(f"torch_net: {error}")
