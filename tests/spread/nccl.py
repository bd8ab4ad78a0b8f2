"""Several processes that train on emulated GPUs and exchange by a stand-in for NCCL, or through the host.

usage: nccl.py DARKNET STOCK PLUGIN CHECKOUT EMULATED NCCL CUDNN [--lost]

As processes.py; EMULATED is Darknet with the CUDA backend on the emulation, NCCL the stand-in
(tests/emulation/nccl_host.c), CUDNN a library with cuDNN's function for its version. --lost: instead, ranks that are
stopped, and a GPU check that cannot pass. AMP_TEST_SEED draws when an operation is done; without it the clock does.
"""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import processes
from ends import Ends, check_in_time, wait_until_stopped
from processes import FAST, ORDERED, PLUGIN, end, make, pair, start, train

EMULATED, NCCL, CUDNN = sys.argv[5:8]
SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
ON_GPU = "amp_backend=cuda\n"
HOST = "darknet-amp: what the processes exchange goes through the host, which takes longer: "


def settings(nccl=NCCL, **env):
    found = [str(Path(PLUGIN).parent)] + [str(Path(nccl).parent)] * bool(nccl)
    return dict(program=EMULATED, env=dict(env, LD_LIBRARY_PATH=":".join(found), AMP_TEST_SEED=str(SEED)))


def check_ordered(root):
    """By NCCL, through the host, and in one process: the same bytes."""
    one = make(root / "one", ORDERED + ON_GPU, iterations=5)
    train(one, 0, **settings())
    by_nccl, by_host = (make(root / way, ORDERED + ON_GPU, iterations=5) for way in ("nccl", "host"))
    said = train(by_nccl, 3, **settings())
    assert said.count("darknet-amp: the processes exchange by NCCL 2.18.0\n") == 1, said
    assert HOST not in said, said
    said = train(by_host, 3, **settings(NCCL_HOST_VERSION="21703"))
    assert said.count(HOST + "rank 0 on ") == 1 and "libnccl.so.2 is version 2.17, too old" in said, said
    assert "exchange by NCCL" not in said, said
    assert pair(by_nccl) == pair(one) and pair(by_host) == pair(one)
    on_cpu = make(root / "cpu", ORDERED, iterations=5)
    train(on_cpu, 0)
    assert pair(on_cpu) != pair(one), "this did not run on the emulated GPU"


def check_default(root):
    """All processes have the same weights, also with amp_wire=bf16: they are compared at iteration 100."""
    before = make(root / "before", FAST, iterations=95)
    train(before, 0)
    exchanged = {}
    for wire in "fp32", "bf16":
        folder = make(root / wire, FAST + ON_GPU + "amp_wire=%s\namp_log=log\n" % wire, iterations=101)
        assert "exchange by NCCL" in train(folder, 3, before / "backup" / "toy_final.weights", **settings())
        assert (folder / "backup" / "toy_final.weights").exists()
        exchanged[wire] = json.loads((folder / "log").read_text().splitlines()[-2])["exchanged_bytes"]
    assert exchanged["bf16"] < exchanged["fp32"], exchanged


# ---- while backward runs ----

SMALL, OFF = "amp_bucket_mb=0.001\n", "amp_bucket_mb=0\n"  # 0.001: a convolution or two
SEARCH = "loss_scale_window=3\n"
STEPS = 4  # of which the last has recordings
FROZEN = ("filters=8\nsize=3\nstride=2", "filters=8\nsize=3\nstride=2\nfreeze=1")
STOPPED = ("filters=8\nsize=3\nstride=1\npad=1", "filters=8\nsize=3\nstride=1\npad=1\nstopbackward=1")
RECOMPUTED = ("filters=4\nsize=1\nstride=1\npad=1", "filters=4\nsize=1\nstride=1\npad=1\ncheckpoint=1")
NATIVE = ("[maxpool]\nsize=2\nstride=2", "[lrn]\nsize=3\n\n[local]\nfilters=3\nsize=1\nactivation=linear\n\n"
          "[maxpool]\nsize=2\nstride=2"), ("layers=-1, 4", "layers=-1, 6")


def numbers_of(folder):
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if '"summary"' not in line]


def calls_of(folder, rank):
    """(length, recordings played before) of a rank's operations."""
    return [tuple(map(int, line.split()[1:])) for line in (folder / ("nccl_calls.%d" % rank)).read_text().splitlines()]


def check_bytes(off, small):
    """A step sends statistics and vote; its gradients once, or twice if backward was repeated after they had left; a
    skipped step those that have left. Returns how many steps sent twice and how many were skipped."""
    without = {line["exchanged_bytes"] for line in off}
    least, most = min(without), max(without)
    twice = skipped = 0
    for line, before in zip(small, [{"skipped": 0, "redone": 0}] + small):
        skips, sent = line["skipped"] > before["skipped"], line["exchanged_bytes"]
        if len(without) == 1:  # none was skipped
            assert not skips
            return sum(line["exchanged_bytes"] != most for line in small), 0
        assert sent == most or not skips and sent == 2 * most - least and line["redone"] > before["redone"], (line, least, most)
        twice += sent > most
        skipped += skips
    return twice, skipped


def both(root, keys, n=3, weights=(), **made):
    """Trains in buckets and in one piece; both are to end with the same bytes. Returns both logs and what rank 0 said."""
    logs = []
    for name, bucket in ("off", OFF), ("small", SMALL):
        folder = make(root / name, FAST + ON_GPU + keys + bucket + "amp_log=log\n", iterations=6, **made)
        said = train(folder, n, *weights, **settings())
        assert "exchange by NCCL" in said, said
        logs.append(numbers_of(folder))
    assert pair(root / "off") == pair(root / "small"), root
    return *logs, said


def check_ahead(root):
    """Gradients that leave while backward runs end as those that leave after it, to the byte, also if they leave again."""
    twice = skipped = 0
    before = make(root / "before", FAST + ON_GPU, iterations=1)  # what is frozen has statistics
    train(before, 0, **settings())
    for name, keys, changes in (
            ("search", SEARCH, ()), ("rounded", SEARCH + "amp_wire=bf16\n", ()),
            ("skipping", "amp_on_overflow=skip\nloss_scale_init=262144\nloss_scale_backoff=.25\n", ()),
            ("rules", SEARCH + "optimizer=lamb\nclip_grad_norm=.1\nema_alpha=.9\n", (processes.DROPOUT, RECOMPUTED)),
            ("frozen", SEARCH + "adam=1\n", (FROZEN,)), ("stopped", SEARCH + "amp_wire=bf16\n", (STOPPED,)),
            ("native", SEARCH, NATIVE), ("fp32", "amp_dtype=fp32\n", ())):
        off, small, said = both(root / name, keys, changes=changes,
                                weights=(before / "backup" / "toy_final.weights", "-clear") if FROZEN in changes else ())
        again, gone = check_bytes(off, small)
        print("  %s: %d steps sent twice, %d skipped" % (name, again, gone))
        twice, skipped = twice + again, skipped + gone
    assert twice and skipped, (twice, skipped)


def check_one_rank(root):
    """What one rank alone cannot use: an image whose label is no number, and layers that leave FP16."""
    for wire in "", "amp_wire=bf16\n":
        folders = []
        for bucket in OFF, SMALL:
            folder = make(root / (wire[-5:-1] + bucket.split("=")[1].strip()), FAST + ON_GPU + wire + bucket + "amp_log=log\n", iterations=4)
            (folder / "image003.txt").write_text("1 nan nan .2 .2\n")
            assert "image003.png" in train(folder, 4, **settings())
            folders.append(folder)
        assert pair(folders[0]) == pair(folders[1])
        assert numbers_of(folder)[-1]["skipped"] > 0


def check_demoted(root):
    before = make(root / "before", FAST + ON_GPU, iterations=1)
    train(before, 0, **settings())
    weights = before / "backup" / "toy_final.weights"
    data = bytearray(weights.read_bytes())
    data[20 + 32:20 + 64] = struct.pack("<8f", *[1e6] * 8)  # scales of the first layer, behind 8 biases
    weights.write_bytes(data)
    off, small, said = both(root, "amp_on_divergence=continue\n", weights=(weights, "-clear"))
    assert "leaves FP16" in said or "left FP16" in said, said


def check_during(root):
    """Buckets leave one after another between the recordings of a backward pass; a step of rank 2, whose share is one
    pass: its statistics, and the buckets."""
    folder = make(root / "during", FAST + ON_GPU + SMALL + "loss_scale=128\n", iterations=STEPS)
    train(folder, 3, **settings(NCCL_HOST_TELLS="1"))
    calls = calls_of(folder, 2)
    steps = [calls[i * len(calls) // STEPS:(i + 1) * len(calls) // STEPS] for i in range(STEPS)]
    lengths = [[length for length, _ in step] for step in steps]
    assert lengths == [lengths[0]] * STEPS and lengths[0] == [length for length, _ in calls_of(folder, 0)][-len(lengths[0]):], calls
    played = [replays for _, replays in steps[-1][1:]]
    assert len(played) >= 4 and sorted(set(played)) == played, steps[-1]
    whole = make(root / "whole", FAST + ON_GPU + OFF + "loss_scale=128\n", iterations=STEPS)
    train(whole, 3, **settings(NCCL_HOST_TELLS="1"))
    assert len(calls_of(whole, 2)) == 2 * STEPS


def check_statistics(root):
    """By NCCL they are added up in FP32, on the host in double."""
    found = {}
    for way in "nccl", "host":
        folder = make(root / way, FAST + ON_GPU + "amp_dtype=fp32\n", iterations=3)
        train(folder, 3, **settings(**({} if way == "nccl" else {"NCCL_HOST_VERSION": "21703"})))
        found[way] = processes.weights_of(folder)
    worst = max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(found["nccl"], found["host"]))
    assert 0 < worst < 1e-5, worst


def check_without(root):
    """What NCCL cannot do goes through the host, with the reason."""
    folder = make(root / "none", FAST + ON_GPU, iterations=2)
    (folder / "libnccl.so.2").write_text("no library\n")
    said = train(folder, 2, **settings(nccl=folder / "libnccl.so.2"))
    assert re.search(re.escape(HOST) + r"rank 0 on \S+ has no NCCL 2.18 or later \(.*libnccl.so.2.*\): install libnccl2, "
                     "or Python's nvidia-nccl", said), said
    folder = make(root / "card", FAST + ON_GPU, iterations=2)
    said = train(folder, 2, **settings(AMPK_EMULATION_CARD="the only one"))
    assert said.count(HOST + "ranks 0 and 1 use the same GPU of ") == 1, said


def check_python_packages(root):
    """A process whose cuDNN comes from Python's packages finds NCCL in those."""
    folder = make(root, FAST + ON_GPU, iterations=2)
    for package, library, name in ("cudnn", CUDNN, "libcudnn.so.9"), ("nccl", NCCL, "libnccl.so.2"):
        (root / "nvidia" / package / "lib").mkdir(parents=True)
        shutil.copy(library, root / "nvidia" / package / "lib" / name)
    (folder / "libnccl.so.2").write_text("no library\n")  # where the linker looks first
    how = settings(nccl=folder / "libnccl.so.2", LD_PRELOAD=str(root / "nvidia/cudnn/lib/libcudnn.so.9"))
    said = train(folder, 2, **how)
    assert "exchange by NCCL 2.18.0" in said, said


STAGE = [sys.executable, Path(__file__).resolve().parents[1] / "gpu/processes.py", EMULATED, ON_GPU.strip()]


def run_stage(gpus=1, **env):
    """As scripts/gpu-check.sh has it."""
    one = {"AMPK_EMULATION_CARD": "the only one"} if gpus == 1 else {}
    return subprocess.run(STAGE, capture_output=True, text=True,
                          env={**os.environ, **settings()["env"], "OMP_NUM_THREADS": "1", **one, **env})


def check_one(root):
    """One process that exchanges with itself has the bytes of one that does not."""
    done = run_stage()
    assert done.returncode == 0 and done.stdout.endswith("NCCL 2.18.0\nas they must be\n"), done
    done = run_stage(PATH="/nowhere")
    assert done.returncode == 77 and done.stdout == "SKIPPED: no mpirun in the PATH\n", done


def check_stage(root):
    """What is missing or wrong is told."""
    done = run_stage(NCCL_HOST_VERSION="21703")
    assert done.returncode == 77 and "\nSKIPPED: no NCCL 2.18 or later; two processes through the host" in done.stdout, done
    done = run_stage(gpus=2)
    assert done.returncode == 1 and "two processes on one GPU did not go through the host" in done.stderr, done


def check_different_calls(root):
    """The stand-in names both."""
    folder = make(root / "differ", FAST + ON_GPU)
    end(start(folder, 2, **settings(NCCL_HOST_DIFFERS="1:3")), 128 + signal.SIGABRT)
    said = (folder / "nccl_differs").read_text()
    found = re.search(r"rank (\d) calls ncclAllReduce of (\d+) floats, and rank (\d) ncclAllReduce of (\d+) floats", said)
    assert found and {found[1], found[3]} == {"0", "1"} and abs(int(found[2]) - int(found[4])) == 1, said


def stop_one(folder, keys, place, whole):
    process = start(make(folder, keys + ON_GPU + "amp_rank_timeout=4\n", iterations=8), 3, **settings(NCCL_HOST_STOPS=place))
    wait_until_stopped(process, int(place[0]))
    ends = Ends(process, int(place[0]))
    said = end(process, 1)[1]
    assert re.search(r"rank %s on \S+ has not been heard of for 4 s \(amp_rank_timeout\)" % place[0], said), said
    saved = re.findall(r"The state after iteration (\d+) is saved\. .*: \S*toy.cfg (\S+)\n", said)
    assert len(saved) == 1 and (folder / "nccl_aborted").exists(), said
    train(folder, 3, saved[0][1], **settings())
    assert pair(folder) == pair(whole), (place, said)
    return ends.wait()


def check_lost(root):
    """A rank is stopped while the others wait for it in NCCL: this is aborted, the last finished step saved."""
    # The first step has four operations; later ones send statistics and two buckets.
    for keys, place in (FAST, "%d:%d" % (SEED % 3, 8 + SEED % 7)), (ORDERED, "1:100"):
        whole = make(root / place / "whole", keys + ON_GPU, iterations=8)
        train(whole, 3, **settings())
        check_in_time(root / place / "lost", 4 + 2, stop_one, keys, place, whole)


def main():
    processes.skip_without_mpi()
    print("AMP_TEST_SEED=%d" % SEED)
    lost = [check_lost, check_stage]
    others = [check_ordered, check_default, check_ahead, check_one_rank, check_demoted, check_during, check_statistics,
              check_without, check_python_packages, check_one, check_different_calls]
    processes.run_checks(globals(), lost if "--lost" in sys.argv else others)


if __name__ == "__main__":
    main()
