"""Convolutions of amp_dtype=bf16 multiply BF16 on a CPU that has the instructions, in all three passes: nothing falls back
to FP32 without a word. oneDNN itself says which code it ran, and that it has no part in what our own kernels compute where the
CPU has no AMX: 1x1 convolutions, and other weight gradients; what the CPU has, the kernel of the system says.

FP16 is multiplied in FP32 on every CPU, on purpose (docs/options.md, "What it computes in"); that is said.

usage: cpu_instructions.py BENCH_STEP
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CFG = """[net]
mixed_precision=1
amp_dtype={dtype}
batch=2
width=16
height=16
channels=3

[convolutional]
batch_normalize=1
filters=32
size=3
pad=1
activation=leaky

[convolutional]
batch_normalize=1
filters=48
size=3
stride=2
pad=1
activation=leaky

[convolutional]
filters=64
size=1
activation=linear

[connected]
output=10
activation=linear

[softmax]
"""
PASSES = {"forward_training", "backward_data", "backward_weights"}
# Layers whose channels fill oneDNN's blocks; the first layer's three do not, and are multiplied in FP32 (docs/options.md).
CHANNELS = {32, 48, 64}
OURS = 48  # of the layer with 1 x 1 taps; 3 x 3 have to write 128 pixels to have their weight gradient from our kernel


def convolutions(dtype):
    """{(implementation, pass, channels, types of its arrays)} of a training step, as oneDNN tells."""
    with tempfile.TemporaryDirectory() as folder:
        cfg = Path(folder) / "net.cfg"
        cfg.write_text(CFG.format(dtype=dtype))
        told = subprocess.run([sys.argv[1], cfg, "none", "--steps", "1", "--warmup", "0", "--heads", "loss"],
                              env={**os.environ, "DNNL_VERBOSE": "1"}, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    found = re.findall(r"^(?:onednn|dnnl)_verbose,.*?exec,cpu,convolution,([^,]+),(\w+),([^,]*),.*?ic(\d+)oc", told.stdout, re.M)
    assert found, "oneDNN tells nothing of its convolutions:\n" + told.stdout[-2000:]
    return {(code, step, int(channels), frozenset(re.findall(r"(?:src|wei|dst)_(\w+?):", arrays)))
            for code, step, arrays, channels in found}


def check_bf16():
    flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
    flags = flags[1].split() if flags else []
    if "avx512_bf16" not in flags:
        print("SKIPPED multiplication of BF16: this CPU has no AVX512-BF16")
        return False
    ran = convolutions("bf16")
    wide = {(code, step, channels, types) for code, step, channels, types in ran if channels in CHANNELS}
    for channels in CHANNELS:
        ours = channels == OURS and "amx_bf16" not in flags
        passes = set() if ours else PASSES
        assert {step for _, step, c, _ in wide if c == channels} == passes, (channels, ran)
    for code, step, channels, types in wide:
        # Behind the colon is the instruction set: one that has AVX512-BF16's. avx512_core alone emulates them.
        assert "bf16" in types and re.search(r":\w*(bf16|fp16|amx|avx10)", code), (code, step, channels, types)
    # The test itself: with amp_dtype=fp32 it would fail.
    assert not any("bf16" in types or "bf16" in code for code, _, _, types in convolutions("fp32"))
    return True


def main():
    assert {types for _, _, _, types in convolutions("fp16")} == {frozenset({"f32"})}
    print("SKIPPED multiplication of FP16 by instructions: FP16 is multiplied in FP32 on every CPU")
    if not check_bf16():
        sys.exit(77)


main()
