#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The update that `gemini-bench adam` is compared to, by DeepSpeed's CPUAdam and by Torch.

Reads one JSON object a line on stdin, answers each with one line of JSON on stdout (all else goes to
stderr). It runs in the environment of tools/adam-baseline-setup.

    {"op": "setup", "elements": N, "threads": T}   makes the tensors; answers with the versions
    {"op": "deepspeed"} {"op": "torch"}            does the job once
    {"op": "quit"}

The job is one optimizer step of mixed-precision training on the CPU, bf16 gradients in and bf16 parameters
out: gradients to fp32, their norm, the clip factor onto them, AdamW on the fp32 master, master to bf16.
An answer to it has `seconds` of the whole and `kernel_seconds` of the optimizer's call alone.

    adam_baseline.py --compile    compiles CPUAdam's kernel, which is otherwise done at its first use
"""
import importlib.metadata
import json
import os
import sys
import time

# Before Torch and DeepSpeed are imported. Whatever they print must not stand among the answers.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402

SETTINGS = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
MAX_NORM = 1.0


def answer(**values):
    ANSWERS.write(json.dumps(values) + "\n")
    ANSWERS.flush()


class Job:
    """One engine's tensors: bf16 gradient and parameter, fp32 gradient and master, and its moments."""

    def __init__(self, elements, make_optimizer):
        generator = torch.Generator().manual_seed(7)
        self.grad16 = torch.empty(elements, dtype=torch.bfloat16)
        self.param16 = torch.empty(elements, dtype=torch.bfloat16)
        self.master = torch.nn.Parameter(torch.empty(elements))
        # By parts: a random fp32 tensor of all elements besides the state would be half a GiB more.
        for grad, master in zip(self.grad16.split(1 << 22), self.master.data.split(1 << 22)):
            grad.copy_(torch.randn(grad.numel(), generator=generator) * 1e-2)
            master.copy_(torch.randn(master.numel(), generator=generator) * 2e-2)
        self.param16.copy_(self.master.data)
        self.master.grad = torch.empty(elements)
        self.optimizer = make_optimizer([self.master])
        self.run()  # Moments are made by the first step.

    def run(self):
        start = time.perf_counter()
        grad = self.master.grad
        grad.copy_(self.grad16)
        norm = float(torch.linalg.vector_norm(grad))
        grad.mul_(min(1.0, MAX_NORM / (norm + 1e-6)))
        before_kernel = time.perf_counter()
        self.optimizer.step()
        after_kernel = time.perf_counter()
        self.param16.copy_(self.master.data)
        end = time.perf_counter()
        return {"seconds": end - start, "kernel_seconds": after_kernel - before_kernel, "norm": norm}


def cpu_adam(parameters):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(parameters, adamw_mode=True, **SETTINGS)


def torch_adam(parameters):
    return torch.optim.AdamW(parameters, fused=True, **SETTINGS)


MAKERS = {"deepspeed": cpu_adam, "torch": torch_adam}


def main():
    if sys.argv[1:] == ["--compile"]:
        Job(1 << 16, cpu_adam)
        return answer(compiled=True)
    jobs = {}
    elements = 0
    for line in sys.stdin:
        request = json.loads(line)
        name = request["op"]
        if name == "quit":
            return None
        if name == "setup":
            torch.set_num_threads(request["threads"])
            elements = request["elements"]
            jobs = {}
            answer(torch=torch.__version__, threads=torch.get_num_threads(),
                   deepspeed=importlib.metadata.version("deepspeed"))
        elif name in MAKERS:
            if name not in jobs:
                jobs[name] = Job(elements, MAKERS[name])
            answer(**jobs[name].run())
        else:
            answer(error=f"no such op: {name}")
    return None


if __name__ == "__main__":
    main()
