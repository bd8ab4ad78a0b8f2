#!/usr/bin/python3
"""What a device reaches, by PyTorch: FLOP/s of a large FP16 matrix product (sums in FP32) and bytes/s,
read plus written, of a large copy on it.

    torch_ceilings.py [--device cuda] [--size 8192] [--gigabytes 4]

Prints one JSON line {"flops": .., "bytes_per_second": .., "size": .., "gigabytes": ..}. Operands are
random: products of zeros draw less power and are faster.
"""

import argparse
import json
import statistics
import sys
import time

import torch

GROUP, GROUPS = 10, 5  # calls between two waits for the device; of the groups the median counts


def seconds(work, wait):
    """Of one call."""
    found = []
    for _ in range(GROUPS + 1):  # the first warms up
        start = time.perf_counter()
        for _ in range(GROUP):
            work()
        wait()
        found.append((time.perf_counter() - start) / GROUP)
    return statistics.median(found[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--gigabytes", type=float, default=4, help="of the source of the copy")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"torch_ceilings: PyTorch {torch.__version__} finds no GPU here")
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    dtype = torch.float16 if args.device == "cuda" else torch.float32  # not every CPU multiplies FP16
    a, b = (torch.randn(args.size, args.size, device=args.device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    flops = 2 * args.size**3 / seconds(lambda: torch.matmul(a, b, out=product), wait)
    source = torch.rand(int(args.gigabytes * 1e9 / 4), device=args.device)
    copy = torch.empty_like(source)
    rate = 2 * source.numel() * 4 / seconds(lambda: copy.copy_(source), wait)
    print(json.dumps({"flops": flops, "bytes_per_second": rate, "size": args.size,
                      "gigabytes": args.gigabytes}))


if __name__ == "__main__":
    main()
