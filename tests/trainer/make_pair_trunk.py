#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes what blocks over an alignment and its pairs make of random inputs, with random weights.

OUT/<case>.safetensors  parameters, inputs, what the outputs' gradients are, outputs, and the gradients of parameters
                        and inputs; all computed in fp64 and rounded to fp32. Sizes are in the metadata.
OUT/cases.txt           the names of the cases

Pairs go through the parts of transformers' EsmFold block. The alignment goes through Algorithms 7 to 10 of AlphaFold
(Jumper et al., Nature 596, 2021, supplementary methods), written here from the paper with the names of OpenFold's
modules.
"""

import pathlib
import shutil
import sys
import types

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock

FACTOR = 4  # EsmFold's transition is so much wider inside.

# Sequences, residues, widths and heads differ, so that none can stand for another.
CASES = {
    'block': dict(num_blocks=1, batch=2, sequences=5, residues=7, msa_width=24, pair_width=16, msa_num_heads=3,
                  msa_head_size=10, triangle_num_heads=2, outer_width=6),
    'blocks': dict(num_blocks=3, batch=1, sequences=9, residues=6, msa_width=20, pair_width=32, msa_num_heads=2,
                   msa_head_size=12, triangle_num_heads=4, outer_width=5),
    # One sequence, and heads of one element.
    'one_sequence': dict(num_blocks=1, batch=1, sequences=1, residues=11, msa_width=8, pair_width=6, msa_num_heads=4,
                         msa_head_size=1, triangle_num_heads=6, outer_width=3),
}


class Heads(nn.Module):
    """The linear layers of gated attention: lines 2, 4 and 7 of Algorithm 7."""

    def __init__(self, width, num_heads, head_size):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size
        for name in 'qkv':
            setattr(self, f'linear_{name}', nn.Linear(width, num_heads * head_size, bias=False))
        self.linear_g = nn.Linear(width, num_heads * head_size)
        self.linear_o = nn.Linear(num_heads * head_size, width)

    def of(self, name, x):
        """[batch, sequence, residue, head, channel]"""
        return getattr(self, f'linear_{name}')(x).unflatten(-1, (self.num_heads, self.head_size))


class MsaRowAttention(nn.Module):
    """Algorithm 7: for sequence s, residue i attends to each residue j."""

    def __init__(self, width, pair_width, num_heads, head_size):
        super().__init__()
        self.layer_norm_m = nn.LayerNorm(width)
        self.layer_norm_z = nn.LayerNorm(pair_width)
        self.linear_z = nn.Linear(pair_width, num_heads, bias=False)
        self.mha = Heads(width, num_heads, head_size)

    def forward(self, m, z):
        m = self.layer_norm_m(m)
        q, k, v = (self.mha.of(name, m) for name in 'qkv')
        b = self.linear_z(self.layer_norm_z(z))
        g = torch.sigmoid(self.mha.of('g', m))
        scores = torch.einsum('nsihc,nsjhc->nsijh', q, k) / self.mha.head_size**0.5 + b.unsqueeze(1)
        a = torch.softmax(scores, dim=3)
        return self.mha.linear_o((g * torch.einsum('nsijh,nsjhc->nsihc', a, v)).flatten(-2))


class MsaColumnAttention(nn.Module):
    """Algorithm 8: for residue i, sequence s attends to each sequence t. OpenFold's files have a level `_msa_att`."""

    def __init__(self, width, num_heads, head_size):
        super().__init__()
        self._msa_att = nn.Module()
        self._msa_att.layer_norm_m = nn.LayerNorm(width)
        self._msa_att.mha = Heads(width, num_heads, head_size)

    def forward(self, m):
        mha = self._msa_att.mha
        m = self._msa_att.layer_norm_m(m)
        q, k, v = (mha.of(name, m) for name in 'qkv')
        g = torch.sigmoid(mha.of('g', m))
        a = torch.softmax(torch.einsum('nsihc,ntihc->nstih', q, k) / mha.head_size**0.5, dim=2)
        return mha.linear_o((g * torch.einsum('nstih,ntihc->nsihc', a, v)).flatten(-2))


class MsaTransition(nn.Module):
    """Algorithm 9."""

    def __init__(self, width):
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.linear_1 = nn.Linear(width, FACTOR * width)
        self.linear_2 = nn.Linear(FACTOR * width, width)

    def forward(self, m):
        return self.linear_2(torch.relu(self.linear_1(self.layer_norm(m))))


class OuterProductMean(nn.Module):
    """Algorithm 10."""

    def __init__(self, width, pair_width, outer_width):
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.linear_1 = nn.Linear(width, outer_width)
        self.linear_2 = nn.Linear(width, outer_width)
        self.linear_out = nn.Linear(outer_width**2, pair_width)

    def forward(self, m):
        m = self.layer_norm(m)
        products = torch.einsum('nsic,nsjd->nsijcd', self.linear_1(m), self.linear_2(m))
        return self.linear_out(products.mean(dim=1).flatten(-2))


class Block(nn.Module):
    """Algorithm 6."""

    def __init__(self, sizes):
        super().__init__()
        msa, pair = sizes['msa_width'], sizes['pair_width']
        heads = sizes['msa_num_heads'], sizes['msa_head_size']
        self.msa_att_row = MsaRowAttention(msa, pair, *heads)
        self.msa_att_col = MsaColumnAttention(msa, *heads)
        self.msa_transition = MsaTransition(msa)
        self.outer_product_mean = OuterProductMean(msa, pair, sizes['outer_width'])
        theirs = EsmFoldTriangularSelfAttentionBlock(types.SimpleNamespace(
            sequence_state_dim=8, sequence_head_width=8, pairwise_state_dim=pair,
            pairwise_head_width=pair // sizes['triangle_num_heads'], dropout=0.0))
        for name in 'tri_mul_out', 'tri_mul_in', 'tri_att_start', 'tri_att_end', 'mlp_pair':
            self.add_module(name, getattr(theirs, name))

    def forward(self, m, z):
        m = m + self.msa_att_row(m, z)
        m = m + self.msa_att_col(m)
        m = m + self.msa_transition(m)
        z = z + self.outer_product_mean(m)
        # From here as EsmFold's block: its transition adds what it reads by itself.
        z = z + self.tri_mul_out(z)
        z = z + self.tri_mul_in(z)
        z = z + self.tri_att_start(z)
        z = z + self.tri_att_end(z)
        return m, self.mlp_pair(z)


def make(out, name):
    torch.manual_seed(sum(name.encode()))
    sizes = CASES[name]
    trunk = nn.Module()
    trunk.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes['num_blocks']))
    model = nn.Module()
    model.trunk = trunk
    with torch.no_grad():
        # Every tensor matters: none is zero, and no norm is one.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    batch, residues = sizes['batch'], sizes['residues']
    msa = torch.randn(batch, sizes['sequences'], residues, sizes['msa_width'])
    pair = torch.randn(batch, residues, residues, sizes['pair_width'])
    tensors = {'msa': msa, 'pair': pair, 'gradient_of_msa_out': torch.randn_like(msa),
               'gradient_of_pair_out': torch.randn_like(pair)}
    tensors.update({f'parameter.{key}': value.detach().clone() for key, value in model.named_parameters()})

    model.double()  # Its parameters are the same values.
    msa, pair = (x.double().requires_grad_() for x in (msa, pair))
    m, z = msa, pair
    for block in trunk.blocks:
        m, z = block(m, z)
    torch.autograd.backward([m, z], [tensors['gradient_of_msa_out'].double(),
                                     tensors['gradient_of_pair_out'].double()])
    results = {'msa_out': m.detach(), 'pair_out': z.detach(), 'gradient_of_msa': msa.grad,
               'gradient_of_pair': pair.grad}
    results.update({f'gradient.{key}': value.grad for key, value in model.named_parameters()})
    tensors.update({key: value.float() for key, value in results.items()})
    metadata = {key: str(value) for key, value in sizes.items()}
    metadata['transition_factor'] = str(FACTOR)
    save_file({key: value.contiguous() for key, value in tensors.items()}, out / f'{name}.safetensors', metadata)


def main():
    out = pathlib.Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    torch.set_num_threads(1)
    for name in CASES:
        make(out, name)
    (out / 'cases.txt').write_text('\n'.join(CASES) + '\n')


if __name__ == '__main__':
    main()
