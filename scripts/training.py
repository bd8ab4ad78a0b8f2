"""What scripts/demo.py and scripts/compare share: data sets, running Darknet, what it prints.

Only the standard library is needed. Errors are BenchError; see bench_lib.exits.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from bench_lib import BenchError, parse_json

# Darknet finds an image's label file by replacing, in this order, the first of each of these.
LABEL_RULE = [("images", "labels"), ("JPEGImages", "labels"), ("raw", "labels"), (".jpg", ".txt"),
              (".png", ".txt"), (".JPG", ".txt"), (".JPEG", ".txt")]


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


# ---- the data set ----


def read_lines(path):
    if not path.is_file():
        raise BenchError(f"{path} is missing")
    text = path.read_text(encoding="utf-8", errors="surrogateescape")  # names may be any bytes
    return [line.strip() for line in text.splitlines() if line.strip()]


def the_only(folder, pattern):
    """The one file of that pattern in the folder, None where there is none."""
    found = sorted(folder.glob(pattern))
    if len(found) > 1:
        raise BenchError(f"{folder} holds {len(found)} {pattern} files, expected one: "
                         f"{', '.join(path.name for path in found)}")
    return found[0] if found else None


def read_data_file(data, base, names="names"):
    """(train list, valid list, names file) of a data file, whose relative paths begin at base. names: its key."""
    lines = [line for line in read_lines(data) if line[0] not in "#;"]
    keys = dict("".join(line.split()).split("=", 1) for line in lines if "=" in line)
    missing = {"train", "valid", names} - keys.keys()
    if missing:
        raise BenchError(f"{data}: no {', '.join(sorted(missing))}")
    return tuple(base / keys[key] for key in ("train", "valid", names))


def find_set(folder, names="names"):
    """(train list, valid list, names file) of a folder that holds a set. names: a data file's key."""
    data = the_only(folder, "*.data")
    if data is not None:
        return read_data_file(data, folder, names)
    names = the_only(folder, "*.names")
    if names is None:
        raise BenchError(f"{folder} holds neither a *.data nor a *.names file")
    return folder / "train.txt", folder / "valid.txt", names


def label_path(image):
    label = str(image)
    for old, new in LABEL_RULE:
        label = label.replace(old, new, 1)
    return Path(label)


def resolve(listed, base, labelled):
    """The images of a list, relative to base, as absolute paths. labelled: each must have its label file, where
    stock Darknet looks for it."""
    images = [base / line for line in read_lines(listed)]
    if not images:
        raise BenchError(f"{listed} is empty")
    for kind, paths in (("image", images), ("label file", map(label_path, images if labelled else ()))):
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise BenchError(f"{listed}: {kind} {missing[0]} is missing"
                             + (f", and {len(missing) - 1} more" if len(missing) > 1 else ""))
    return images


def read_set(files, base, labelled=True):
    """{"train": images, "valid": images, "names": class names} of what the two above return."""
    train, valid, names = files
    return {"names": read_lines(names), "train": resolve(train, base, labelled),
            "valid": resolve(valid, base, labelled)}


LISTS = {"train": "train.txt", "valid": "valid.txt", "names": "set.names"}


def write_lists(found, folder):
    """The resolved set, one file for each list."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, name in LISTS.items():
        (folder / name).write_text("".join(f"{line}\n" for line in found[key]), encoding="utf-8",
                                   errors="surrogateescape")


def data_file(classes, lists):
    """The text of a data file for a run. Its paths are relative, because Darknet drops blanks from
    the paths in it."""
    return (f"classes={classes}\n" + "".join(f"{key}={lists}/{LISTS[key]}\n" for key in LISTS)
            + "backup=.\n")


# ---- Darknet ----


def run_darknet(program, arguments, folder, log, take=lambda line, pid: None, append=False):
    """Runs Darknet in `folder`, all its output into folder/log and line by line to `take`. It dies
    with this process. Returns its peak memory in MiB."""
    # stdbuf: Darknet's lines arrive as they are printed, not in blocks.
    command = ["setpriv", "--pdeathsig", "KILL", "stdbuf", "-oL", str(program), *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, errors="replace")
    try:
        with open(folder / log, "a" if append else "w") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                take(line, process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        words = " ".join(str(word) for word in arguments)
        fail_with_log(folder / log, f"darknet {words}: exit status {process.returncode}")
    return usage.ru_maxrss / 1024


def fail_with_log(log, message):
    tail = log.read_text(errors="replace").splitlines()[-15:]
    raise BenchError(f"{message}; the end of {log}:\n" + "\n".join(f"    {line}" for line in tail))


# ---- the device ----

NO_GPU = "darknet-amp: no usable GPU"  # how the plugin says that a GPU build runs on the CPU
SMALLEST_CFG = """[net]
batch=1
width=8
height=8
channels=3
[convolutional]
filters=8
size=1
activation=linear
[softmax]
"""


def gpu_of(program, options=()):
    """The GPU that Darknet computes on with these options, as CUDA names it; None: the CPU. It is what
    `amp profile` ran a net of two layers on. Passes on why a GPU build does not use one."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.cfg").write_text(SMALLEST_CFG)
        command = [str(program), "amp", "profile", "net.cfg", "--json", *options]
        asked = subprocess.run(command, cwd=folder, text=True, errors="replace", capture_output=True)
    said = asked.stderr.strip().splitlines()
    if asked.returncode:
        raise BenchError(f"{' '.join(command)}: exit status {asked.returncode}; if that is the GPU's fault, "
                         "--preset cpu does without it\n" + "\n".join(said[-5:]))
    for line in said:
        if line.startswith(NO_GPU):
            print(line, flush=True)
    return parse_json(asked.stdout, "amp profile").get("device")


def device_memory_of(process):
    """MiB that a process holds on GPUs, None where that cannot be known."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(",") for line in asked.stdout.splitlines()]
    used = [int(row[1]) for row in rows if len(row) == 2 and row[0].strip() == str(process)
            and row[1].strip().isdigit()]
    return sum(used) if used else None


class DeviceMemory:
    """The most that a process held on GPUs: peak in MiB, None where that cannot be known."""

    EVERY = 10  # seconds

    def __init__(self):
        self.peak, self.due = None, 0

    def look(self, process):
        """To be called often; looks now and then."""
        if time.monotonic() < self.due:
            return
        memory = device_memory_of(process)
        if memory is not None:
            self.peak = max(memory, self.peak or 0)
        self.due = time.monotonic() + self.EVERY
