"""`cmake --install` into a folder that is then moved: programs build against it by pkg-config and by
find_package, and run; so does the installed program itself.

usage: installed.py ROOT BUILD
"""

import gzip
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
SOURCE = ROOT / "tests/packaging/installed.c"
sys.path.insert(0, str(ROOT / "tests"))
import toyset

PROJECT = f"""cmake_minimum_required(VERSION 3.16)
project(installed C)
find_package(darknet_amp 1.0 REQUIRED)
add_executable(installed {SOURCE})
target_link_libraries(installed darknet_amp::darknet_amp m)
"""


def run(*command, status=0, **environment):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, **environment})
    assert done.returncode == status, f"{command}: status {done.returncode}\n{done.stdout}"
    return done.stdout


def find_lib(prefix):
    """The library folder, which Debian names after the machine's kind in /usr."""
    return next(prefix.rglob("libdarknet_amp.so")).parent


def check_files(prefix):
    lib = find_lib(prefix)
    assert (lib / "libdarknet_amp.so").resolve().name.startswith("libdarknet_amp.so.1."), list(lib.iterdir())
    assert "[libdarknet_amp.so.1]" in run("readelf", "-d", lib / "libdarknet_amp.so")
    assert (prefix / "share/darknet/labels/65_0.png").exists()
    assert (prefix / "share/darknet-amp/export/__main__.py").exists()
    page = prefix / "share/man/man1/darknet-amp.1.gz"
    if page.exists():  # a build with sanitizers makes none
        text = gzip.open(page, "rt").read()
        assert text.startswith(".TH") and '.SH "darknet amp plan"' in text and str(BUILD) not in text, text
    flags = run(prefix / "bin/darknet-amp-ldflags").split()
    archives = [flag for flag in flags if flag.endswith(".a")]
    assert "-Wl,--wrap=train_network" in flags and len(archives) >= 3, flags
    assert all(Path(archive).is_relative_to(prefix.resolve()) for archive in archives), archives
    run(prefix / "bin/darknet-amp-ldflags", "--build", BUILD, status=1)


def check_program(program, cfg, lib):
    said = run(program, cfg, LD_LIBRARY_PATH=str(lib))
    assert "attached 1, scale " in said and "scale 0," not in said and said.endswith("loss fine\n"), said


def check_letters(prefix, lib, toy):
    """They are found from the program where the library lies deeper, as in Debian's lib/x86_64-linux-gnu."""
    deep = lib / "deeper"
    deep.mkdir()
    for path in [path for path in lib.iterdir() if path != deep]:
        path.rename(deep / path.name)
    run(prefix / "bin/darknet", "detector", "test", toy / "toy.data", toy / "toy.cfg",
        toy / "backup/toy_final.weights", toy / "image000.png", LD_LIBRARY_PATH=f"{deep}:{deep}/darknet-amp")


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run("cmake", "--install", BUILD, "--prefix", folder / "first")
        prefix = (folder / "first").rename(folder / "moved")
        check_files(prefix)
        lib = find_lib(prefix)
        toy = toyset.make(folder / "toy", net_keys="mixed_precision=1\nseed=1")
        cfg = toy / "toy.cfg"
        assert "mixed precision" in run(prefix / "bin/darknet", "amp", "plan", cfg)
        run(prefix / "bin/darknet", "detector", "train", toy / "toy.data", cfg)
        assert (toy / "backup/toy_final.weights.amp").exists()

        flags = run("pkg-config", "--cflags", "--libs", "darknet-amp", PKG_CONFIG_PATH=str(lib / "pkgconfig")).split()
        run("cc", SOURCE, "-o", folder / "by_pkg_config", *flags, "-lm")
        check_program(folder / "by_pkg_config", cfg, lib)

        (folder / "project").mkdir()
        (folder / "project/CMakeLists.txt").write_text(PROJECT)
        run("cmake", "-S", folder / "project", "-B", folder / "built", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", folder / "built")
        check_program(folder / "built/installed", cfg, lib)
        os.chdir(folder)  # where Darknet writes the image with the boxes
        check_letters(prefix, lib, toy)


main()
