"""What the attach tests share: running a program and comparing what it trained."""

import os
import subprocess


def run(command, attached=None, **settings):
    """Runs command; returns its output. attached: how often the plugin must say that it attached."""
    env = dict(os.environ, AMP_TRACE="1", OMP_NUM_THREADS="2",
               **settings.pop("env", {}))
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True,
                          **settings)
    text = done.stdout + done.stderr
    assert done.returncode == 0, "%s: status %d\n%s" % (command[0], done.returncode, text[-2000:])
    if attached is not None:
        said = text.count("darknet-amp: attached to ")
        assert said == attached, "%s: attached %d times, not %d\n%s" % (command, said, attached, text)
    return text


def train_fixed(program, cfg, weights, attached, env={}):
    """Five steps of fixed_training; returns the bytes of the weights file."""
    run([program, cfg, 5, weights], attached=attached, env=env)
    return weights.read_bytes()
