"""scripts/gpu-check.sh without a GPU: one line and exit status 77; its stages with stand-ins for the
programs; and its report from canned stages.

usage: gpu_check.py ROOT
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_report


def test_no_gpu():
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--quick"], text=True, capture_output=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 77, done
    assert len(done.stdout.splitlines()) == 1 and "no NVIDIA GPU" in done.stdout, done
    assert done.stderr == "", done


def test_arguments():
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--fast"], text=True, capture_output=True)
    assert done.returncode == 1 and '"--fast"' in done.stderr, done
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--budget", "9m"], text=True, capture_output=True)
    assert done.returncode == 1 and "--budget 9m: not a number" in done.stderr, done


def test_names():
    """The conformance programs of convolutions and of image gradients have the tests that gpu-stage.sh names."""
    stage, *programs = ((ROOT / path).read_text() for path in
                        ("scripts/gpu-stage.sh", "tests/kernels/conv.c", "tests/kernels/image_gradient.c"))
    tests = re.findall(r"AMP_TEST\((\w+)\)", "".join(programs))
    named = re.findall(r"\bconv_\w+", stage)
    assert len(named) > 5 and "conv_backward_summed" in named, named
    assert [name for name in named if not any(name in test for test in tests)] == [], tests


def make_executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


SANITIZER = """#!/bin/sh
[ $1 != --help ] || exec echo '  --kernel-name arg'
echo ========= $AMPK_CUDA_IMAGE_FORWARD $*
"""


def stand_ins(folder):
    """Binaries that do nothing, but one that fails, also under the sanitizer; an nvidia-smi that finds a
    GPU."""
    make_executable(folder / "path/nvidia-smi", "#!/bin/sh\necho NVIDIA H200\n")
    make_executable(folder / "path/compute-sanitizer", SANITIZER + "case $* in *_copy*) exit 9;; esac\n")
    make_executable(folder / "path/ldd", f"""#!/bin/sh
[ ! -e {folder}/missing ] || echo "$@" | grep -q "$(cat {folder}/missing)" || exit 0
[ ! -e {folder}/missing ] || echo 'libcudnn.so.9 => not found'
""")
    for name in ("bin/bench_step", "bin/darknet", "lib/libdarknet.so", "tests/gpu_leaky_slope"):
        make_executable(folder / "binaries" / name, "#!/bin/sh\necho $AMPK_CUDA_UNTIMED of ${0##*/}\n")
    make_executable(folder / "binaries/tests/gpu_device_properties",
                    '#!/bin/sh\necho \'{"deviceName": "NVIDIA H200"}\'\n')
    make_executable(folder / "binaries/tests/test_conformance_gpu_copy",
                    "#!/bin/sh\necho this one is broken\nexit 1\n")
    make_executable(folder / "binaries/tests/test_conformance_gpu_conv", """#!/bin/sh
[ "$1" != --list ] || exec printf '%s\\n' conv_bias conv_backward_more conv_backward conv_forward
ways=$AMPK_CUDA_SIDE_STREAM,$AMPK_CUDA_EPILOGUE_SUMS,$AMPK_CUDA_GRADIENT_SUMS,$AMPK_CUDA_IMAGE_FORWARD
echo "$AMPK_CUDA_UNTIMED,$ways: conv $1"
[ "$ways" != ,1,, ] || [ ! -e ${0%/*}/wrong_sums ] || exit 1
""")


def check_with(folder, *arguments, binaries=None, more=(), stdout=subprocess.PIPE):
    """What it said and its exit status, and the stages of the one report."""
    environment = {**os.environ, "PATH": f"{folder}/path:{os.environ['PATH']}"}
    environment.pop("HOME", None)
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run(["sh", ROOT / "scripts/gpu-check.sh", *arguments, "--binaries",
                           binaries or folder / "binaries", "--out", folder / "out", *more], text=True,
                          stdout=stdout, stderr=subprocess.PIPE, env=environment)
    found = [json.loads(path.read_text()) for path in (folder / "out").glob("h200-*.json")]
    assert len(found) < 2, found
    return done, {stage["name"]: stage["result"] for stage in found[0]["stages"]} if found else None


def log_of(folder):
    """What each stage said."""
    (log,) = (folder / "out").glob("h200-*.log")
    parts = re.split(r"(?m)^==== ([a-z-]+)\n", log.read_text())[1:]
    return dict(zip(parts[::2], parts[1::2]))


def test_stages(folder):
    stand_ins(folder)
    done, stages = check_with(folder, "--stages", "device-properties,conformance,engines,loss-curves")
    assert done.returncode == 1, done
    assert stages == {"device-properties": "pass", "conformance": "FAIL", "loss-curves": "FAIL",
                      "engines": "pass"}, (stages, done)
    said = log_of(folder)
    assert "this one is broken" in said["conformance"], said
    # Each way by itself: one that is wrong does not hide the others.
    ways = ("\nconv\n1,,,,: conv \nside-stream\n1,1,,,: conv conv_backward\n"
            "epilogue-sums\n1,,1,,: conv conv_forward\n"
            "gradient-sums\n1,,,1,: conv conv_backward_summed\n"
            "image-forward\n1,,0,,1: conv conv_forward_of\ncopy\n")
    assert ways in said["conformance"], said
    assert said["conformance"].endswith(": 15 without an error, 3 with errors\n\n"), said
    names = [line for line in said["engines"].splitlines() if "conv " in line]  # by timed plans
    assert names == [f",,,,: conv {name}" for name in ("conv_backward", "conv_forward", "conv_bias")], said
    assert "2 failures, 0 cut off" in done.stdout, done
    done, _ = check_with(folder, "--stages", "benchmark")
    assert done.returncode == 1 and 'no stage "benchmark"' in done.stderr, done
    (folder / "binaries/tests/wrong_sums").touch()
    check_with(folder, "--stages", "conformance")
    assert "epilogue-sums: exit status 1\ngradient-sums\n" in log_of(folder)["conformance"], log_of(folder)


EVERY_STAGE = ["device-properties", "conformance", "bench", "invariants", "loss-curves", "processes", "profile",
               "memcheck", "racecheck", "engines", "leaky-slope"]


def test_all_stages(folder):
    """What shows most comes first; an argument for bench-gpu replaces the usual one."""
    stand_ins(folder)
    done, stages = check_with(folder, "--budget", "1020", more=["--", "--models", "small160"])
    assert list(stages) == EVERY_STAGE and "left out" not in done.stdout, (stages, done)
    assert done.returncode == 1 and "gpu-check" not in done.stderr, done
    assert "small160, batch 16: fp16 failed" in done.stdout, done
    assert "small160, batch 16: torch-graphs failed" not in done.stdout, done  # not ours
    assert "small160, batch 16: fixed failed" in done.stdout, done


def seconds_of_plan(said):
    line = next(line for line in said.splitlines() if line.startswith("plan, in seconds by estimate: "))
    stages, total, budget = re.fullmatch(r"plan, .*?: (.*); (\d+) of (\d+)", line).groups()
    planned = {name: int(seconds) for name, seconds in (part.split() for part in stages.split(", "))}
    assert sum(planned.values()) == int(total), line
    return planned, int(total), int(budget)


def test_plan(folder):
    """The usual plan fits nine minutes with a fifth to spare; what does not fit is named with its command."""
    stand_ins(folder)
    (folder / "kept.plans").write_text("darknet-amp plans, version 1\n0\tkey\tvalue\n")
    done, stages = check_with(folder, "--plans", folder / "kept.plans", more=["--", "--models", "small160"])
    planned, total, budget = seconds_of_plan(done.stdout)
    assert total <= .8 * budget and budget <= 540, done.stdout
    out = [name for name in EVERY_STAGE if name not in planned]
    assert [name for name in stages if stages[name] == "skipped"] == out and out, (stages, planned)
    (plans,) = (folder / "out").glob("*.plans")
    command = (f"sh scripts/gpu-check.sh --plans {plans} --binaries {folder}/binaries --out {folder}/out --stages "
               + ",".join(out))
    assert f"left out: {' '.join(out)}; they run with\n    {command}\n" in done.stdout, done.stdout
    (record,) = (folder / "out").glob("h200-*.json")
    reasons = {stage["name"]: stage["reason"] for stage in json.loads(record.read_text())["stages"]}
    assert all(reasons[name].endswith(f"--stages {name}") for name in out), reasons
    done, stages = check_with(folder, "--stages", ",".join(out), "--plans", plans)  # that command
    planned, total, budget = seconds_of_plan(done.stdout)
    assert list(planned) == out and total <= .8 * budget, done.stdout
    done, _ = check_with(folder, "--quick", more=["--", "--models", "small160"])
    planned, total, budget = seconds_of_plan(done.stdout)
    assert total <= .8 * budget and budget <= 420 and "left out" not in done.stdout, done.stdout
    # As it was asked for.
    done, _ = check_with(folder, "--quick", "--budget", "9", more=["--", "--models", "small160"])
    assert "sh scripts/gpu-check.sh --quick --plans " in done.stdout, done.stdout
    assert "--stages conformance,bench,loss-curves,leaky-slope -- --models small160\n" in done.stdout, done.stdout


def test_first_import(folder):
    """PyTorch, whose first import may take a minute, is read while the stages before bench run."""
    stand_ins(folder)
    make_executable(folder / "path/python3", f"""#!/bin/sh
[ "$*" != "-c import torch" ] || exec touch {folder}/imported
exec {sys.executable} "$@"
""")
    make_executable(folder / "binaries/tests/gpu_device_properties", f"""#!/bin/sh
for i in $(seq 300); do [ ! -e {folder}/imported ] || exit 0; sleep .1; done
exit 1
""")
    arguments = ["--budget", "500", "--stages"]
    _, stages = check_with(folder, *arguments, "device-properties,bench", more=["--", "--models", "small160"])
    assert stages["device-properties"] == "pass", stages
    (folder / "imported").unlink()
    check_with(folder, *arguments, "leaky-slope")
    assert not (folder / "imported").exists()  # of no use there


def test_written_after_each_stage(folder):
    """What a run that is ended has said and written: here the second stage looks for the first one's."""
    stand_ins(folder)
    make_executable(folder / "binaries/tests/gpu_leaky_slope", f"""#!/bin/sh
grep '^device-properties  *pass' {folder}/said && grep '"device-properties".*"pass"' {folder}/out/h200-*.json &&
    grep device-properties {folder}/out/h200-*.md && grep deviceName {folder}/out/h200-*.log
""")
    with open(folder / "said", "w") as said:
        check_with(folder, "--stages", "device-properties,leaky-slope", stdout=said)
    assert "0 failures, 0 cut off" in (folder / "said").read_text(), log_of(folder)


def test_hang(folder):
    """What the last program tried when it was ended is in the plans, whoever takes them up; what is damaged is not."""
    stand_ins(folder)
    (folder / "kept.plans").write_text("darknet-amp plans, version 1\n0\tkey\tvalue\n")
    for name, text in (("0", ""), ("1", "2ac583b951c9cd3f\tA GPU, 9.0; forward; cudnn 5=0\t"),
                       ("2", "2ac583b951c9cd3f\tA GPU, 9.0; forward; cudnn 6=0\t"), ("3", "nothing")):
        make_executable(folder / f"slot{name}", text)
    make_executable(folder / "binaries/tests/gpu_leaky_slope",
                    "#!/bin/sh\nfor i in 0 1 2 3; do "
                    f"cp {folder}/slot$i $XDG_CACHE_HOME/darknet-amp/plans.trying.$i; done\n")
    check_with(folder, "--stages", "leaky-slope", "--plans", folder / "kept.plans")
    (plans,) = (folder / "out").glob("*.plans")
    assert plans.read_text() == ("darknet-amp plans, version 1\n0\tkey\tvalue\n"
                                 "cfa2c791469abc90\tA GPU, 9.0; forward; cudnn 5=0\tfaulted\n"), plans.read_text()


def test_missing_library(folder):
    """It ends what needs it, and nothing else."""
    stand_ins(folder)
    (folder / "missing").write_text("libdarknet.so")
    done, ended = check_with(folder, "--stages", "device-properties")
    assert ended == {"device-properties": "pass"}, (ended, done)
    stages = ["--stages", "device-properties,conformance,memcheck,engines,leaky-slope", "--budget", "900"]
    (folder / "missing").write_text("gpu_leaky_slope")
    done, ended = check_with(folder, *stages)
    assert ended["device-properties"] == "pass" and ended["leaky-slope"] == "skipped", (ended, done)
    assert "not found: libcudnn.so.9 ; install" in done.stdout and "not complete: leaky-slope" in done.stdout, done
    (folder / "missing").write_text("gpu_copy")
    shutil.rmtree(folder / "out")
    done, ended = check_with(folder, *stages)
    assert ended == {"device-properties": "pass", "conformance": "cut off", "memcheck": "cut off", "engines": "pass",
                     "leaky-slope": "pass"} and done.returncode == 75, (ended, done)
    assert "; cannot start: copy (without libcudnn.so.9 )" in log_of(folder)["conformance"], log_of(folder)
    (folder / "missing").write_text(".")
    shutil.rmtree(folder / "out")
    _, ended = check_with(folder, *stages)
    assert set(ended.values()) == {"skipped"}, ended


def test_without_mpi(folder):
    """One stage is skipped, whatever of MPI is missing."""
    stand_ins(folder)
    stages = ["--stages", "device-properties,processes"]
    skipped = {"device-properties": "pass", "processes": "skipped"}
    done, ended = check_with(folder, *stages)
    assert ended == skipped and "built without MPI: no libdarknet_amp_mpi.so" in done.stdout, done
    make_executable(folder / "binaries/lib/darknet-amp/libdarknet_amp_mpi.so", "")
    make_executable(folder / "path/mpirun", "")
    (folder / "missing").write_text("amp_mpi")
    done, ended = check_with(folder, *stages)
    assert ended == skipped and "libdarknet_amp_mpi.so needs libcudnn.so.9" in done.stdout and not done.returncode, done


def test_benches(folder):
    """What is before bench leaves it the time; runs of other contestants are beside each other."""
    stand_ins(folder)
    make_executable(folder / "binaries/tests/gpu_device_properties",
                    "#!/bin/sh\necho until $AMP_END at $(date +%s)\n")
    arguments = ["--budget", "500", "--stages", "device-properties,bench"]
    more = ["--", "--no-check", "--models", "small160", "--contestants"]
    check_with(folder, *arguments, more=[*more, "fixed,fp16"])
    end, now = map(int, re.findall(r"\d+", log_of(folder)["device-properties"]))
    assert 0 < end - now <= 500 - 280, (end, now)
    for contestants in ("fixed", "fp16,fixed"):
        check_with(folder, *arguments[:-1], "bench", more=[*more, contestants])
    (record,) = (folder / "out").glob("h200-*.json")
    runs = json.loads(record.read_text())["bench"]["runs"]
    assert [sorted(run["failed"]) for run in runs] == [["fixed", "fp16"], ["fixed"]], runs


def test_ended_after_a_disagreement(folder):
    """A bench that was ended, or had no time, after it found wrong gradients has failed."""
    stand_ins(folder)
    said = gpu_report.bench_report.error_lines("m", {"fp16": {"disagrees": ["weights 0"]}})
    make_executable(folder / "path/python3", f"""#!/bin/sh
case "$*" in *bench-gpu*) echo '  {said[0].strip()}'; exit 75 ;; esac
exec {sys.executable} "$@"
""")
    done, stages = check_with(folder, "--stages", "bench")
    assert done.returncode == 1 and stages == {"bench": "FAIL"}, (stages, done)


def test_joined():
    """A run made again replaces itself, however either ended; a comparison is not lost to a run without."""
    def record(failed, errors):
        run = {"model": "m", "batch": 4, "asked": ["fixed", "torch"], "contestants": {}, "failed": failed}
        return {"stages": [], "bench": {"errors": errors, "runs": [run]}}

    compared, alone = {"fp16": {"heads": 0.1, "disagrees": []}}, {"all": {"failed": "no", "disagrees": []}}
    both = gpu_report.add_to(record({}, {"m": compared}), record({"torch": "no"}, {"m": alone, "n": alone}))["bench"]
    assert [run["failed"] for run in both["runs"]] == [{"torch": "no"}], both
    assert both["errors"] == {"m": compared, "n": alone}, both


def test_sanitizer(folder):
    """Our kernels, by their name, in every program; each has its part of the time, the hardest three parts."""
    stand_ins(folder)
    make_executable(folder / "path/timeout", f"""#!/bin/sh
[ "$4" != {folder}/path/compute-sanitizer ] || echo asked for $3 s
exec {shutil.which("timeout")} "$@"
""")
    make_executable(folder / "path/compute-sanitizer", SANITIZER +
                    "case $* in *_copy*) echo FAILED it: 3; exit 9;; *memcheck*_conv) exec sleep 60;; esac\n")
    make_executable(folder / "binaries/tests/test_conformance_gpu_image_gradient", "#!/bin/sh\n")
    done, stages = check_with(folder, "--budget", "24", "--stages", "racecheck,memcheck")
    assert done.returncode == 1 and stages == {"memcheck": "FAIL", "racecheck": "skipped"}, (stages, done)
    said = log_of(folder)["memcheck"]
    assert said.endswith("memcheck: 5 without an error, 1 with errors; stopped before their end: conv\n\n"), said
    lines = [line for line in said.splitlines() if line.startswith("=========")]
    assert all("--tool memcheck --kernel-name kns=ampk_" in line for line in lines), said
    assert "small.cfg none --gpu 0" in lines[0], said
    assert all(line.startswith("========= 1 ") for line in lines[1:4]), said
    assert [line.split("_gpu_")[-1] for line in lines[1:]] == [
        "conv conv_forward_of_large_images", "image_gradient conv_bn_backward_of_several_tiles_a_warp",
        "conv conv_forward_of_images", "conv", "copy", "image_gradient"], said
    assert "copy: exit status 9" in said and "\nFAILED it: 3\n" in said, said  # beside a program that never ends
    assert re.search(r"(?m)^seed \d+$", said), said
    _, stages = check_with(folder, "--budget", "303", "--stages", "racecheck")
    said = log_of(folder)["racecheck"]
    assert stages["racecheck"] == "FAIL" and "bench_step" not in said and "image_gradient" in said, said
    parts = [int(seconds) / 300 for seconds in re.findall(r"asked for (\d+) s", said)]  # nobody needs his
    assert all(.8 * part < asked <= part for asked, part in zip(parts, (3 / 10, 3 / 7, 1 / 4, 1 / 3, 1 / 2, 1))), parts
    make_executable(folder / "path/compute-sanitizer", "#!/bin/sh\n")
    _, stages = check_with(folder, "--stages", "racecheck")
    assert stages["racecheck"] == "FAIL", stages  # what is known is not lost to a sanitizer that is too old
    assert "cannot choose kernels by name" in log_of(folder)["racecheck"], log_of(folder)


def test_added_to(folder):
    """A second run on the same day has its stages beside those of the first, and their words."""
    stand_ins(folder)
    (folder / "kept.plans").write_text("darknet-amp plans, version 1\n0\tkey\tvalue\n")
    check_with(folder, "--stages", "device-properties,racecheck", "--plans", folder / "kept.plans")
    make_executable(folder / "binaries/tests/gpu_device_properties", "#!/bin/sh\nexit 75\n")
    done, _ = check_with(folder, "--stages", "device-properties")
    assert done.returncode == 75, done
    make_executable(folder / "binaries/tests/gpu_leaky_slope", "#!/bin/sh\necho FAILED it: 1\nexit 75\n")
    (folder / "more.plans").write_text("darknet-amp plans, version 1\n1\tkey\tbetter\n2\tnew\tvalue\n")
    done, stages = check_with(folder, "--stages", "device-properties,leaky-slope", "--plans",
                              folder / "more.plans")
    assert stages == {"device-properties": "cut off", "racecheck": "FAIL", "leaky-slope": "FAIL"}, stages
    assert "1 failures, 1 cut off" in done.stdout, done
    assert set(log_of(folder)) == set(stages), log_of(folder)
    (plans,) = (folder / "out").glob("h200-*.plans")
    assert plans.read_text() == ("darknet-amp plans, version 1\n1\tkey\tbetter\n2\tnew\tvalue\n"), plans
    done, _ = check_with(folder, "--plans", folder / "none")
    assert done.returncode == 1 and "no plans in" in done.stderr, done


def test_cut_off(folder):
    """What there is no time for is named; what went wrong before counts."""
    stand_ins(folder)
    environment = {**os.environ, "AMP_BINARIES": folder / "binaries", "AMP_WORK": folder}

    def stage(*arguments, seconds):
        return subprocess.run(["sh", ROOT / "scripts/gpu-stage.sh", *arguments], text=True,
                              capture_output=True,
                              env={**environment, "AMP_END": str(int(time.time()) + seconds)})

    make_executable(folder / "binaries/tests/test_conformance_gpu_copy", "#!/bin/sh\nexec sleep 60\n")
    make_executable(folder / "binaries/tests/test_conformance_gpu_pool", "#!/bin/sh\n")
    done = stage("conformance", "1", "0", seconds=15)
    assert done.returncode == 75, done
    assert done.stdout.endswith("programs: 5 without an error, 0 with errors; stopped before their end: copy; "
                                "no time for pool\n"), done
    done = stage("engines", seconds=3)
    assert done.returncode == 75 and "no time for conv_backward conv_forward conv_bias" in done.stdout, done


def test_fault(folder):
    """A stage is run again where that leaves out what made the device fault, and only there."""
    stand_ins(folder)
    probe = folder / "binaries/tests/gpu_leaky_slope"
    for ends, said, result in (("it is left out from the next start on: start again", 2, "pass"),
                               ("it is broken", 1, "FAIL")):
        make_executable(probe, f"""#!/bin/sh
echo begun
[ -e {folder}/faulted ] && exit 0
touch {folder}/faulted
echo "{ends}" >&2
exit 134
""")
        (folder / "faulted").unlink(missing_ok=True)
        shutil.rmtree(folder / "out", ignore_errors=True)
        _, stages = check_with(folder, "--stages", "leaky-slope")
        assert stages == {"leaky-slope": result}, stages
        assert log_of(folder)["leaky-slope"].count("begun") == said, log_of(folder)


def test_unpacking(folder):
    """A tarball, also where tar knows no xz."""
    stand_ins(folder)
    with tarfile.open(folder / "pack.tar.xz", "w:xz") as pack:
        pack.add(folder / "binaries", ".")
    make_executable(folder / "path/tar", "#!/bin/sh\necho tar: no xz >&2\nexit 2\n")
    done, stages = check_with(folder, "--stages", "device-properties", binaries=folder / "pack.tar.xz")
    assert done.returncode == 0 and stages == {"device-properties": "pass"}, done


def test_pack(folder):
    """A build with OpenCV is refused; the pack says what was built."""
    for name in ("bin/bench_step", "bin/darknet", "lib/libdarknet.so", "lib/libdarknet_amp.so.1",
                 "tests/test_conformance_gpu_copy"):
        (folder / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", folder / "build" / name)
    (folder / "cfg").mkdir()
    for net in ("yolov3", "yolov3-tiny", "yolov2", "darknet19", "darknet53"):
        (folder / f"cfg/{net}.cfg").write_text("[net]\n")
    cache = folder / "build/CMakeCache.txt"

    def pack(opencv, out):
        cache.write_text(f"AMP_OPENCV:BOOL={opencv}\nDARKNET_SOURCE_DIR:PATH={folder}\n")
        return subprocess.run(["sh", ROOT / "scripts/gpu-pack.sh", folder / out, folder / "build"],
                              text=True, capture_output=True)

    done = pack("ON", "pack")
    assert done.returncode == 1 and "-DAMP_OPENCV=OFF" in done.stderr and not (folder / "pack").exists(), done
    assert pack("OFF", "pack.tar.xz").returncode == 0
    with tarfile.open(folder / "pack.tar.xz") as packed:
        assert packed.extractfile("./commit").read().strip(), packed.getnames()
        assert "./tests/test_conformance_gpu_copy" in packed.getnames(), packed.getnames()


DARKNET = f"""#!{sys.executable}
import pathlib, re, sys
data = pathlib.Path(sys.argv[3])
cfg = (data.parent / "toy.cfg").read_text()
for i in range(1, int(re.search("max_batches=(.*)", cfg)[1]) + 1):
    print(f"{{i}}: {{10 / i}}, {{10 / i}} avg, 0.1 rate, 0.1 seconds, 1 images")
(data.parent / "backup").mkdir(exist_ok=True)
(data.parent / "backup/toy_final.weights").write_bytes(
    bytes(20) + bytes([1, 2, 3, "probability=0.5" in cfg]))
if "amp_dtype=fp16" in cfg:
    print("darknet-amp: the work of a pass CAN be recorded (x)", file=sys.stderr)
"""


def test_recordings(folder):
    """A run whose passes are not recorded is named by both that train."""
    for can, status in (("can", 0), ("cannot", 1)):
        make_executable(folder / "darknet", DARKNET.replace("CAN", can))
        for script, arguments in (("loss_curves.py", ["--json", folder / "losses.json"]),
                                  ("invariants.py", [])):
            done = subprocess.run([sys.executable, ROOT / "tests/gpu" / script, folder / "darknet",
                                   *arguments], text=True, capture_output=True)
            said = "cannot be recorded (x)" in done.stdout + done.stderr
            assert done.returncode == status and said == bool(status), done
    assert len(json.loads((folder / "losses.json").read_text())["fp16"]) == 200


def test_other_weights(folder):
    """Another way to come by the same weights that has others is named."""
    make_executable(folder / "darknet", DARKNET.replace("CAN", "can").replace(
        "bytes([1, ", 'bytes([__import__("os").environ.get("AMPK_CUDA_SIDE_STREAM") == "1", '))
    done = subprocess.run([sys.executable, ROOT / "tests/gpu/invariants.py", folder / "darknet"],
                          text=True, capture_output=True)
    assert done.returncode == 1 and "{'AMPK_CUDA_SIDE_STREAM': '1'} differs by" in done.stdout, done
    assert done.stdout.count("differ") == 1, done


def test_report(folder):
    stages = [("device-properties", "pass", "1", ""), ("conformance", "FAIL", "12", "2 programs failed"),
              ("memcheck", "skipped", "0", "compute-sanitizer is not here")]
    (folder / "stages").write_text("".join("\t".join(stage) + "\n" for stage in stages))
    (folder / "device.json").write_text('{"deviceName": "NVIDIA H100 80GB HBM3"}')
    (folder / "leaky_slope.json").write_text(
        '{"forward": [{"engine": 2, "slope": "honoured"}, {"engine": 2, "slope": "ignored"}], '
        '"backward": []}')
    (folder / "bench.json").write_text("cut o")
    out = folder / "out"
    subprocess.run([sys.executable, ROOT / "scripts/gpu_report.py", folder, out], check=True,
                   capture_output=True)
    (page,), (record,) = out.glob("h100-80gb-hbm3-*.md"), out.glob("h100-80gb-hbm3-*.json")
    record = json.loads(record.read_text())
    assert record["stages"][1]["reason"] == "2 programs failed" and record["bench"] is None
    text = page.read_text()
    assert "| conformance | FAIL | 12 | 2 programs failed |" in text, text
    assert "forward: honoured, ignored (2 plans); backward: no engine (0 plans)" in text, text


def test_other_records(folder):
    """A record of another commit is left alone, and so is what is no record."""
    (folder / "stages").write_text("device-properties\tpass\t1\tbytes that are no UTF-8: ")
    with open(folder / "stages", "ab") as stages:
        stages.write(b"\xff, and \xe2\x80\xa8 that splits no line\n")
    (folder / "device.json").write_text('{"deviceName": "NVIDIA H100 80GB HBM3"}')

    def report():
        done = subprocess.run([sys.executable, ROOT / "scripts/gpu_report.py", folder, folder / "out"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done
        return sorted((folder / "out").glob("*.json"), key=lambda path: (len(path.name), path.name))

    (first,) = report()
    assert len(report()) == 1
    record = json.loads(first.read_text())
    assert len(record["stages"]) == 1 and "\ufffd, and" in record["stages"][0]["reason"], record
    (folder / "stages").write_text("device-properties\tskipped\t0\tno time\nbench\tskipped\t0\tno time\n")
    report()
    record = json.loads(first.read_text())
    assert [stage["result"] for stage in record["stages"]] == ["pass", "skipped"], record
    record["machine"]["commit"] = "another"
    first.write_text(json.dumps(record))
    assert len(report()) == 2 and json.loads(first.read_text()) == record
    report()[1].write_text("{}")
    assert len(report()) == 3 and report()[2].name.endswith("-3.json")


test_no_gpu()
test_arguments()
test_names()
test_joined()
for test in (test_recordings, test_other_weights, test_stages, test_all_stages, test_plan, test_first_import,
             test_written_after_each_stage, test_hang, test_ended_after_a_disagreement, test_missing_library,
             test_without_mpi, test_benches,
             test_sanitizer, test_added_to, test_cut_off, test_fault, test_unpacking, test_pack, test_report, test_other_records):
    with tempfile.TemporaryDirectory() as scratch:
        test(Path(scratch))
