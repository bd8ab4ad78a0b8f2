"""amp_sync_bn=1: batch-norm over the passes of several processes trains what one process trains with larger passes.

usage: sync_bn.py DARKNET STOCK PLUGIN CHECKOUT EMULATED NCCL

As nccl.py. AMP_TEST_SEED draws which rank is stopped, and when; without it the clock does.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
from ends import Ends, check_in_time, ranks_of
from processes import DARKNET, FAST, ORDERED, PLUGIN, STOCK, change, distance, end, make, pair, refused, start, train, weights_of

EMULATED, NCCL = sys.argv[5:7]
SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
DRAW = random.Random(SEED)
SYNCED = FAST + "amp_sync_bn=1\n"
FINDING = 304  # bytes of a judgement, of which a pass has two, and one more for each repeated backward
EMULATION = dict(program=EMULATED, env=dict(LD_LIBRARY_PATH="%s:%s" % (Path(PLUGIN).parent, Path(NCCL).parent)))


def after_a_step(folder, n, keys, subdivisions, rate, **settings):
    make(folder, keys, iterations=1, subdivisions=subdivisions, batch=6,
         changes=(("learning_rate=0.001", "learning_rate=" + rate), ("burn_in=10", "burn_in=0")))
    train(folder, n, **settings)
    return weights_of(folder)


def check_like_one(root, dtypes=("fp32", "fp16", "bf16"), **settings):
    """A step, which moves statistics too, differs from that of one process with the larger pass by rounding: the bound
    of sync_bn.h is 2^-22, which the layers behind make some larger, and the types store values that it moved over
    the middle between two as the other. Without the exchange it is another step."""
    for dtype in dtypes:
        most = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}[dtype]
        keys = "amp_dtype=%s\n" % dtype + "amp_backend=cuda\n" * bool(settings)
        at = after_a_step(root / dtype / "at", 0, FAST + keys, 1, "0", **settings)
        one = after_a_step(root / dtype / "one", 0, FAST + keys, 1, "0.001", **settings)
        step = distance(one, at)
        for n in 2, 3:
            synced = after_a_step(root / dtype / ("synced%d" % n), n, SYNCED + keys, n, "0.001", **settings)
            alone = after_a_step(root / dtype / ("alone%d" % n), n, FAST + keys, n, "0.001", **settings)
            far, without = distance(synced, one) / step, distance(alone, one) / step
            print("  %s, %d processes: off by %.1e of a step, without amp_sync_bn by %.1e" % (dtype, n, far, without))
            assert far < most < without / 10, (dtype, n, far, without)


def check_emulated(root):
    """The same on GPUs: what batch-norm exchanges goes through the host, the gradients by NCCL's stand-in."""
    check_like_one(root, ("fp16",), **EMULATION)


def check_alone(root):
    """In one process, launched or not, and without batch-norm the key changes nothing, which is said once."""
    plain = make(root / "plain", FAST, iterations=5)
    assert "amp_sync_bn" not in train(plain, 0)
    for n in 0, 1:
        folder = make(root / str(n), SYNCED, iterations=5)
        said = train(folder, n)
        assert said.count("darknet-amp: amp_sync_bn=1 changes nothing: one process trains\n") == 1, said
        assert pair(folder) == pair(plain)
    without = make(root / "without", SYNCED, iterations=5, changes=(("batch_normalize=1\n", ""),))
    said = train(without, 2)
    assert said.count("darknet-amp: amp_sync_bn=1 changes nothing: no batch-norm learns\n") == 1, said


def logged(folder):
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if '"summary"' not in line]


def check_scales(root):
    """Overflows move the scale as they move one process's: all judge each pass together. Also if steps are skipped."""
    for name, keys in ("search", ""), ("skip", "amp_on_overflow=skip\nloss_scale_init=16777216\n"):
        seen = []
        for n in 0, 3:
            folder = make(root / name / str(n), SYNCED + keys + "amp_log=log\n", batch=6, subdivisions=max(n, 1))
            said = train(folder, n)
            seen.append([[line[key] for key in ("iteration", "loss_scale", "skipped")] for line in logged(folder)])
            assert "rank 0: " not in said and "in another process" not in said, said
        assert seen[0] == seen[1], (name, *seen)
        assert name == "search" or seen[1][-1][2] > 5, seen


def check_cost(root):
    """The exchanges of a step are those that `amp plan` tells of a pass, for each pass; weights of all processes stay
    the same, which is compared at iteration 100. Frozen layers exchange nothing, layers that are computed again once."""
    for name, changes in ("plain", ()), ("checkpointed", (("filters=4\n", "filters=4\ncheckpoint=1\n"),)):
        folder = make(root / name, SYNCED + "amp_dtype=fp32\namp_log=log\n", batch=12, subdivisions=6, iterations=101,
                      changes=changes)
        text = subprocess.run([DARKNET, "amp", "plan", "toy.cfg"], cwd=folder, capture_output=True, text=True).stdout
        plan = json.loads(subprocess.run([DARKNET, "amp", "plan", "toy.cfg", "--json"], cwd=folder, capture_output=True,
                                         text=True).stdout)
        assert "each pass has 4 exchanges of batch-norm in forward and 4 in backward" in text, text
        assert plan["sync_bn_exchanges"] == 8 and plan["sync_bn_bytes"] == 2 * 16 * (8 + 4 + 8 + 16), plan
        train(folder, 3)
        synced = {line["exchanged_bytes"] for line in logged(folder)}
        without = make(root / (name + "_without"), FAST + "amp_dtype=fp32\namp_log=log\n", batch=12, subdivisions=6,
                       iterations=2, changes=changes)
        train(without, 3)
        rolling = 8 * 2 * (8 + 4 + 8 + 16)
        expected = {line["exchanged_bytes"] - rolling + 2 * (plan["sync_bn_bytes"] + 2 * FINDING) for line in logged(without)}
        assert synced == expected, (synced, expected)
    assert pair(root / "plain")[0] == pair(root / "checkpointed")[0]
    # A layer can be frozen only if its batch-norm has statistics.
    folder = make(root / "frozen", SYNCED + "amp_dtype=fp32\n", batch=6, subdivisions=3, iterations=4,
                  changes=(("filters=4\n", "filters=4\nfreeze=1\n"),))
    assert "each pass has 3 exchanges of batch-norm in forward and 3 in backward" in train(
        folder, 3, root / "plain" / "backup" / "toy_final.weights", "-clear")


def check_resumed(root):
    """A run that stops and goes on is the run that does not, to the byte."""
    whole, half, rest = (make(root / str(k), SYNCED, iterations=k, batch=6, subdivisions=3) for k in (20, 10, 21))
    change(rest, "max_batches=21", "max_batches=20")
    train(whole, 3)
    train(half, 3)
    assert "resumed from " in train(rest, 3, half / "backup" / "toy_final.weights")
    assert pair(whole) == pair(rest)


def check_map(root):
    """-map measures in a network of its own, which exchanges nothing."""
    folder = make(root, SYNCED, batch=6, subdivisions=2)
    end(start(folder, 2, "-map"))
    assert (folder / "backup" / "toy_best.weights").exists()


def check_bad_label(root):
    """Of an image of one rank: all skip the step, none waits, and rank 0 names it. (DARKNET would look at the labels
    before.)"""
    folder = make(root, SYNCED + "amp_log=log\n")
    (folder / "image003.txt").write_text("1 nan nan .2 .2\n")
    said = train(folder, 4, program=STOCK)
    bad = [line for line in said.splitlines() if "image003.png" in line]
    assert 0 < logged(folder)[-1]["skipped"] <= len(bad) and all("step skipped" in line for line in bad), said
    assert any("mixed precision: rank " in line for line in bad), said


def stop_one(folder, whole):
    process = start(make(folder, SYNCED + "amp_rank_timeout=4\n", batch=6, subdivisions=3, iterations=400), 3)
    rank, iteration = DRAW.randrange(3), DRAW.randrange(1, 200)
    for line in process.stdout:
        if line.startswith("%d: " % iteration):
            break
    os.kill(ranks_of(process)[rank], signal.SIGSTOP)
    ends = Ends(process, rank)
    said = end(process, 1)[1]
    assert re.search(r"rank %d on \S+ has not been heard of for 4 s \(amp_rank_timeout\)" % rank, said), said
    saved = re.findall(r"The state after iteration (\d+) is saved\. .*: \S*toy.cfg (\S+)\n", said)
    assert len(saved) == 1, said
    train(folder, 3, saved[0][1])
    assert pair(folder) == pair(whole), said
    return ends.wait()


def check_lost(root):
    """A rank is stopped, most likely while the others wait for it in a layer: the last finished step is saved, and the
    run goes on from there to the byte."""
    whole = make(root / "whole", SYNCED, batch=6, subdivisions=3, iterations=400)
    train(whole, 3)
    check_in_time(root / "lost", 4 + 2, stop_one, whole)


def check_refused(root):
    """Each with file, line, key, value and what is allowed."""
    refused(make(root / "uneven", SYNCED, subdivisions=4), 3,
            "toy.cfg:4: subdivisions=4: with amp_sync_bn=1 each of 3 processes needs as many passes as the others; "
            "allowed: none with batch=8; change that to a multiple of 3")
    refused(make(root / "odd", SYNCED, subdivisions=3, batch=12), 2, "toy.cfg:4: subdivisions=3: ", "; allowed: 2, 4, 6, 12")
    refused(make(root / "ordered", ORDERED + "amp_sync_bn=1\n"), 2, "amp_sync_bn=1: amp_reduce=ordered in line ",
            "; allowed with it: 0")
    for layer, line in ("[batchnorm]\n", "[batchnorm]"), ("[convolutional]\nbatch_normalize=1\nfilters=8\nsize=1\nxnor=1\n"
                                                          "activation=leaky\n", "[convolutional]"):
        folder = make(root / line / str(len(layer)), SYNCED, changes=(("[maxpool]", layer + "\n[maxpool]"),
                                                                      ("layers=-1, 4", "layers=-1, 5")))
        refused(folder, 2, "amp_sync_bn=1: the batch-norm of layer 4 (%s in line " % line, "; allowed with this layer: 0")


def main():
    processes.skip_without_mpi()
    print("AMP_TEST_SEED=%d" % SEED)
    processes.run_checks(globals(), [check_like_one, check_emulated, check_alone, check_scales, check_cost, check_resumed,
                                     check_map, check_bad_label, check_lost, check_refused])


if __name__ == "__main__":
    main()
