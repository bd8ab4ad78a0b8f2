"""The kernels that move most of the data read and write 16 bytes at a time: looked up in what the
compiler made of them, for every architecture in the library.

usage: wide_access.py LIBRARY

Exit status 77 where there is no cuobjdump.
"""

import collections
import re
import shutil
import subprocess
import sys

# Instances for tensors whose channels fill 16 bytes (ampk_packed), and those that take so many
# elements at once; some only sum up what they read, and one reads pixels of 6 bytes.
WIDE = re.compile(r"<ampk_packed<|^(accumulate_to|scale_by|find_amax)<4>|^copy_rows<8,"
                  r"|^find_stored_amax<|^(watch|add)_gradients<|^update_weights<|^apply<"
                  r"|^unpack_nhwc<.*, 8>|^convolve_image<.*, 4, ")
ONLY_READS = re.compile(r"^(take_statistics|sum_gradients|sum_cells|find_amax|find_stored_amax"
                        r"|watch_gradients)<")
ONLY_WRITES = re.compile(r"^convolve_image<")


def kernels(library):
    """(architecture, mangled name) -> the wide accesses in it."""
    found, arch, current = {}, None, None
    dump = subprocess.Popen(["cuobjdump", "-sass", library], stdout=subprocess.PIPE, text=True)
    for line in dump.stdout:
        words = line.split()
        if words[:2] == ["arch", "="]:
            arch = words[2]
        elif words[:2] == ["Function", ":"]:
            current = found.setdefault((arch, words[2]), collections.Counter())
        elif ".128" in line:
            current.update(re.findall(r"\b(LDG|STG)\.[\w.]*128\b", line))
    assert dump.wait() == 0, "cuobjdump failed"
    return found


def readable(names):
    """Mangled names -> what they stand for, without result and arguments."""
    said = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                          check=True).stdout.split("\n")
    return {name: text.split("(")[0].removeprefix("void ") for name, text in zip(names, said)}


def main(library):
    if not shutil.which("cuobjdump"):
        print("SKIPPED: there is no cuobjdump")
        return 77
    found = kernels(library)
    names = readable(sorted({name for _, name in found}))
    counts, narrow = collections.Counter(), []
    for (arch, name), access in found.items():
        kernel = names[name]
        if not WIDE.search(kernel):
            continue
        counts[arch] += 1
        wanted = [w for w, other in (("LDG", ONLY_WRITES), ("STG", ONLY_READS))
                  if not other.search(kernel)]
        narrow += ["%s, %s: no 16-byte %s" % (kernel, arch, w) for w in wanted if not access[w]]
    print("16-byte accesses: " + ", ".join("%d kernels for %s" % (counts[a], a)
                                           for a in sorted(counts)))
    assert counts and min(counts.values()) >= 40, "kernels are missing in %s" % library
    assert not narrow, "\n".join(narrow)
    return 0


sys.exit(main(sys.argv[1]))
