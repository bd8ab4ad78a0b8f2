"""Several processes on two hosts, and the link between these is slow, lossy or cut.

usage: links.py DARKNET STOCK PLUGIN CHECKOUT

As processes.py. A host is a network namespace with a host name of its own; mpirun's remote shell is a script. The
link is a wire between two taps, which this program carries frame by frame: so no kernel needs to have netem.
AMP_TEST_SEED draws moments and losses; without it the clock does. Needs root.
"""

import fcntl
import heapq
import os
import random
import re
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
from processes import DARKNET, OPEN_MPI, ORDERED, end, make, pair, train

SEED = int(os.environ.get("AMP_TEST_SEED", time.time_ns() // 1000 % 1000000))
DRAW = random.Random(SEED)
TIMEOUT = 4  # amp_rank_timeout
MORE = 4  # seconds, as others use the cores and a process is looked for ten times a second; what hangs is later
ITERATIONS = 400
HOSTS = ["amp-%d-%s" % (os.getpid(), name) for name in "ab"]
# In place of ssh: HOST COMMAND...
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
"""


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError("ip %s: %s" % (" ".join(words), (done.stderr or done.stdout).strip()))


def open_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH", name.encode(), 0x0002 | 0x1000))  # TUNSETIFF: a tap, bare frames
    return tap


class Wire:
    """Between two hosts, for `with`."""

    def __init__(self, delay=0, loss=0):
        self.delay, self.loss, self.cut, self.ends = delay, loss, False, False
        self.lost = 0
        self.taps = []

    def __enter__(self):
        try:
            for number, host in enumerate(HOSTS):
                tap = "amp%d%s" % (os.getpid(), host[-1])
                self.taps.append(open_tap(tap))
                ip("netns", "add", host)
                ip("link", "set", tap, "netns", host)
                ip("-n", host, "link", "set", "lo", "up")
                ip("-n", host, "addr", "add", "10.77.0.%d/24" % (number + 1), "dev", tap)
                ip("-n", host, "link", "set", tap, "up")
        except OSError:
            self.remove()
            raise
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()
        self.remove()

    def remove(self):
        for host in HOSTS:
            left = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split()
            for pid in left:
                try:
                    os.kill(int(pid), 9)
                except ProcessLookupError:
                    pass
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
        for tap in self.taps:
            os.close(tap)

    def carry(self):
        draw = random.Random(SEED)
        under_way, count = [], 0
        while not self.ends:
            wait = min(.1, max(0, under_way[0][0] - time.monotonic())) if under_way else .1
            for tap in select.select(self.taps, [], [], wait)[0]:
                try:
                    frame = os.read(tap, 65536)
                except BlockingIOError:
                    continue
                if self.cut or draw.random() < self.loss:
                    self.lost += 1
                    continue
                count += 1
                to = self.taps[tap == self.taps[0]]
                heapq.heappush(under_way, (time.monotonic() + self.delay, count, to, frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, frame = heapq.heappop(under_way)
                try:
                    os.write(to, frame)
                except OSError:  # its queue is full
                    self.lost += 1


def start_on_hosts(folder, first, second):
    """So many processes on either host, each host with a backup folder of its own; mpirun is on the first. Errors
    and status of a rank go to files, as those of a host that is cut off do not arrive."""
    for host in HOSTS:
        (folder / host).mkdir()
        (folder / (host + ".data")).write_text((folder / "toy.data").read_text().replace(
            str(folder / "backup"), str(folder / host)))
    agent = folder / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    command = ["mpirun", "--mca", "plm_rsh_agent", str(agent), "--host",
               "%s:%d,%s:%d" % (HOSTS[0], first, HOSTS[1], second), "sh", "-c",
               "'%s detector train $(hostname).data toy.cfg 2>said.$OMPI_COMM_WORLD_RANK; "
               "echo $? >status.$OMPI_COMM_WORLD_RANK'" % DARKNET]
    return subprocess.Popen([str(agent), HOSTS[0], *command], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ, **OPEN_MPI))


def pair_of(backup):
    return [(backup / ("toy_final.weights" + kind)).read_bytes() for kind in ("", ".amp")]


def check_slow(root):
    """Late and lost frames change nothing that is trained."""
    whole = make(root / "whole", ORDERED)
    train(whole, 0)
    for name, delay, loss in ("delayed", .005, 0), ("lossy", 0, .01):
        folder = make(root / name, ORDERED)
        with Wire(delay, loss) as wire:
            since = time.monotonic()
            end(start_on_hosts(folder, 1, 2))
            print("  %s: %d frames lost, %.1f s" % (name, wire.lost, time.monotonic() - since))
            assert bool(wire.lost) == bool(loss), wire.lost
        assert pair_of(folder / HOSTS[0]) == pair(whole), name


def training():
    """Processes that train on either host."""
    for host in HOSTS:
        for pid in subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split():
            try:
                if Path("/proc/%s/comm" % pid).read_text() == "darknet\n":
                    yield int(pid)
            except FileNotFoundError:
                pass


def check_cut(root):
    """Each side names a process of the other one, saves its last finished step in its own folder, and ends."""
    whole = make(root / "whole", ORDERED, iterations=ITERATIONS)
    train(whole, 0)
    folder = make(root / "cut", ORDERED + "amp_rank_timeout=%d\n" % TIMEOUT, iterations=ITERATIONS)
    iteration = DRAW.randrange(1, ITERATIONS * 3 // 4)
    with Wire() as wire:
        process = start_on_hosts(folder, 1, 2)
        assert any(line.startswith("%d: " % iteration) for line in process.stdout), process.stderr.read()
        wire.cut = True
        since = time.monotonic()
        statuses = [folder / ("status.%d" % rank) for rank in range(3)]
        while any(training()) or not all(path.exists() and path.read_text() for path in statuses):
            time.sleep(.1)
        took = time.monotonic() - since
        print("  cut after iteration %d: all ended after %.1f s" % (iteration, took))
        assert took < TIMEOUT + 2 + MORE, took
        assert [path.read_text() for path in statuses] == ["1\n"] * 3
    process.communicate()  # mpirun waited for the host that was cut off, and went with its own
    for rank, (other, place) in enumerate((("[12]", HOSTS[1]), ("0", HOSTS[0]))):
        said = (folder / ("said.%d" % rank)).read_text()
        saved = re.search(r"rank %s on %s has not been heard of for %d s \(amp_rank_timeout\), in iteration (\d+)\. .*"
                          r"The state after iteration (\d+) is saved\. .*: \S*toy.cfg (\S+)\n" % (other, place, TIMEOUT),
                          said, re.S)
        assert saved and int(saved[2]) in (int(saved[1]) - 1, int(saved[1])), said
        train(folder, DRAW.choice((0, 2, 4)), saved[3])
        assert pair(folder) == pair(whole), said


def skip_without_hosts():
    try:
        with Wire():
            pass
    except OSError as error:
        print("SKIPPED links between hosts: %s; needs root, /dev/net/tun and network namespaces" % error)
        sys.exit(77)


def main():
    processes.skip_without_mpi()
    skip_without_hosts()
    print("AMP_TEST_SEED=%d" % SEED)
    processes.run_checks(globals(), [check_slow, check_cut])


if __name__ == "__main__":
    main()
