"""When the processes of a launcher end after something went wrong, for tests."""

import math
import os
import subprocess
import threading
import time
from pathlib import Path

MORE = 3  # seconds, for a busy machine
LONG = 60


def rank_of(pid):
    try:
        words = Path("/proc/%s/environ" % pid).read_bytes().split(b"\0")
    except OSError:
        return None
    found = [word for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
    return int(found[0].split(b"=")[1]) if found else None


def ranks_of(process):
    """Process numbers by rank."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    return {rank_of(pid): int(pid) for pid in found}


def state_of(pid):
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def ended(pid):
    return state_of(pid) in "ZX"


def wait_until_stopped(process, rank):
    """Until it has stopped itself."""
    while process.poll() is None:
        ranks = ranks_of(process)
        if rank in ranks and state_of(ranks[rank]) == "T":
            return
        time.sleep(.01)
    raise AssertionError("rank %d has not stopped\n%s" % (rank, process.stderr.read()))


class Ends(threading.Thread):
    """Notes from now on when each process ends, but the one that is lost."""

    def __init__(self, process, lost=None):
        super().__init__()
        self.left = {rank: pid for rank, pid in ranks_of(process).items() if rank != lost}
        self.seconds, self.since = {}, time.monotonic()
        self.start()

    def run(self):
        while self.left and time.monotonic() - self.since < LONG:
            for rank in [rank for rank, pid in self.left.items() if ended(pid)]:
                self.seconds[rank] = time.monotonic() - self.since
                del self.left[rank]
            time.sleep(.01)

    def wait(self):
        """Seconds by rank."""
        self.join()
        assert self.seconds or self.left, "nothing to wait for"
        return {**self.seconds, **{rank: math.inf for rank in self.left}}


def check_in_time(folder, most, run, *arguments):
    """run(a folder, *arguments) makes a fault and says when each process ended. On a busy machine a thread may get no core for
    long, so MORE is added to the seconds allowed, and the best of three attempts counts: what hangs is as late in all."""
    for attempt in range(3):
        seconds = run(folder / str(attempt), *arguments)
        print("  ended after %s s" % ", ".join("%.1f" % seconds[rank] for rank in sorted(seconds)), flush=True)
        if max(seconds.values()) < most + MORE:
            return
    raise AssertionError("%s: processes ended after %s s, allowed: %g" % (folder, seconds, most))
