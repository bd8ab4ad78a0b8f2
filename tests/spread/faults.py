"""Several processes of which one is stopped, killed, late or cannot go on, at random moments.

usage: faults.py DARKNET STOCK PLUGIN CHECKOUT FAULTS [--all]

As processes.py; FAULTS is a library that makes faults (faults.c). --all: instead, every rank in its turn.
AMP_TEST_SEED draws ranks and moments; without it the clock does.
"""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
from ends import Ends, check_in_time, ended, ranks_of, wait_until_stopped
from processes import DARKNET, FAST, OPEN_MPI, ORDERED, PLUGIN, STOCK, end, make, pair, start, train

FAULTS = sys.argv[5]
SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
DRAW = random.Random(SEED)
RANKS = 3
TIMEOUT = 4  # amp_rank_timeout
AT_ONCE = 2  # seconds: what nobody has to wait a timeout for
KEYS = ORDERED + "amp_rank_timeout=%d\n" % TIMEOUT
ITERATIONS = 400


def wait_for(process, iteration):
    for line in process.stdout:
        if line.startswith("%d: " % iteration):
            return
    raise AssertionError("ended before iteration %d\n%s" % (iteration, process.stderr.read()))


def speakers(said):
    """Who says that the run ends and what process is the reason. That one has said why in its own words."""
    told = re.findall(r"^darknet-amp: (?:rank (\d) on \S+: )?rank (\d) on \S+ (?:has not|cannot)", said, re.M)
    assert told and all((speaker or "0") != reason for speaker, reason in told), said
    return sorted(int(speaker or 0) for speaker, reason in told)


def check_resumed(folder, said, whole):
    """The last finished step is saved, and training goes on from there as if nothing had been."""
    saved = re.findall(r"The state after iteration (\d+) is saved\. .*: \S*toy.cfg (\S+)\n", said)
    assert len(saved) == 1, said
    assert len(set(speakers(said))) == len(speakers(said)), said
    train(folder, DRAW.choice((0, 2, 4)), saved[0][1])
    assert pair(folder) == pair(whole), said
    return int(saved[0][0])


def whole_run(root, **settings):
    whole = make(root / "whole", ORDERED, iterations=ITERATIONS, **settings)
    train(whole, 0)
    return whole


# ---- a process is lost ----


def stop_one(folder, rank, whole):
    iteration = DRAW.randrange(1, ITERATIONS * 3 // 4)
    print("  rank %d stops after iteration %d" % (rank, iteration))
    process = start(make(folder, KEYS, iterations=ITERATIONS), RANKS)
    wait_for(process, iteration)
    os.kill(ranks_of(process)[rank], signal.SIGSTOP)
    ends = Ends(process, rank)
    said = end(process, 1)[1]
    lost = re.search(r"rank %d on \S+ has not been heard of for 4 s \(amp_rank_timeout\), in iteration (\d+)\." % rank, said)
    assert lost, said
    assert check_resumed(folder, said, whole) in (int(lost[1]) - 1, int(lost[1])), said
    return ends.wait()


def check_stopped(root, ranks=None):
    """A process that gives no sign of life is named, the last finished step is saved, all end."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        check_in_time(root / str(rank), TIMEOUT + 2, stop_one, rank, whole)


def stop_one_alone(folder, rank):
    process = start(make(folder, KEYS, iterations=1000000), RANKS, env=dict(OMPI_MCA_orte_abort_on_non_zero_status="0"))
    wait_for(process, 10)
    pids = ranks_of(process)
    os.kill(pids[rank], signal.SIGSTOP)
    print("  rank %d stops" % rank)
    seconds = Ends(process, rank).wait()
    for pid in pids.values():
        if not ended(pid):
            os.kill(pid, signal.SIGKILL)
    process.kill()  # it waits on, as no rank has taken leave of it
    said = process.communicate()[1]
    assert speakers(said) == [other for other in range(RANKS) if other != rank], said
    return seconds


def check_ends(root, ranks=None):
    """All others end within two seconds of the timeout, each by itself: this mpirun ends nobody."""
    for rank in ranks or [DRAW.randrange(RANKS)]:
        check_in_time(root / str(rank), TIMEOUT + 2, stop_one_alone, rank)


def kill_one(folder, rank, whole):
    iteration = DRAW.randrange(101, ITERATIONS * 3 // 4)
    print("  rank %d is killed after iteration %d" % (rank, iteration))
    process = start(make(folder, KEYS, iterations=ITERATIONS), RANKS)
    wait_for(process, iteration)
    ends = Ends(process, rank)
    os.kill(ranks_of(process)[rank], signal.SIGKILL)
    end(process, 128 + signal.SIGKILL)
    train(folder, DRAW.choice((0, 2, 4)), folder / "backup" / "toy.backup")
    assert pair(folder) == pair(whole), (rank, iteration)
    return ends.wait()


def check_killed(root, ranks=None):
    """The launcher ends the others; the last backup is whole."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        check_in_time(root / str(rank), AT_ONCE, kill_one, rank, whole)


def lose_one(folder, rank, whole, where, how):
    print("  %s to rank %d in %s" % (how.name, rank, where))
    process = start(make(folder, KEYS, iterations=ITERATIONS), RANKS, *["-map"] * where.startswith("network_predict"),
                    env=dict(FAULT=where, LD_PRELOAD=FAULTS))
    threading.Thread(target=process.stdout.read).start()
    while not (folder / "paused").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(.01)
    ends = Ends(process, rank)
    os.kill(ranks_of(process)[rank], how)
    (folder / "go").touch()
    said = process.stderr.read()
    if how == signal.SIGSTOP:
        assert process.wait() == 1, said
        assert "rank %d on " % rank in said and "has not been heard of for 4 s (amp_rank_timeout)" in said, said
        check_resumed(folder, said, whole)
    else:
        assert process.wait() == 128 + signal.SIGKILL, said
        saved = folder / "backup" / "toy.backup"
        train(folder, DRAW.choice((0, 2, 4)), *[saved] * saved.exists())
        assert pair(folder) == pair(whole), said
    return ends.wait()


def check_busy_rank_0(root, ranks=None):
    """The same while rank 0 saves, or measures the mAP, which the others wait for."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        both = "fsync:%d" % DRAW.randrange(5, 15), "network_predict:%d" % DRAW.randrange(1, 8)
        for where in both if ranks else [DRAW.choice(both)]:
            for how, most in (signal.SIGSTOP, TIMEOUT + 2), (signal.SIGKILL, AT_ONCE):
                check_in_time(root / ("%d_%s_%s" % (rank, where, how.name)), most, lose_one, rank, whole, where, how)


# ---- a process cannot go on ----


def split(folder):
    """Gives each rank a folder with all images, which are then files of its own."""
    (folder / "train.txt").write_text("".join("%s\n" % Path(line).name
                                              for line in (folder / "train.txt").read_text().splitlines()))
    for rank in range(RANKS):
        (folder / str(rank)).mkdir()
        for path in folder.glob("image*"):
            os.link(path, folder / str(rank) / path.name)
    return folder


def start_split(folder, program=DARKNET, preload=""):
    command = 'cd $OMPI_COMM_WORLD_RANK; LD_PRELOAD="%s" exec "$0" detector train ../toy.data ../toy.cfg' % preload
    return subprocess.Popen(["mpirun", "-np", str(RANKS), "sh", "-c", command, program], cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **OPEN_MPI))


def take_images(folder, rank):
    process = start_split(split(make(folder, KEYS, iterations=1000000)))
    wait_for(process, DRAW.randrange(1, 100))
    ends = Ends(process)
    for path in (folder / str(rank)).iterdir():
        path.unlink()
    said = end(process, 1)[1]
    assert re.search(r"rank %d on \S+ cannot go on, in iteration \d+: .*image\d+\.(png|txt).*The state after iteration \d+ is "
                     "saved" % rank, said), said
    return ends.wait()


def check_gone(root, ranks=None):
    """An image that one process cannot read: it says so, another one saves, all end."""
    for rank in ranks or [DRAW.randrange(RANKS)]:
        check_in_time(root / str(rank), AT_ONCE, take_images, rank)


def take_memory(folder, rank, whole):
    step = DRAW.randrange(2, 200)
    process = start(make(folder, KEYS, iterations=ITERATIONS), RANKS, program=STOCK,
                    env=dict(FAULT="memory", FAULT_RANK=str(rank), FAULT_STEP=str(step),
                             PRELOAD=FAULTS + ":" + PLUGIN))
    wait_for(process, step - 1)
    ends = Ends(process)
    said = end(process, 1)[1]
    assert re.search(r"rank %d on \S+ cannot go on, in iteration \d+: .*memory" % rank, said), said
    check_resumed(folder, said, whole)
    return ends.wait()


def check_memory(root, ranks=None):
    """The same of memory; and training goes on exactly."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        check_in_time(root / str(rank), AT_ONCE, take_memory, rank, whole)


def check_room(root, ranks=None):
    """The same where the exchange itself wants memory."""
    for rank in ranks or [DRAW.randrange(RANKS)]:
        folder = make(root / str(rank), FAST, iterations=ITERATIONS)
        process = start(folder, RANKS, program=STOCK,
                        env=dict(FAULT="room", FAULT_RANK=str(rank), PRELOAD=FAULTS + ":" + PLUGIN))
        said = end(process, 1)[1]
        assert re.search(r"rank %d on \S+ cannot go on, in iteration 6: out of memory for what the processes exchange"
                         % rank, said), said
        saved = re.findall(r"The state after iteration 5 is saved\. .*: \S*toy.cfg (\S+)\n", said)
        assert len(saved) == 1, said
        train(folder, RANKS, saved[0])


def check_late(root):
    """A process that only takes long is named again and again, and the run goes on."""
    whole = split(make(root / "whole", ORDERED, iterations=20))
    end(start_split(whole, STOCK, PLUGIN))
    folder = split(make(root / "late", ORDERED + "amp_rank_timeout=3\n", iterations=20))
    label = folder / "1" / "image003.txt"
    text = label.read_text()
    label.unlink()
    os.mkfifo(label)
    pipe = os.open(label, os.O_RDWR)  # its reader now waits for text, and not for a writer
    process = start_split(folder, STOCK, PLUGIN)
    threading.Thread(target=process.stdout.read).start()
    told = next((line for line in process.stderr if "waiting for " in line), "")
    assert re.search(r"waiting for \d+ s: rank 1 on \S+ is alive, and loads images after iteration \d+", told), told
    label.unlink()
    label.write_text(text)
    os.write(pipe, text.encode())
    os.close(pipe)
    said = process.stderr.read()
    assert process.wait() == 0, said
    assert pair(folder) == pair(whole)


# ---- without beats ----


def stop_without_threads(folder):
    process = start(make(folder, FAST + "amp_rank_timeout=3\n", iterations=1000000), RANKS, program=STOCK,
                    env=dict(FAULT="threads", PRELOAD=FAULTS + ":" + PLUGIN))
    wait_for(process, 5)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    ends = Ends(process, 1)
    said = end(process, 1)[1]
    assert said.count("this MPI has no MPI_THREAD_MULTIPLE") == 1, said
    assert re.search(r"another process has not come to an exchange for 3 s .*The state after iteration \d+ is saved",
                     said), said
    return ends.wait()


def check_without_threads(root):
    """An MPI without MPI_THREAD_MULTIPLE: who waits too long ends the run, which is said at the start."""
    check_in_time(root, 3 + 2, stop_without_threads)


def stop_in(folder, rank, where, words):
    print("  rank %d stops in %s" % (rank, where))
    process = start(make(folder, KEYS), RANKS, program=STOCK,
                    env=dict(FAULT=where, FAULT_RANK=str(rank), PRELOAD=FAULTS + ":" + PLUGIN))
    wait_until_stopped(process, rank)
    ends = Ends(process, rank)
    said = end(process, 1)[1]
    assert words.replace("%d", str(rank)) in said, said
    assert (folder / "backup" / "toy_final.weights").exists() == (where == "MPI_Finalize"), said
    return ends.wait()


def check_start_and_end(root, ranks=None):
    """A process that stops before its first beat, or after the last: all end, and what is saved stays."""
    said_in = dict(MPI_Comm_idup="another process has not come to the start of MPI for 4 s (amp_rank_timeout)",
                   MPI_Get_library_version="rank %d on an unknown host has not been heard of for 4 s (amp_rank_timeout), "
                   "in iteration 0",
                   MPI_Finalize="MPI has not come to its end for 4 s (amp_rank_timeout): another process, or the launcher, "
                   "does not answer")
    for rank in ranks or [DRAW.randrange(RANKS)]:
        for where, words in said_in.items():
            check_in_time(root / where / str(rank), TIMEOUT + 2, stop_in, rank, where, words)


def check_own_mpi(root):
    """A program that runs MPI itself may let the others wait for its network as long as it likes."""
    said = train(make(root, KEYS), RANKS, program=STOCK, env=dict(FAULT="own", PRELOAD=FAULTS + ":" + PLUGIN))
    assert "MPI_THREAD_MULTIPLE" not in said, said


# ---- one computes wrong ----


def check_drift(root):
    """Weights that are no longer the same everywhere end the run before they are saved: at iteration 100, or the last."""
    for last, iterations in (100, 1000000), (50, 50):
        folder = make(root / str(last), FAST, iterations=iterations)
        process = start(folder, RANKS, program=STOCK, env=dict(FAULT="drift", PRELOAD=FAULTS + ":" + PLUGIN))
        out, said = end(process, 1)
        assert re.search(r"the weights of rank 1 on \S+ are no longer those of rank 0 on \S+: one of them computes wrong",
                         said), said
        assert not any((folder / "backup").iterdir()), said
        assert "\n%d: " % (last - 1) in out and "\n%d: " % last not in out, out[-300:]


def main():
    processes.skip_without_mpi()
    print("AMP_TEST_SEED=%d" % SEED)
    by_rank = [check_stopped, check_ends, check_killed, check_busy_rank_0, check_gone, check_memory, check_room,
               check_start_and_end]
    once = [check_late, check_without_threads, check_own_mpi, check_drift]
    if "--all" in sys.argv:
        processes.run_checks(globals(), by_rank, range(RANKS))
    else:
        processes.run_checks(globals(), by_rank + once)


if __name__ == "__main__":
    main()
