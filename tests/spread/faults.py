"""Several processes of which one is stopped, killed, late or cannot go on, at random moments.

usage: faults.py DARKNET STOCK PLUGIN CHECKOUT FAULTS [--all]

As processes.py; FAULTS is a library that makes faults (faults.c). --all: instead, every rank in its turn.
AMP_TEST_SEED draws ranks and moments; without it the clock does.
"""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
from processes import DARKNET, FAST, OPEN_MPI, ORDERED, PLUGIN, STOCK, end, make, pair, rank_of, start, train

FAULTS = sys.argv[5]
SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
DRAW = random.Random(SEED)
RANKS = 3
TIMEOUT = 4  # amp_rank_timeout
MORE = 3  # seconds, for a busy machine
KEYS = ORDERED + "amp_rank_timeout=%d\n" % TIMEOUT
ITERATIONS = 400


def ranks_of(process):
    """Process numbers by rank."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    return {rank_of(pid): int(pid) for pid in found}


def wait_for(process, iteration):
    for line in process.stdout:
        if line.startswith("%d: " % iteration):
            return
    raise AssertionError("ended before iteration %d\n%s" % (iteration, process.stderr.read()))


def check_resumed(folder, said, whole):
    """The last finished step is saved, and training goes on from there as if nothing had been."""
    saved = re.findall(r"The state after iteration (\d+) is saved\. .*: \S*toy.cfg (\S+)\n", said)
    assert len(saved) == 1, said
    train(folder, DRAW.choice((0, 2, 4)), saved[0][1])
    assert pair(folder) == pair(whole), said
    return int(saved[0][0])


def whole_run(root, **settings):
    whole = make(root / "whole", ORDERED, iterations=ITERATIONS, **settings)
    train(whole, 0)
    return whole


def check_stopped(root, ranks=None):
    """A process that gives no sign of life is named, the last finished step is saved, all end."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        iteration = DRAW.randrange(1, ITERATIONS * 3 // 4)
        print("  rank %d stops after iteration %d" % (rank, iteration))
        folder = make(root / str(rank), KEYS, iterations=ITERATIONS)
        process = start(folder, RANKS)
        wait_for(process, iteration)
        os.kill(ranks_of(process)[rank], signal.SIGSTOP)
        since = time.monotonic()
        said = end(process, 1)[1]
        print("  ended after %.1f s" % (time.monotonic() - since))
        lost = re.search(r"rank %d on \S+ has not been heard of for 4 s \(amp_rank_timeout\), in iteration (\d+)\."
                         % rank, said)
        assert lost, said
        assert check_resumed(folder, said, whole) in (int(lost[1]) - 1, int(lost[1])), said


def ends_of(process, rank):
    """Stops a rank. Seconds until each of the others has ended by itself."""
    ranks, ends = ranks_of(process), {}
    os.kill(ranks[rank], signal.SIGSTOP)
    since = time.monotonic()
    while len(ends) < RANKS - 1 and time.monotonic() - since < 60:
        for r, pid in ranks.items():
            if r != rank and r not in ends and ended(pid):
                ends[r] = time.monotonic() - since
        time.sleep(.01)
    for pid in ranks.values():
        if not ended(pid):
            os.kill(pid, signal.SIGKILL)
    return ends


def ended(pid):
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def check_ends(root, ranks=None):
    """All others end within two seconds of the timeout, each by itself: this mpirun ends nobody. On a busy machine a
    thread may get no core for long, so MORE is added, and the best of three attempts counts: what hangs is as late in all."""
    for rank in ranks or [DRAW.randrange(RANKS)]:
        for attempt in range(3):
            folder = make(root / ("%d_%d" % (rank, attempt)), KEYS, iterations=1000000)
            process = start(folder, RANKS, env=dict(OMPI_MCA_orte_abort_on_non_zero_status="0"))
            wait_for(process, 10)
            ends = ends_of(process, rank)
            process.kill()  # it waits on, as no rank has taken leave of it
            process.communicate()
            print("  rank %d stops: others end after %s s" % (rank, ends))
            if len(ends) == RANKS - 1 and max(ends.values()) < TIMEOUT + 2 + MORE:
                break
        else:
            raise AssertionError("rank %d stops, amp_rank_timeout=%d: others end after %s s" % (rank, TIMEOUT, ends))


def check_killed(root, ranks=None):
    """The launcher ends the others; the last backup is whole."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        iteration = DRAW.randrange(101, ITERATIONS * 3 // 4)
        print("  rank %d is killed after iteration %d" % (rank, iteration))
        folder = make(root / str(rank), KEYS, iterations=ITERATIONS)
        process = start(folder, RANKS)
        wait_for(process, iteration)
        os.kill(ranks_of(process)[rank], signal.SIGKILL)
        since = time.monotonic()
        end(process, 128 + signal.SIGKILL)
        print("  ended after %.1f s" % (time.monotonic() - since))
        train(folder, DRAW.choice((0, 2, 4)), folder / "backup" / "toy.backup")
        assert pair(folder) == pair(whole), (rank, iteration)


def check_busy_rank_0(root, ranks=None):
    """The same while rank 0 saves, or measures the mAP, which the others wait for."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        both = "fsync:%d" % DRAW.randrange(5, 15), "network_predict:%d" % DRAW.randrange(1, 8)
        for where in both if ranks else [DRAW.choice(both)]:
            signal_number = DRAW.choice((signal.SIGSTOP, signal.SIGKILL))
            print("  %s to rank %d in %s" % (signal_number.name, rank, where))
            folder = make(root / ("%d_%s" % (rank, where)), KEYS, iterations=ITERATIONS)
            process = start(folder, RANKS, *["-map"] * where.startswith("network_predict"),
                            env=dict(FAULT=where, LD_PRELOAD=FAULTS))
            threading.Thread(target=process.stdout.read).start()
            while not (folder / "paused").exists():
                assert process.poll() is None, process.stderr.read()
                time.sleep(.01)
            os.kill(ranks_of(process)[rank], signal_number)
            (folder / "go").touch()
            said = process.stderr.read()
            if signal_number == signal.SIGSTOP:
                assert process.wait() == 1, said
                assert "rank %d on " % rank in said and "has not been heard of for 4 s (amp_rank_timeout)" in said, said
                check_resumed(folder, said, whole)
            else:
                assert process.wait() == 128 + signal.SIGKILL, said
                saved = folder / "backup" / "toy.backup"
                train(folder, DRAW.choice((0, 2, 4)), *[saved] * saved.exists())
                assert pair(folder) == pair(whole), said


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


def check_gone(root, ranks=None):
    """An image that one process cannot read: it says so, another one saves, all end."""
    for rank in ranks or [DRAW.randrange(RANKS)]:
        folder = split(make(root / str(rank), KEYS, iterations=1000000))
        process = start_split(folder)
        wait_for(process, DRAW.randrange(1, 100))
        for path in (folder / str(rank)).iterdir():
            path.unlink()
        said = end(process, 1)[1]
        assert re.search(r"rank %d on \S+ cannot go on, in iteration \d+: .*image\d+\.(png|txt).*The state after iteration "
                         r"\d+ is saved" % rank, said), said


def check_memory(root, ranks=None):
    """The same of memory; and training goes on exactly."""
    whole = whole_run(root)
    for rank in ranks or [DRAW.randrange(RANKS)]:
        folder = make(root / str(rank), KEYS, iterations=ITERATIONS)
        process = start(folder, RANKS)
        wait_for(process, DRAW.randrange(1, 200))
        pid = ranks_of(process)[rank]
        size = int(Path("/proc/%d/statm" % pid).read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size, size))
        said = end(process, 1)[1]
        assert re.search(r"rank %d on \S+ cannot go on, in iteration \d+: .*memory" % rank, said), said
        check_resumed(folder, said, whole)


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


def check_without_threads(root):
    """An MPI without MPI_THREAD_MULTIPLE: who waits too long ends the run, which is said at the start."""
    folder = make(root / "stopped", FAST + "amp_rank_timeout=3\n", iterations=1000000)
    process = start(folder, RANKS, program=STOCK, env=dict(FAULT="threads", PRELOAD=FAULTS + ":" + PLUGIN))
    wait_for(process, 5)
    os.kill(ranks_of(process)[1], signal.SIGSTOP)
    said = end(process, 1)[1]
    assert said.count("this MPI has no MPI_THREAD_MULTIPLE") == 1, said
    assert re.search(r"another process has not come to an exchange for 3 s .*The state after iteration \d+ is saved",
                     said), said


def check_start_and_end(root, ranks=None):
    """A process that stops before its first beat, or after the last: all end, and what is saved stays."""
    said_in = dict(MPI_Comm_idup="another process has not come to the start of MPI for 4 s (amp_rank_timeout)",
                   MPI_Get_library_version="rank %d on an unknown host has not been heard of for 4 s (amp_rank_timeout), "
                   "in iteration 0",
                   MPI_Finalize="MPI has not come to its end for 4 s (amp_rank_timeout): another process, or the launcher, "
                   "does not answer")
    for rank in ranks or [DRAW.randrange(RANKS)]:
        for where, words in said_in.items():
            print("  rank %d stops in %s" % (rank, where))
            folder = make(root / where / str(rank), KEYS)
            said = end(start(folder, RANKS, program=STOCK,
                             env=dict(FAULT=where, FAULT_RANK=str(rank), PRELOAD=FAULTS + ":" + PLUGIN)), 1)[1]
            assert words.replace("%d", str(rank)) in said, said
            assert (folder / "backup" / "toy_final.weights").exists() == (where == "MPI_Finalize"), said


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
    once = [check_late, check_without_threads, check_drift]
    if "--all" in sys.argv:
        processes.run_checks(globals(), by_rank, range(RANKS))
    else:
        processes.run_checks(globals(), by_rank + once)


if __name__ == "__main__":
    main()
