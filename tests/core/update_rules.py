"""The recursions that test_update.c has in double, beside PyTorch's own optimizer and clipping in double.

usage: update_rules.py      (without PyTorch it says SKIPPED)
"""

import random
import sys

try:
    import torch
except ImportError:
    print("SKIPPED: PyTorch is not installed")
    sys.exit(0)

N, STEPS, RATE, DECAY, B1, B2, EPS = 50, 100, .01, .05, .9, .999, 1e-8


def check_adamw(draw):
    w = [draw() for _ in range(N)]
    a, b = [0] * N, [0] * N
    tensor = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([tensor], lr=RATE, betas=(B1, B2), eps=EPS, weight_decay=DECAY)
    for t in range(1, STEPS + 1):
        g = [draw() for _ in range(N)]
        tensor.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        for k in range(N):
            w[k] *= 1 - RATE * DECAY
            a[k] = B1 * a[k] + (1 - B1) * g[k]
            b[k] = B2 * b[k] + (1 - B2) * g[k] * g[k]
            w[k] -= RATE / (1 - B1 ** t) * a[k] / (b[k] ** .5 / (1 - B2 ** t) ** .5 + EPS)
    return w, tensor.detach()


def check_clip_norm(draw):
    g = [draw() for _ in range(N)]
    parts = [torch.zeros(20, dtype=torch.float64), torch.zeros(N - 20, dtype=torch.float64)]
    parts[0].grad, parts[1].grad = (torch.tensor(part, dtype=torch.float64) for part in (g[:20], g[20:]))
    torch.nn.utils.clip_grad_norm_(parts, 1.5)
    factor = min(1, 1.5 / (sum(x * x for x in g) ** .5 + 1e-6))
    assert factor < 1
    return [factor * x for x in g], torch.cat([part.grad for part in parts])


def check_clip_value(draw):
    g = [draw() for _ in range(N)]
    tensor = torch.zeros(N, dtype=torch.float64)
    tensor.grad = torch.tensor(g, dtype=torch.float64)
    torch.nn.utils.clip_grad_value_([tensor], .3)
    return [max(-.3, min(.3, x)) for x in g], tensor.grad


def main():
    random.seed(1)
    for check in (check_adamw, check_clip_norm, check_clip_value):
        ours, torchs = check(lambda: random.uniform(-1, 1))
        apart = float((torch.tensor(ours, dtype=torch.float64) - torchs).abs().max())
        print("%s: %.2g apart" % (check.__name__, apart))
        assert apart < 1e-12, check.__name__


main()
