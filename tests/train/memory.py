"""The memory that `darknet amp plan --memory` predicts is what training takes on the host, and what it
suggests fits; subdivisions=auto trains as the number that it picks.

usage: memory.py DARKNET
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

TOLERANCE = .15  # of the peak
LAYERS = """
[convolutional]
batch_normalize=1
filters=%d
size=3
stride=%d
pad=1
activation=leaky
"""


def make(folder, keys, batch, subdivisions):
    """A detector of 4 MiB an image and 15 MiB of weights."""
    toyset.make(folder, images=8, size=256, batch=batch, max_batches=2, net_keys="mixed_precision=1\nseed=1\n" + keys)
    text = (folder / "toy.cfg").read_text().replace("subdivisions=2", "subdivisions=%s" % subdivisions)
    net, head = text.partition("[convolutional]")[0], toyset.SCALE.format(mask="0,1").replace("{random}", "0")
    shapes = ((16, 1), (32, 2), (64, 2), (128, 2), (256, 2), (512, 2), (512, 1))
    (folder / "toy.cfg").write_text(net + "".join(LAYERS % shape for shape in shapes) + head)


def plan(folder, memory, processes=1):
    done = subprocess.run([sys.argv[1], "amp", "plan", "toy.cfg", "-nogpu", "--json", "--memory", str(memory),
                           "--processes", str(processes)], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def train(folder):
    """Its peak of resident memory in bytes, and what it said."""
    with open(folder / "said", "w+") as said:
        child = subprocess.Popen([sys.argv[1], "detector", "train", "toy.data", "toy.cfg", "-nogpu"],
                                 cwd=folder, stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        said.seek(0)
        text = said.read()
    assert status == 0, text
    return usage.ru_maxrss * 1024, text


def check(folder, keys, batch, subdivisions):
    make(folder, keys, batch, subdivisions)
    predicted, (peak, _) = plan(folder, 8)["as_written"]["bytes"], train(folder)
    assert abs(predicted / peak - 1) < TOLERANCE, (keys, batch, subdivisions, predicted, peak)
    return predicted


PEAK = '''
import os, resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open("peak." + os.environ["OMPI_COMM_WORLD_RANK"], "w"))
sys.exit(status)
'''


def check_several(folder, keys, batch, subdivisions, processes):
    """The same of each of several processes."""
    make(folder, keys, batch, subdivisions)
    predicted = plan(folder, 8, processes)["as_written"]["bytes"]
    done = subprocess.run(["mpirun", "-np", str(processes), sys.executable, "-c", PEAK, sys.argv[1], "detector", "train",
                           "toy.data", "toy.cfg", "-nogpu"], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                   OMPI_MCA_rmaps_base_oversubscribe="1"))
    assert done.returncode == 0, done.stderr[-3000:]
    peaks = [int((folder / ("peak.%d" % rank)).read_text()) * 1024 for rank in range(processes)]
    print("several processes, %r: %d bytes predicted, %s taken" % (keys, predicted, peaks))
    for peak in peaks:
        assert abs(predicted / peak - 1) < TOLERANCE, (keys, processes, predicted, peaks)
    return predicted, sum(peaks) / processes


def check_fits(folder):
    """Two thirds of what one pass takes: the suggestion stays below it, and is no less than need be."""
    make(folder, "", 16, 1)
    limit = plan(folder, 8)["as_written"]["bytes"] * .66
    fit, largest = (plan(folder, limit / 2 ** 30)[key] for key in ("fit", "largest_fit"))
    assert 1 < fit["subdivisions"] < 16 and fit["bytes"] < limit, fit
    assert largest["batch"] < 16 and largest["subdivisions"] == 1, largest
    assert abs(largest["learning_rate"] - .001 * largest["batch"] / 16) < 1e-9, largest
    (folder / "toy.cfg").write_text((folder / "toy.cfg").read_text().replace(
        "subdivisions=1", "subdivisions=%d" % fit["subdivisions"]))
    peak, _ = train(folder)
    assert peak < limit * (1 + TOLERANCE), (peak, limit)
    assert plan(folder, .05)["fit"] is None


def check_auto(folder):
    make(folder / "auto", "", 8, "auto")
    _, said = train(folder / "auto")
    picked = re.search(r"subdivisions=auto: (\d+), so that a pass has (\d+) image", said)
    assert picked and int(picked[1]) * int(picked[2]) == 8, said
    make(folder / "number", "", 8, picked[1])
    train(folder / "number")
    one, two = ((folder / name / "backup/toy_final.weights").read_bytes() for name in ("auto", "number"))
    assert one == two
    cfg = folder / "auto/toy.cfg"
    cfg.write_text(cfg.read_text().replace("mixed_precision=1", "mixed_precision=0"))
    refused = subprocess.run([sys.argv[1], "detector", "train", "toy.data", "toy.cfg"], cwd=folder / "auto",
                             capture_output=True, text=True)
    assert refused.returncode == 1 and "subdivisions=" in refused.stderr, refused


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        one = check(folder / "one", "", 16, 1)
        four = check(folder / "four", "", 16, 4)
        kept = check(folder / "kept", "optimizer=adamw\nema_alpha=.9", 16, 4)
        check(folder / "fp32", "amp_dtype=fp32", 8, 2)
        assert four < one and four < kept
        check_fits(folder / "fits")
        check_auto(folder)
        if not shutil.which("mpirun") or not (Path(sys.argv[1]).parents[1] / "lib/libdarknet_amp_mpi.so").exists():
            print("SKIPPED several processes: no mpirun or no libdarknet_amp_mpi.so")
            return
        ordered = check_several(folder / "ordered", "amp_reduce=ordered", 16, 4, 2)
        copied = check_several(folder / "several", "", 16, 4, 2)
        check_several(folder / "rounded", "amp_wire=bf16", 16, 4, 3)
        said, took = copied[0] - ordered[0], copied[1] - ordered[1]  # what MPI adds up in
        assert said > 10 << 20 and abs(took / said - 1) < .4, (said, took)


main()
