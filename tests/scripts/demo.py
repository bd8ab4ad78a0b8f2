"""What scripts/demo.py says of the device, with stand-ins for Darknet and nvidia-smi.

usage: demo.py ROOT
"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path[0] = str(ROOT / "scripts")  # this file is called demo too
import demo
import training
from bench_lib import BenchError

SAYS_NO_GPU = "echo 'darknet-amp: no usable GPU (CUDA finds none), running on the CPU' >&2\n"


def make_executable(path, text):
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def test_gpu_of(folder):
    """What the program says that it computes on."""
    program = folder / "darknet"
    asks = '[ "$1 $2 $4" = "amp profile --json" ] && grep -q convolutional "$3" || exit 9\n'
    make_executable(program, asks + 'echo "{\\"device\\": \\"GPU ${6-0}\\"}"\n')
    assert training.gpu_of(program) == "GPU 0"
    assert training.gpu_of(program, ["-i", "1"]) == "GPU 1"
    make_executable(program, asks + SAYS_NO_GPU + "echo progress >&2\necho '{\"device\": null}'\n")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert training.gpu_of(program) is None
    assert said.getvalue() == "darknet-amp: no usable GPU (CUDA finds none), running on the CPU\n", said
    make_executable(program, "echo CUDA Error: out of memory >&2\nexit 1\n")
    try:
        training.gpu_of(program)
    except BenchError as error:
        assert "exit status 1" in str(error) and "CUDA Error: out of memory" in str(error), error
    else:
        raise AssertionError("no error")


def train(folder, gpu, before=""):
    """The figures of a training whose Darknet is a stand-in."""
    program = make_executable(folder / "trains", before + "echo $$ >process\n"
                              "for i in 1 2; do\n"
                              "echo \"$i: 4.5, 4.5 avg, 0.001 rate, 0.25 seconds, 32 images\"\ndone\n"
                              ": >net_final.weights\n")
    return demo.train("fp32", program, gpu, folder, 2)


@contextlib.contextmanager
def first_on_path(folder):
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    yield
    os.environ["PATH"] = before


def test_train(folder):
    make_executable(folder / "nvidia-smi", f'echo "$(cat {folder}/process), 700"\necho "1, 50"\n')
    with first_on_path(folder):
        on_gpu = train(folder, "NVIDIA T4")
        on_cpu = [train(folder, None), train(folder, "NVIDIA T4", SAYS_NO_GPU)]
    assert (on_gpu["device"], on_gpu["device_memory_mb"]) == ("NVIDIA T4", 700), on_gpu
    assert on_gpu["seconds_per_iteration"] == 0.25 and on_gpu["peak_memory_mb"] > 1, on_gpu
    for run in on_cpu:
        assert (run["device"], run["device_memory_mb"]) == ("CPU", None), run


def test_adapt_cfg(folder):
    """Classes, filters of the last convolutions and what `amp data` finds."""
    demo.WORK = folder
    program = make_executable(folder / "finds", '[ "$1 $2 $3 $4 $5" = "amp data set.data net.cfg --anchors" ] || exit 9\n'
                              'grep -q "^classes=4" net.cfg && echo "{\\"anchors\\": {\\"values\\": [[1, 2.0], [30, 4]]}}" >data.json\n')
    cfg = demo.adapt_cfg(program, (ROOT / "cfg/demo.cfg").read_text(), 4)
    lines = cfg.splitlines()
    assert lines.count("classes=4") == lines.count("[yolo]") == lines.count("anchors=1,2,  30,4"), cfg
    masks = [line.count(",") + 1 for line in lines if line.startswith("mask=")]
    before = cfg.partition("\n[yolo]")[0].splitlines()
    assert [line for line in before if line.startswith("filters=")][-1] == f"filters={9 * masks[0]}", cfg


def test_device_memory(folder):
    """The most of what was seen; looked at now and then."""
    memory = training.DeviceMemory()
    with first_on_path(folder):
        for used, waits, peak in ((300, False, 300), (900, False, 900), (500, False, 900),
                                  (990, True, 900)):
            make_executable(folder / "nvidia-smi", f"echo '7, {used}'\n")
            memory.due = memory.due if waits else 0
            memory.look(7)
            assert memory.peak == peak, (used, memory.peak)


for test in (test_gpu_of, test_train, test_adapt_cfg, test_device_memory):
    with tempfile.TemporaryDirectory() as scratch:
        test(Path(scratch))
