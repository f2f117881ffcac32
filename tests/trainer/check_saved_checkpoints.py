#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads with transformers what hf_parity_test saved, and compares the logits.

OUT/saved/<case>-<form>/                      a checkpoint of ours
OUT/saved/<case>-<form>.reference.safetensors   tokens, and our logits of the values saved
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-5  # Of the largest logit: fp32 sums in other orders.


def main():
    saved = pathlib.Path(sys.argv[1]) / 'saved'
    directories = sorted(path for path in saved.iterdir() if path.is_dir())
    cases = (saved.parent / 'cases.txt').read_text().split()
    assert len(directories) == 3 * len(cases), f'{len(directories)} saved of {len(cases)} cases'
    torch.set_num_threads(1)
    worst = 0.0
    for directory in directories:
        model, report = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                             output_loading_info=True)
        for kind in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
            assert not report[kind], f'{directory.name}: {kind} {report[kind]}'
        source = saved.parent / directory.name.rsplit('-', 1)[0]
        if (source / 'generation_config.json').exists():
            assert (directory / 'generation_config.json').exists(), directory
        model.eval()
        ours = load_file(f'{directory}.reference.safetensors')
        with torch.no_grad():
            theirs = model(input_ids=ours['tokens']).logits
        error = ((theirs - ours['logits']).abs().max() / theirs.abs().max()).item()
        assert error <= TOLERANCE, f'{directory.name}: logits differ by {error} of the largest'
        worst = max(worst, error)
    print(f'{len(directories)} checkpoints loaded, logits equal within {worst:.1e} of the largest')


if __name__ == '__main__':
    main()
