"""Several processes that train on emulated GPUs and exchange by a stand-in for NCCL, or through the host.

usage: nccl.py DARKNET STOCK PLUGIN CHECKOUT EMULATED NCCL [--lost]

As processes.py; EMULATED is Darknet with the CUDA backend on the emulation, NCCL the stand-in
(tests/emulation/nccl_host.c). --lost: instead, ranks that are stopped. AMP_TEST_SEED draws when an operation is done;
without it the clock does.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import processes
from processes import FAST, ORDERED, PLUGIN, end, make, pair, start, train

EMULATED, NCCL = sys.argv[5:7]
SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
ON_GPU = "amp_backend=cuda\n"
HOST = "darknet-amp: what the processes exchange goes through the host, which takes longer: "


def settings(nccl=NCCL, **env):
    found = [str(Path(PLUGIN).parent)] + [str(Path(nccl).parent)] * bool(nccl)
    return dict(program=EMULATED, env=dict(env, LD_LIBRARY_PATH=":".join(found), AMP_TEST_SEED=str(SEED)))


def check_ordered(root):
    """By NCCL, through the host, and in one process: the same bytes."""
    one = make(root / "one", ORDERED + ON_GPU, iterations=8)
    train(one, 0, **settings())
    by_nccl, by_host = (make(root / way, ORDERED + ON_GPU, iterations=8) for way in ("nccl", "host"))
    said = train(by_nccl, 3, **settings())
    assert said.count("darknet-amp: the processes exchange by NCCL 2.18.0\n") == 1, said
    assert HOST not in said, said
    said = train(by_host, 3, **settings(NCCL_HOST_VERSION="21703"))
    assert said.count(HOST + "rank 0 on ") == 1 and "libnccl.so.2 is version 2.17, too old" in said, said
    assert "exchange by NCCL" not in said, said
    assert pair(by_nccl) == pair(one) and pair(by_host) == pair(one)
    on_cpu = make(root / "cpu", ORDERED, iterations=8)
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
        exchanged[wire] = json.loads((folder / "log").read_text().splitlines()[-1])["exchanged_bytes"]
    assert exchanged["bf16"] < exchanged["fp32"], exchanged


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


def check_different_calls(root):
    """The stand-in names both."""
    folder = make(root / "differ", FAST + ON_GPU)
    end(start(folder, 2, **settings(NCCL_HOST_DIFFERS="1:3")), 128 + signal.SIGABRT)
    said = (folder / "nccl_differs").read_text()
    found = re.search(r"rank (\d) calls ncclAllReduce of (\d+) floats, and rank (\d) ncclAllReduce of (\d+) floats", said)
    assert found and {found[1], found[3]} == {"0", "1"} and abs(int(found[2]) - int(found[4])) == 1, said


def check_lost(root):
    """A rank is stopped while the others wait for it in NCCL: this is aborted, the last finished step saved."""
    for keys, place in (FAST, "%d:4" % (SEED % 3)), (ORDERED, "1:100"):
        whole = make(root / place / "whole", keys + ON_GPU, iterations=8)
        train(whole, 3, **settings())
        folder = make(root / place / "lost", keys + ON_GPU + "amp_rank_timeout=4\n", iterations=8)
        said = end(start(folder, 3, **settings(NCCL_HOST_STOPS=place)), 1)[1]
        assert re.search(r"rank %s on \S+ has not been heard of for 4 s \(amp_rank_timeout\)" % place[0], said), said
        saved = re.findall(r"The state after iteration (\d+) is saved\. .*: \S*toy.cfg (\S+)\n", said)
        assert len(saved) == 1 and (folder / "nccl_aborted").exists(), said
        train(folder, 3, saved[0][1], **settings())
        assert pair(folder) == pair(whole), (place, said)


def main():
    processes.skip_without_mpi()
    print("AMP_TEST_SEED=%d" % SEED)
    chosen = [globals()[word] for word in sys.argv[7:] if word.startswith("check_")]  # of a developer
    with tempfile.TemporaryDirectory() as root:
        for check in chosen or ([check_lost] if "--lost" in sys.argv else [
                check_ordered, check_default, check_without, check_different_calls]):
            began = time.monotonic()
            check(Path(root) / check.__name__)
            print("%s: %.1f s" % (check.__name__, time.monotonic() - began), flush=True)


if __name__ == "__main__":
    main()
