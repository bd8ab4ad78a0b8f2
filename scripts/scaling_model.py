"""The time of a step of several processes: a model, its fit to what scripts/bench-scaling measured, and what it
says of GPUs. It knows no program and no page; needs nothing but Python.

    step = compute + exchange + jitter + saving
    compute  = N * (images * per_image + per_process)        images of one process; all share the same cores
    exchange = latency * log2(N) + 2 (N - 1) / N * bytes / bandwidth
    jitter   = spread * compute * slowest(N)                 waiting for the slowest of N
    saving   = seconds of a save / iterations between two

Seconds and bytes; N processes. The factor 2 (N - 1) / N is what every process sends in an all-reduce.
"""

import math
import statistics

# ---- the terms ----


def volume(processes, size):
    """Bytes that each process sends to add up `size` bytes over all."""
    return 2 * (processes - 1) / processes * size


def slowest(processes):
    """By how many standard deviations the slowest of N normal times is late, on average (Blom 1958)."""
    if processes == 1:
        return 0.0
    return statistics.NormalDist().inv_cdf((processes - .375) / (processes + .25))


def compute_seconds(model, processes, images):
    return processes * (images * model["per_image"] + model["per_process"])


def exchange_seconds(model, processes, size):
    return model["latency"] * math.log2(processes) + volume(processes, size) * model["per_byte"]


def step_seconds(model, processes, images, size):
    """Without saving."""
    compute = compute_seconds(model, processes, images)
    return compute * (1 + model["spread"] * slowest(processes)) + exchange_seconds(model, processes, size)


# ---- the fit ----


def least_squares(rows):
    """(a, b), both at least 0, for which a * x + b * y is nearest to z of all rows (x, y, z), errors relative."""
    scaled = [(x / z, y / z) for x, y, z in rows]
    xx, xy, yy = (sum(row[i] * row[j] for row in scaled) for i, j in ((0, 0), (0, 1), (1, 1)))
    x1, y1 = (sum(row[i] for row in scaled) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant > 1e-9 * xx * yy:
        a, b = (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant
        if a >= 0 and b >= 0:
            return a, b
    # One of the two does not show: the better of the fits by the other alone.
    alone = [(x1 / xx if xx else 0, 0), (0, y1 / yy if yy else 0)]
    return min(alone, key=lambda ab: sum((1 - ab[0] * x - ab[1] * y) ** 2 for x, y in scaled))


def fit(runs):
    """The model's parameters. A run is {"processes", "images" (of one process), "bytes" (of gradients), "compute",
    "wait", "reduce"}; compute None: of a net that was there for its exchange only."""
    whole = [run for run in runs if run["compute"] is not None]
    several = [run for run in runs if run["processes"] > 1]
    per_image, per_process = least_squares(
        [(run["processes"] * run["images"], run["processes"], run["compute"]) for run in whole])
    latency, per_byte = least_squares(
        [(math.log2(run["processes"]), volume(run["processes"], run["bytes"]), run["reduce"]) for run in several])
    waits = [(run["compute"] * slowest(run["processes"]), run["wait"]) for run in whole if run["processes"] > 1]
    spread = sum(x * wait for x, wait in waits) / sum(x * x for x, _ in waits)
    return {"per_image": per_image, "per_process": per_process, "latency": latency, "per_byte": per_byte,
            "spread": spread}


# ---- GPUs ----

# Each with where it is from. None was measured here.
PER_NODE = 8
NVLINK = 370e9
PORT = 46e9
LATENCY = {"base": 8.4e-6, "nvlink": 4e-6, "network": 14e-6}
VOTE = 512
JITTER = .01
BUCKET, LAST_BUCKET = 25 * 2**20, 1 / 16
BACKWARD = 2 / 3
SOURCES = {
    "inside a node": "NVLink, 370 GB/s of an all-reduce's volume: what users and a maintainer report of NCCL's ring on 8 H100 "
                     "SXM in the issues of NVIDIA/nccl and nccl-tests (365 to 370); H200 has the same NVLink. NVLink SHARP "
                     "reaches 475 on 8 H200 (reported there too), but at 4 GiB, far more than a step's gradients",
    "between nodes": "46 GB/s a port of 400 Gb/s, the lower end of what a maintainer of nccl-tests tells a user to expect (46 "
                     "to 48). The slower counts: NVLink, or all ports of a node",
    "latency": "8.4 us, and twice 4 us for each further GPU of a node and 14 us for each doubling of the nodes: tree, protocol "
               "Simple, in NCCL's own cost model (its source file tuning.cc)",
    "vote": "that latency once more, and 512 bytes from every process over the ports; with overlap beside the last bucket",
    "jitter": "1 % of a step is the standard deviation between GPUs: assumed",
    "overlap": "as the program does it (amp_bucket_mb): rolling statistics first, buckets of 25 MiB of FP32, a last one of 1/16 of "
               "that at most; backward takes two thirds of a step, a layer's share of it is by its FLOPs and bytes on an H200's "
               "data sheet; that adding up takes nothing from what computes beside it is assumed",
    "compute": "the step of one H200 is itself predicted, by a model of this program's kernels (FLOPs, bytes, launches) that met "
               "published trainings on A100, RTX 3090 and H100 within 20 %; it is probably 18 % too fast, which makes these "
               "efficiencies too low rather than too high",
}
# (cfg of Darknet's, images of one GPU): images/s of one H200, as that model predicts.
H200 = {("yolov3", 16): 1284, ("yolov3", 64): 1479, ("yolov3-tiny", 16): 10546, ("yolov3-tiny", 64): 12745}
GPUS = (8, 64, 1024)


def all_reduce_seconds(gpus, size, ports, slower=1):
    """slower: by how much the bandwidths are divided."""
    nodes = max(gpus // PER_NODE, 1)
    latency = LATENCY["base"] + 2 * ((min(gpus, PER_NODE) - 1) * LATENCY["nvlink"]
                                     + math.log2(nodes) * LATENCY["network"])
    bandwidth = NVLINK if nodes == 1 else min(NVLINK, ports * PORT)
    return latency + volume(gpus, size) * slower / bandwidth


def gather_seconds(gpus, size, ports):
    """`size` bytes of every process for all, through the network's ports."""
    return all_reduce_seconds(gpus, 0, ports) + (gpus - 1) * size * PER_NODE / (ports * PORT)


def exposed_seconds(layers, backward, reduce, bucket=BUCKET):
    """How long buckets of gradients are still added up when the backward pass is over. layers: (bytes of gradients,
    share of the backward pass), first to last; reduce(bytes): seconds of a bucket."""
    clock, waiting, left = 0.0, 0.0, sum(size for size, _ in layers)
    ready = reduce(0)  # the rolling statistics
    for size, share in reversed(layers):
        clock += share * backward
        waiting += size
        left -= size
        is_last = left <= bucket * LAST_BUCKET
        if left and (waiting >= bucket or is_last):
            ready, waiting = max(ready, clock) + reduce(waiting), 0.0
        if is_last:
            break
    return max(ready, backward) + reduce(waiting + left) - backward


def efficiency(step, gpus, layers, ports, overlap, slower=1, bits=32):
    """Images/s of `gpus` GPUs over as many times those of one; step: seconds of one GPU's. layers: in FP32; bits: on the
    wire."""
    def reduce(size):
        return all_reduce_seconds(gpus, size * bits / 32, ports, slower)

    vote = gather_seconds(gpus, VOTE, ports)
    exchange = (max(exposed_seconds(layers, step * BACKWARD, reduce), vote) if overlap
                else reduce(sum(size for size, _ in layers)) + vote)
    return step / (step * (1 + JITTER * slowest(gpus)) + exchange)


def layers_of(plan, ceilings):
    """(bytes of FP32 gradients, share of the backward pass) of the layers in `amp plan --json`; ceilings: the device's
    (FLOP/s, bytes/s). A value of FP16 is written once and read three times in backward (bench_lib.training_bytes)."""
    flops, bandwidth = ceilings
    sizes, floors = [], []
    for layer in plan["layers"]:
        width, height, channels = layer["output"]
        weights = layer["flop"] / (2 * width * height)
        sizes.append(4 * (weights + 2 * channels * (weights > 0)))
        floors.append(2 * layer["flop"] / flops + (4 * 2 * layer["outputs"] / bandwidth if weights else 0))
    return [(size, floor / sum(floors)) for size, floor in zip(sizes, floors)]


def predict(layers_of_model):
    """A row for each model, images of a GPU, ports, bits of a gradient on the wire and overlap; layers_of_model: {model:
    its layers}."""
    rows = []
    for (model, images), rate in H200.items():
        for ports in (8, 1):
            for bits, overlap in ((32, False), (16, False), (32, True), (16, True)):
                layers = layers_of_model[model]
                found = [[efficiency(images / rate, gpus, layers, ports, overlap, slower, bits) for slower in (1, 2)]
                         for gpus in GPUS]
                rows.append({"model": model, "images": images, "ports": ports, "bits": bits, "overlap": overlap,
                             "gradient_bytes": sum(size for size, _ in layers) * bits / 32, "step_seconds": images / rate,
                             "efficiency": {str(gpus): values[0] for gpus, values in zip(GPUS, found)},
                             "at_half_bandwidth": {str(gpus): values[1] for gpus, values in zip(GPUS, found)}})
    return rows
