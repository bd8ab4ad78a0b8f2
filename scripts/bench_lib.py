"""What scripts/bench-cpu, bench-gpu, bench-loader and gpu-check.sh share: programs and their
answers, cfgs, ratios, rooflines, text of reports. Nothing here needs PyTorch or a GPU.
"""

import argparse
import glob
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where results go: into a checkout, or, of what is installed, where it is called.
OUT = (ROOT if (ROOT / "CMakeLists.txt").exists() else Path()) / "out"


class BenchError(Exception):
    pass


# ---- programs ----


def run(command, environment=None, hear=None, **options):
    """Output of a command that must succeed; hear is given what it said on stderr."""
    command = [str(part) for part in command]
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    if hear:
        hear(done.stderr)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)}: exit status {done.returncode}\n"
                         + done.stderr[-2000:])
    return done.stdout


def run_and_weigh(command, environment=None, **options):
    """What a command that must succeed said on stdout, and its peak memory in bytes."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        program = subprocess.Popen(words, env={**os.environ, **(environment or {})}, stdout=said, stderr=complained,
                                   **options)
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        complained.seek(0)
        if status:
            raise BenchError(f"{' '.join(words)}: exit status {program.returncode}\n{complained.read()[-2000:]}")
        return said.read(), usage.ru_maxrss * 1024


def library_path(binaries):
    """LD_LIBRARY_PATH for the programs in `binaries`: CUDA's libraries and cuDNN in the nvidia/* packages of
    this Python come first, so that PyTorch and Darknet run on the same ones."""
    found = importlib.util.find_spec("nvidia")
    folders = [folder for path in (found.submodule_search_locations if found else [])
               for folder in sorted(glob.glob(f"{path}/*/lib"))]
    known = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return ":".join(dict.fromkeys([*folders, f"{binaries}/lib", *filter(None, known)]))


LEFT_OUT = "left out from the next start on"  # what the plugin says of an engine that made the device fault
MOST_FAULTS = 5


def past_faults(start):
    """What start() returns, which is called again where an engine is left out the next time."""
    for _ in range(MOST_FAULTS):
        try:
            return start()
        except BenchError as error:
            if LEFT_OUT not in str(error):
                raise
            print(f"  {str(error).splitlines()[-1]}", flush=True)
    return start()


def parse_json(text, where):
    """The object that the text is; anything else is an error that says where it stood."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BenchError(f"{where}: not a JSON object")
    return found


def read_json(path):
    try:
        text = Path(path).read_text()
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: cannot be read: {error}") from None
    return parse_json(text, path)


def json_lines(text):
    """The lines of a program's output that are JSON objects."""
    return [parse_json(line, f"a program's line {line[:60]!r}") for line in text.splitlines()
            if line.startswith("{")]


def last_json(text):
    found = json_lines(text)
    if not found:
        raise BenchError("no JSON line in: " + text[-500:])
    return found[-1]


def plugin_lines(text):
    """What the plugin says in a program's output, each line once."""
    return list(dict.fromkeys(line for line in text.splitlines() if line.startswith("darknet-amp:")))


def first_match(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else "unknown"


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def write(path, text):
    """The file, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.rename(path)


def rounded(value):
    """With six digits in every number: more is noise in what was measured."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def dump(record):
    """The text of a record: short, and with a line for every run, so that a change shows."""
    def text(value, depth):
        line = json.dumps(value)
        if depth > 1 or len(line) <= 130 or not isinstance(value, (dict, list)):
            return line
        indent = "\n" + " " * (depth + 1)
        if isinstance(value, dict):
            return "{" + ",".join(f"{indent}{json.dumps(key)}: {text(entry, depth + 1)}"
                                  for key, entry in value.items()) + indent[:-1] + "}"
        return "[" + ",".join(indent + text(entry, depth + 1) for entry in value) + indent[:-1] + "]"

    return text(rounded(record), 0) + "\n"


def commit(binaries):
    """Of this checkout; where there is none, what scripts/gpu-pack.sh wrote beside its programs."""
    try:
        return run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT).strip()
    except (BenchError, OSError):
        packed = Path(binaries or "") / "commit"
        return packed.read_text().strip() if binaries and packed.exists() else "unknown"


def machine(binaries=None):
    """The host that measured."""
    release = Path("/etc/os-release")
    return {
        "cpu": first_match(r"^model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),  # that this process may use
        "system": first_match(r'^PRETTY_NAME="(.*)"', release.read_text())
        if release.exists() else "unknown",
        "kernel": platform.release(),
        "commit": commit(binaries),
    }


def cores(host):
    return f"{host['cores']} core" + ("s" if host["cores"] != 1 else "")


# ---- cfgs ----


def make_cfg(text, batch, extra="", **keys):
    """A cfg's text with one pass of `batch` images, `keys` changed where they are and `extra` lines in
    [net]. Darknet drops blanks from every line."""
    for key, value in {"batch": batch, "subdivisions": 1, "random": 0, **keys}.items():
        text = re.sub(rf"(?m)^[ \t]*{key}[ \t]*=.*", f"{key}={value}", text)
    return re.sub(r"(?m)^\[net\]", "[net]\n" + extra, text, count=1)


def check_batch(name, told, batch):
    """That a program trains at the batch that it was asked for."""
    if told.get("batch") != batch:
        raise BenchError(f"{name}: a batch of {told.get('batch')} where {batch} was asked for")


# ---- the same outputs and gradients ----

# How far heads and weight gradients may be from PyTorch's in FP64, relative in the L2 norm. Stock Darknet and the
# plugin's FP32 are up to 8e-5 and 0.022 away where PyTorch's FP32 is 4e-5 and 0.013, and 8e-4 in yolov4, where it is
# 3e-4: Winograd's convolutions round two to three times as much; 11 bits of operands make that 0.008 and 0.16
# (measurements/*.json). The limits are more than twice that; a layer wired wrongly is wrong by 1 or more. Where
# PyTorch's own arithmetic of that precision is further from FP64, twice as far is let pass: the deeper the net, the
# more values move over an activation's kink, and each changes its gradient tenfold. Not more than MOST_WRONG: an
# output of zeros is wrong by 1. Stock Darknet on a GPU may choose Winograd's or FFT's convolutions, each wrong by some
# 1e-5: noise of that size after every convolution moves weight gradients by 0.08. BF16 has 8 bits of operands: heads
# are 8 times as far as FP16's; weight gradients are held to PyTorch's autocast.
LIMITS = {"fp32": {"heads": 0.002, "weights": 0.06}, "fp16": {"heads": 0.02, "weights": 0.25},
          "bf16": {"heads": 0.16, "weights": 0.25},
          "stock-gpu": {"heads": 0.005, "weights": 0.25}}
MOST_WRONG = 0.9
# One convolution with batch-norm and activation, given its true input, in storage of t bits: its output is as far as
# that of operands rounded to 2^-t, 0.0006 and 0.0045 as measured. In gradients the few outputs of about 0 count that
# rounding moves over an activation's kink: some 2^-t of all, so that these errors are of the order of sqrt(2^-t), 0.022
# and 0.0625. The limits are two to three times what is measured, with PyTorch's autocast too.
SINGLE_LIMITS = {"fp16": {"heads": 0.0015, "weights": 0.045}, "bf16": {"heads": 0.012, "weights": 0.13}}


def judge(precision, found, own, most_wrong=MOST_WRONG):
    """Worst errors of one comparison (torch_net.py --check), and where they are too large; own: the
    errors of PyTorch's own arithmetic there."""
    verdict = {"disagrees": [], "own": {what: max(own[what].values()) for what in LIMITS[precision]}}
    for what, limit in LIMITS[precision].items():
        verdict[what] = max(found[what].values())
        for index, error in found[what].items():
            most = max(limit, min(2 * own[what][index], most_wrong))
            if not error <= most:  # NaN is wrong too
                verdict["disagrees"].append(f"{what} {index}: {error:.3g}, limit {most:.3g}")
    return verdict


def judge_single(precision, found):
    """Worst errors of {layer: torch_net.py --check-single's}; too large a one is an error."""
    worst = {"layers": len(found), **{what: max(max(layer[what].values()) for layer in found.values())
                                      for what in ("heads", "weights")}}
    wrong = [f"layer {name}, {what}: {max(layer[what].values()):.3g}, limit {limit:g}" for name, layer in found.items()
             for what, limit in SINGLE_LIMITS[precision].items() if not max(layer[what].values()) <= limit]
    if wrong:
        raise BenchError(f"single convolutions disagree with PyTorch's in FP64: {'; '.join(wrong)}")
    return worst


# ---- ratios ----


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def round_ratios(rounds, above, below):
    """Spread of seconds above / seconds below, each taken within one round; None where one of the
    two was not measured. A round is {contestant: [seconds of its steps]}; `above` may be several
    contestants, of which the fastest counts."""
    above = [above] if isinstance(above, str) else above
    found = [min(statistics.median(row[name]) for name in above if name in row)
             / statistics.median(row[below])
             for row in rounds if below in row and any(name in row for name in above)]
    return spread(found) if found else None


def median_seconds(rounds):
    """{contestant: median over the rounds of the round's median}."""
    names = dict.fromkeys(name for row in rounds for name in row)
    return {name: statistics.median(statistics.median(row[name]) for row in rounds if name in row)
            for name in names}


# ---- rooflines ----

# Dense FP16 with FP32 sums in TFLOP/s, memory in GB/s, from the makers' data sheets. The first name
# that is part of the device's counts.
PEAKS = {
    "B200": (2250, 8000),
    "GH200": (989, 4900),
    "H200 NVL": (836, 4800),
    "H200": (989, 4800),
    "H100 NVL": (836, 3938),
    "H100 PCIe": (756, 2039),
    "H100": (989, 3352),
    "A100-PCIE-40GB": (312, 1555),
    "A100-SXM4-40GB": (312, 1555),
    "A100": (312, 2039),
    "L40S": (362, 864),
    "RTX 4090": (165, 1008),
    "RTX 3090": (71, 936),
    "A10G": (70, 600),
    "A10": (125, 600),
    "T4": (65, 320),
}
FLOPS_PER_CLOCK = {75: 1024, 80: 2048, 86: 512, 89: 512, 90: 4096, 100: 8192, 120: 512}


def peaks(device):
    """(FLOP/s, bytes/s) of a device: by its name, else from its clocks."""
    for name, (tera, giga) in PEAKS.items():
        if re.search(rf"\b{re.escape(name)}\b", device["name"]):
            return tera * 1e12, giga * 1e9
    per_clock = FLOPS_PER_CLOCK.get(device["compute_capability"], 512)
    return (device["multiprocessors"] * device["clock_khz"] * 1e3 * per_clock,
            2 * device["memory_clock_khz"] * 1e3 * device["memory_bus_bits"] / 8)


def training_flops(network):
    """Of one image: forward, the gradient of the input (not of the first layer's), of the weights."""
    return 2 * (3 * network["macs"] - network["first_macs"])


def training_bytes(network, batch):
    """The least that a step in FP16 must move: every output of a layer with weights and its gradient
    are written once and read twice (by the next layer or the one before, and for the gradient of
    the weights); a weight's master copy and momentum are read and written, its FP16 copy written
    and read twice, its gradient written and read."""
    return 6 * 2 * network["outputs"] * batch + (16 + 6 + 4) * network["weights"]


def floor_parts(network, batch, ceilings):
    """(seconds of arithmetic, seconds of memory) of a step in FP16, each at its ceiling: (FLOP/s,
    bytes/s). No step can take less than the larger; their sum is that of one in which neither hides
    behind the other."""
    flops, bandwidth = ceilings
    return training_flops(network) * batch / flops, training_bytes(network, batch) / bandwidth


def rates(network, batch, device, seconds, measured=None):
    """What a step's time means; measured: the ceilings as they were measured, else those of peaks()."""
    by_data_sheet = peaks(device)
    return {
        "images_per_second": batch / seconds,
        "tflops": training_flops(network) * batch / seconds / 1e12,
        "roofline_share": max(floor_parts(network, batch, by_data_sheet)) / seconds,
        "floor_share": sum(floor_parts(network, batch, measured or by_data_sheet)) / seconds,
    }


# ---- other programs' output ----

DARKNET_ITERATION = re.compile(
    r"^\s*(?P<iteration>\d+)(?:, [\d.]+)?: (?P<loss>\S+), (?P<average>\S+) avg(?: loss)?, \S+ rate, "
    r"(?P<seconds>[\d.]+) seconds, (?P<images>\d+) images", re.MULTILINE)
LOADED = re.compile(r"^Loaded: ([\d.]+) seconds", re.MULTILINE)


def iteration_seconds(text, skip):
    """Seconds of every iteration after the first `skip`, as `detector train` of Darknet and of
    AlexeyAB's Darknet print them: the step without the wait for images."""
    return [float(found["seconds"]) for found in DARKNET_ITERATION.finditer(text)][skip:]


def end_to_end_seconds(text, skip):
    """The same with the wait for images, which Darknet prints in a line of its own before."""
    waits = [float(wait) for wait in LOADED.findall(text)]
    steps = iteration_seconds(text, 0)
    return [wait + step for wait, step in zip(waits, steps)][skip:]


# ---- text ----


def table(header, rows):
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
            *("| " + " | ".join(row) + " |" for row in rows)]


def ratio_rows(ratios):
    return [[name, f"**{value['median']:.2f}**", f"{value['min']:.2f}", f"{value['max']:.2f}"]
            for name, value in ratios.items()]


RATIO_HEADER = ["ratio", "median over the rounds", "lowest", "highest"]


def page(lines):
    return "\n".join(lines) + "\n"


CUT_OFF = 75  # exit status of what ended for lack of time, without an error


def exits(program, main):
    """Runs a script's main; an error is one line and exit status 1."""
    try:
        main()
    except BenchError as error:
        sys.exit(f"{program}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
