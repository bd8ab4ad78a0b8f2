"""The kernels that move most of the data read and write 16 bytes at a time: looked up in what the
compiler made of them, for every architecture in the library.

A kernel of WIDE or OF_TYPES has at least as many accesses of 16 bytes as its source has vectors to load and to
store, so that none of its tensors is read in smaller pieces unseen; those that are for tensors
alone, whose channels fill 16 bytes, have none of 2 bytes beside them. HALF are those with 8 bytes.
Every other kernel is in NARROW, with why: a new one has to be put somewhere, and every line of the
tables has a kernel.

usage: wide_access.py LIBRARY

Exit status 77 where there is no cuobjdump, or no nvdisasm, which it calls.
"""

import collections
import re
import shutil
import subprocess
import sys

# Kernel: (vectors of parameters, of tensors, stored). A vector of tensors is 16 bytes, or 8 elements
# where a name says how many; one of parameters has the same number of FP32. Rows in flight count, and
# once more for the rows that are left over (ampk_for_rows), and what is added to (ampk_put).
ROWS = 2 + 1
WIDE = {
    r"take_statistics<ampk_packed": (1, 4 + 1, 0),
    r"normalize<ampk_packed<\w+>, \w+, false>": (4, ROWS, ROWS),
    r"normalize<ampk_packed<\w+>, \w+, true>": (4, 2 * ROWS, ROWS),
    r"sum_gradients<ampk_packed<\w+>, ampk_(slope|share)>": (4, 2, 0),
    r"sum_gradients<ampk_packed<\w+>, ampk_curve>": (1, 3, 0),
    r"pass_back<ampk_packed<\w+>, ampk_(slope|share)>\(ampk_cover, layer_gradient": (7, 2 * ROWS, ROWS),
    r"pass_back<ampk_packed<\w+>, ampk_curve>\(ampk_cover, layer_gradient": (4, 3 * ROWS, ROWS),
    r"pass_back_bias<ampk_packed": (0, 2 * ROWS, ROWS),
    r"pool_normalized<ampk_packed": (4, 4, 1),
    r"sum_cells<ampk_packed": (4, 4 + 1, 0),
    r"pass_back_cells<ampk_packed": (7, 4 + 1, 4),
    r"pool_max<ampk_packed": (0, 1, 1),
    r"unpool_max<ampk_packed<float>": (0, 1, 1),  # for Blackwell nvcc takes the vectors of dy in two halves
    r"unpool_max<ampk_packed": (0, 1 + 1, 1),
    r"average<ampk_packed": (0, 1, 1),
    r"(spread|enlarge|reduce|drop)<ampk_packed": (0, 1 + 1, 1),
    r"add_same<ampk_packed": (0, 2 * ROWS, ROWS),
    r"pass_same<ampk_packed": (0, 3 * ROWS, ROWS),
    r"(activate|keep_within)<ampk_packed": (0, 1, 1),
    r"draw_mask": (0, 0, 1),
    r"pass_back<ampk_packed<\w+>, \w+>\(ampk_cover, ampk_view,": (0, 2 + 1, 1),
    r"ampk_pack_rows<.*, 8>|convolve_image<.*, 4, ": (0, 0, 1),  # pixels of 3 channels, or another odd number
    r"ampk_find_amax<4>|ampk_find_stored_amax<|watch_gradients<": (0, 1, 0),
    r"ampk_compare<": (0, 2, 0),
    r"ampk_accumulate_to<4>|add_gradients<": (0, 2, 1),
    r"ampk_scale_by<4>|ampk_apply<ampk_span_item, copy>": (0, 1, 1),
    r"ampk_apply<ampk_span_item, averaging>": (0, 2, 1),
    r"update_weights<.*ampk_sgd>": (0, 4, 3),
    r"update_weights<.*ampk_adam>": (0, 5, 4),
    r"ampk_apply<update_item<ampk_sgd>": (0, 4, 3),
    r"ampk_apply<update_item<ampk_adam>": (0, 5, 4),
}
# Those that read one type and store another: (read, stored, added to), of their types.
OF_TYPES = {
    r"ampk_copy_rows<8, (\w+), (\w+)>": (2, 1, 1),
    r"ampk_unpack_nhwc<add_or_not, (\w+), (\w+), 8>": (1, 2, 2),
    r"ampk_unpack_nhwc<activate<\w+>, (\w+), (\w+), 8>": (1, 2, None),
}
# By 8 bytes: a lane's part of the mma's operand, four filters of each pixel of a cell. The lanes of a
# pixel read a line of it.
HALF = {
    r"ampk_multiply_gradient<.*, plain_input<4>": 4 + 4,
    r"ampk_multiply_gradient<.*, pooled_input<4>": 4 + 1,
}
NARROW = {
    r".*ampk_any|add_sampled<|pass_sampled<|permute<|(un)?fold_windows":
        "any layout, dtype and number of channels, element by element",
    r"ampk_(accumulate_to|find_amax|scale_by)<1>|ampk_copy_rows<1,|ampk_(pack_rows|unpack_nhwc)<.*, 1>":
        "the same of what begins at any address",
    r"convolve_image<.*, [123], ": "fewer filters than fill 16 bytes of each lane of an mma's result",
    r"ampk_multiply_gradient<.*_input<2>": "16 filters, 4 bytes of a pixel a lane: its part of an mma's operand",
    r"ampk_add_blocks<|ampk_add_parts|ampk_add_square_parts": "sums of blocks, a few for a convolution",
    r"(ampk_transpose|ampk_regroup|ampk_unpack_nchw|pass_planes)<|ampk_pass_delta|ampk_activate_planes<":
        "planes of pixels at least on one side: a warp reads and writes lines of them",
    r"ampk_look<": "what amp_log and `amp check` count",
    r"ampk_(pass_back|judge_boxes|take_truths|lose|(judge|take)_by_rules|share_out|rules_(squares|cost))|"
    r"softmax_(cells|groups)":
        "losses, FP32 planes: a warp reads lines",
    r"finish_sums": "numbers of channels",
    r"ampk_square": "the norm of gradients that several processes have added, once a step",
    r"square_parts<|divide_norms<": "trust of LARS and LAMB, once a step",
    r"pack_weights<": "once a step, where somebody else wrote the weights",
    r"ampk_fill_with_numbers<": "before timing",
}


def kernels(library):
    """(architecture, mangled name) -> how often it has "LDG 16", "STG 2" ..., by bytes."""
    found, arch, current = {}, None, None
    dump = subprocess.Popen(["cuobjdump", "-sass", library], stdout=subprocess.PIPE, text=True)
    for line in dump.stdout:
        words = line.split()
        if words[:2] == ["arch", "="]:
            arch = words[2]
        elif words[:2] == ["Function", ":"]:
            current = found.setdefault((arch, words[2]), collections.Counter())
        elif access := re.search(r"\b(LDG|STG)\.([\w.]+)", line):
            bits = re.search(r"\b[US]?(8|16|64|128|256)\b", access[2])
            width = int(bits[1]) // 8 if bits else 4
            # Blackwell has 32 bytes, of which two vectors make one.
            current[f"{access[1]} {min(width, 16)}"] += max(width // 16, 1)
    assert dump.wait() == 0, "cuobjdump failed"
    return found


def readable(names):
    """Mangled names -> what they stand for, without the result."""
    said = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                          check=True).stdout.split("\n")
    return {name: text.removeprefix("void ") for name, text in zip(names, said)}


def matching(table, kernel):
    """(what the table has for the kernel, the match), or twice None."""
    for pattern, value in table.items():
        if match := re.match(pattern, kernel):
            return value, match
    return None, None


def vectors(dtype):
    """16-byte vectors that 8 elements take."""
    return 2 if dtype == "float" else 1


def wanted(kernel):
    """{"LDG 16": the least number, ...}; None for a kernel in no table but NARROW's."""
    if least := matching(WIDE, kernel)[0]:
        parameters, loads, stores = least
        return {"LDG 16": loads + parameters * (1 if "packed<float>" in kernel else 2),
                "STG 16": stores}
    least, types = matching(OF_TYPES, kernel)
    if least:
        read, stored, added = (number and vectors(types[number]) for number in least)
        return {"LDG 16": read + (added or 0), "STG 16": stored}
    least = matching(HALF, kernel)[0]
    return {"LDG 8": least} if least else None


def faults(kernel, access):
    """What is wrong with a kernel's accesses, in words."""
    least = wanted(kernel)
    if least is None:
        return [] if matching(NARROW, kernel)[0] else ["is in no table of this test"]
    found = [f"{access[kind]} {kind}, not {number}" for kind, number in least.items()
             if access[kind] < number]
    if "<ampk_packed<" in kernel:
        found += [f"{access[kind]} {kind}" for kind in ("LDG 2", "STG 2") if access[kind]]
    return found


def main(library):
    for program in ("cuobjdump", "nvdisasm"):
        if not shutil.which(program):
            print(f"SKIPPED what nvcc made of the kernels: there is no {program}")
            return 77
    found = kernels(library)
    names = readable(sorted({name for _, name in found}))
    counts, wrong, unused = collections.Counter(), [], {*WIDE, *OF_TYPES, *HALF, *NARROW}
    for (arch, name), access in found.items():
        kernel = names[name]
        unused -= {pattern for pattern in unused if re.match(pattern, kernel)}
        counts[arch] += wanted(kernel) is not None
        wrong += [f"{arch}, {kernel}: {fault}" for fault in faults(kernel, access)]
    print("8 and 16 bytes at a time: " + ", ".join(f"{counts[arch]} kernels for {arch}"
                                                    for arch in sorted(counts)))
    assert not unused, f"no kernel in {library} is {' or '.join(sorted(unused))}"
    assert not wrong, "\n".join(wrong)
    return 0


sys.exit(main(sys.argv[1]))
