"""Several processes on one GPU, as far as one GPU shows them.

usage: processes.py DARKNET [KEY=VALUE...]

  NCCL         one process in a group of its own (AMP_ONE_AS_SEVERAL, launcher.h) exchanges all that several would, by NCCL:
               its weights and sidecar are, byte for byte, those of a process without a group; so with gradients in small
               buckets that leave while backward runs, and in one piece after it. With amp_wire=bf16 both are the same
  the host     NCCL refuses two processes on one GPU, so they exchange through the host: with amp_reduce=ordered they
               have the bytes of one process, by default they differ from it by rounding

Needs the mpirun of the MPI that this was built with. Status 77: that is missing, or NCCL is, whose part is then left out.
KEY=VALUE: more of the cfg, for the emulation of CUDA.
"""

import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

DARKNET = Path(sys.argv[1]).resolve()
KEYS = "".join(word + "\n" for word in sys.argv[2:])
MODULE = next((path for path in (DARKNET.parents[1] / "lib" / name / "libdarknet_amp_mpi.so" for name in ("", "darknet-amp"))
               if path.exists()), None)  # in a build; as scripts/gpu-pack.sh has it
MPI = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
SMALL, WHOLE = "amp_bucket_mb=0.001\n", "amp_bucket_mb=0\n"
ROUNDING = 1e-5  # of the length of an FP32 step


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def missing():
    """Why there is no MPI; None: there is."""
    if not MODULE:
        return "this was built without MPI: no libdarknet_amp_mpi.so"
    if not shutil.which("mpirun"):
        return "no mpirun in the PATH"
    said = subprocess.run(["ldd", MODULE], capture_output=True, text=True).stdout
    found = re.findall(r"(\S+) => not found", said)
    return "%s needs %s" % (MODULE.name, ", ".join(found)) if found else None


def train(folder, n, keys, steps=4, **changes):
    """What it said, and its weights and sidecar. n: processes; 0: without mpirun."""
    data = toyset.make(folder, images=16, batch=8, max_batches=steps, 
                       net_keys="seed=1\nmixed_precision=1\n" + KEYS + keys)
    text = (data / "toy.cfg").read_text().replace("subdivisions=2", "subdivisions=4").replace("burn_in=10", "burn_in=0")
    for key, value in changes.items():
        text = re.sub("^%s=.*" % key, "%s=%s" % (key, value), text, flags=re.M)
    (data / "toy.cfg").write_text(text)
    launcher = ["mpirun", "-np", str(n), "--bind-to", "none"] if n else []
    done = subprocess.run([*launcher, DARKNET, "detector", "train", data / "toy.data", data / "toy.cfg", "-i", "0"],
                          cwd=folder, capture_output=True, text=True,
                          env={**os.environ, **MPI, **({"AMP_ONE_AS_SEVERAL": "1"} if n == 1 else {})})
    if toyset.on_the_cpu(done.stderr):
        sys.exit(toyset.on_the_cpu(done.stderr))
    if done.returncode:
        sys.exit("%d processes, %r: exit status %d\n%s" % (n, keys, done.returncode, done.stderr[-1500:]))
    return done.stderr, [(data / "backup" / ("toy_final.weights" + kind)).read_bytes() for kind in ("", ".amp")]


def check_nccl(root, one):
    """What is wrong; None: there is no NCCL."""
    wrong = []
    for name, keys in ("small", SMALL), ("whole", WHOLE):
        said, files = train(root / name, 1, keys)
        version = re.search(r"the processes exchange by NCCL ([\d.]+)", said)
        if not version:
            print(re.findall("^darknet-amp: .*through the host.*", said, re.M))
            return None
        wrong += ["by NCCL %s, %sother bytes than without" % (version[1], keys)] if files != one else []
    print("NCCL", version[1])
    rounded = [train(root / ("rounded" + name), 1, "amp_wire=bf16\n" + keys)[1]
               for name, keys in (("small", SMALL), ("whole", WHOLE))]
    return wrong + ["amp_wire=bf16: buckets give other bytes"] * (rounded[0] != rounded[1])


def check_host(root, one):
    said, files = train(root / "ordered", 2, "amp_reduce=ordered\n")
    wrong = ["two processes, ordered: other bytes than one"] if files != one else []
    if "through the host" not in said:
        wrong.append("two processes on one GPU did not go through the host")
    start, alone, two = (floats(train(root / name, n, "amp_dtype=fp32\n", 1, learning_rate=rate)[1])
                         for name, n, rate in (("start", 0, 0), ("alone", 0, .001), ("two", 2, .001)))
    far, step = math.dist(two, alone), math.dist(alone, start)
    print("two processes: %.1e of a step from one" % (far / step))
    return wrong + ["two processes: %.1e of a step from one" % (far / step)] * (not far < ROUNDING * step)


def floats(files):
    body = files[0][20:]
    return struct.unpack("<%df" % (len(body) // 4), body)


def main():
    if missing():
        skip(missing())
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        train(root / "first", 0, "")  # from then on the plans are in the file, and all runs have the same
        one = train(root / "one", 0, "")[1]
        wrong = check_host(root, one)
        by_nccl = check_nccl(root, one)
        if wrong or by_nccl:
            sys.exit("; ".join(wrong + (by_nccl or [])))
        if by_nccl is None:
            skip("no NCCL 2.18 or later; two processes through the host are as they must be")
        print("as they must be")


main()
