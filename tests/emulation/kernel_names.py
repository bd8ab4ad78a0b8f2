"""Every kernel of the CUDA backend has ampk_ in its mangled name, by which compute-sanitizer tells ours from the
libraries' (scripts/gpu-check.sh): in its own name, or in a type of its arguments.

usage: kernel_names.py KERNELS LIBRARY

KERNELS: the folder of the kernel files. LIBRARY: what the host's compiler made of them; of two types it has
names of ours, where nvcc has CUDA's.
"""

import re
import subprocess
import sys
from pathlib import Path

KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\(")
OF_CUDA = re.compile(r"\d+ampk_(?:fp16|bf16)")  # __half and __nv_bfloat16 there


def main(folder, library):
    files = [path for kind in ("*.cu", "*.h") for path in sorted(Path(folder).rglob(kind))]
    kernels = {name for path in files for name in KERNEL.findall(path.read_text())}
    symbols = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout.split()
    found = {}
    for symbol in symbols:
        for name in kernels:
            if re.match(rf"_ZL?{len(name)}{name}(?!\w*__PRETTY)", symbol):
                found.setdefault(name, set()).add(symbol)
    assert len(kernels) > 50 and set(found) == kernels, (len(kernels), kernels - set(found))
    wrong = sorted(symbol for symbols in found.values() for symbol in symbols
                   if "ampk_" not in OF_CUDA.sub("", symbol))
    assert not wrong, "no ampk_ in the names of " + ", ".join(wrong)


main(*sys.argv[1:])
