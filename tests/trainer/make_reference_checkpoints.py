#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes small checkpoints with transformers, and what transformers computes from them.

OUT/<case>/                     a checkpoint directory as save_pretrained writes it
OUT/<case>.reference.safetensors  tokens, logits and loss in fp32, and the gradient of each parameter
OUT/cases.txt                   the names of the cases
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModel, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel,
                          GPT2Model, OPTConfig, OPTForCausalLM, OPTModel)

from hub_configs import HUB_CONFIGS

VOCAB = 301


def gpt2(model_class=GPT2LMHeadModel, **changes):
    settings = dict(vocab_size=VOCAB, n_positions=32, n_embd=64, n_layer=3, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
                    eos_token_id=0)
    return model_class(GPT2Config(**{**settings, **changes}))


def opt(model_class=OPTForCausalLM, **changes):
    settings = dict(vocab_size=VOCAB, max_position_embeddings=32, hidden_size=64,
                    num_hidden_layers=3, num_attention_heads=4, ffn_dim=160, dropout=0.0,
                    attention_dropout=0.0)
    return model_class(OPTConfig(**{**settings, **changes}))


def decoder(model_type, model_class=AutoModelForCausalLM, **changes):
    settings = dict(vocab_size=VOCAB, max_position_embeddings=32, hidden_size=64,
                    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                    intermediate_size=96)
    config = AutoConfig.for_model(model_type, **{**settings, **changes})
    return model_class.from_config(config)


def llama(**changes):
    return decoder('llama', **changes)


# Of 8 frequencies 4 are high, 2 low and 2 between.
LLAMA3 = dict(rope_type='llama3', rope_theta=1000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=512)
YARN = dict(rope_type='yarn', rope_theta=1000.0, factor=4.0, original_max_position_embeddings=64)
# Six pairs of each head.
LONGROPE = dict(rope_type='longrope', rope_theta=1000.0, partial_rotary_factor=0.75,
                short_factor=[1.0, 1.1, 1.3, 1.7, 2.1, 2.9], long_factor=[1.5, 2.0, 3.0, 5.0, 9.0, 17.0])
KINDS = ['full_attention', 'sliding_attention', 'sliding_attention']
GEMMA2 = dict(head_dim=16, sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=2.0,
              final_logit_softcapping=3.0)


def as_the_hub_spells_it(config):
    """Keys as they were before transformers 5, which it still reads."""
    rope = config.pop('rope_parameters')
    if 'sliding_attention' in rope:
        config['rope_local_base_freq'] = rope['sliding_attention']['rope_theta']
        rope = rope['full_attention']
    config['rope_theta'] = rope.pop('rope_theta')
    config['rope_scaling'] = None if rope == {'rope_type': 'default'} else rope
    config['torch_dtype'] = config.pop('dtype')
    kinds = config.pop('layer_types', [])
    if config['model_type'] == 'gemma3_text':
        config['sliding_window_pattern'] = kinds.index('full_attention') + 1
    if config['model_type'] == 'qwen3_moe':
        config['num_experts'] = config.pop('num_local_experts', config.get('num_experts'))
    if config['model_type'] == 'gemma':
        config['hidden_act'] = 'gelu'


def release(name):
    """A model of the shape of a release on the Hub, in the type of its files."""
    config = json.loads(HUB_CONFIGS[name])
    dtype = getattr(torch, config.get('torch_dtype', 'float32'))
    config_class = type(AutoConfig.for_model(config['model_type']))
    return AutoModelForCausalLM.from_config(config_class.from_dict(config), dtype=torch.float32), dtype, '1GB'


POST_NORM = dict(do_layer_norm_before=False, word_embed_proj_dim=32)

# name: (model, dtype, largest shard)
CASES = {
    'gpt2': lambda: (gpt2(), torch.float32, '1GB'),
    'gpt2_fp16_sharded': lambda: (gpt2(), torch.float16, '100KB'),
    'gpt2_bf16': lambda: (gpt2(), torch.bfloat16, '1GB'),
    'gpt2_untied_sharded': lambda: (gpt2(tie_word_embeddings=False), torch.float32, '150KB'),
    'gpt2_bare': lambda: (gpt2(GPT2Model), torch.float32, '1GB'),
    'gpt2_scaled': lambda: (gpt2(scale_attn_by_inverse_layer_idx=True, n_inner=96,
                                 activation_function='gelu', layer_norm_epsilon=1e-3),
                            torch.float32, '1GB'),
    'gpt2_unscaled': lambda: (gpt2(scale_attn_weights=False, activation_function='relu',
                                   n_head=2), torch.float32, '1GB'),
    'opt': lambda: (opt(), torch.float32, '1GB'),
    'opt_fp16': lambda: (opt(), torch.float16, '1GB'),
    'opt_bf16_sharded': lambda: (opt(), torch.bfloat16, '100KB'),
    'opt_untied': lambda: (opt(tie_word_embeddings=False), torch.float32, '1GB'),
    'opt_bare': lambda: (opt(OPTModel), torch.float32, '1GB'),
    'opt_no_final_norm': lambda: (opt(_remove_final_layer_norm=True), torch.float32, '1GB'),
    'opt_plain': lambda: (opt(enable_bias=False, layer_norm_elementwise_affine=False,
                              activation_function='gelu', pad_token_id=None),
                          torch.float32, '1GB'),
    'opt_post': lambda: (opt(**POST_NORM), torch.float32, '1GB'),
    'opt_post_fp16_untied_sharded': lambda: (opt(**POST_NORM, tie_word_embeddings=False),
                                             torch.float16, '100KB'),
    'opt_post_bf16': lambda: (opt(**POST_NORM), torch.bfloat16, '1GB'),
    'llama': lambda: (llama(), torch.float32, '1GB'),
    'llama_one_kv_head': lambda: (llama(num_key_value_heads=1, pad_token_id=1, rms_norm_eps=1e-3),
                                  torch.float32, '1GB'),
    'llama_pad_last': lambda: (llama(pad_token_id=-1), torch.float32, '1GB'),
    'llama_no_shared_heads': lambda: (llama(num_key_value_heads=4, head_dim=24,
                                            hidden_act='gelu_pytorch_tanh'), torch.float32, '1GB'),
    'llama_biased': lambda: (llama(attention_bias=True, mlp_bias=True), torch.float32, '1GB'),
    'llama_linear_fp16': lambda: (llama(rope_parameters=dict(rope_type='linear', factor=4.0,
                                                             rope_theta=10000.0)),
                                  torch.float16, '1GB'),
    'llama3_tied_bf16_sharded': lambda: (llama(tie_word_embeddings=True, rope_parameters=LLAMA3),
                                         torch.bfloat16, '100KB'),
    'llama_bare_tied': lambda: (decoder('llama', AutoModel, tie_word_embeddings=True),
                                torch.float32, '1GB'),
    'llama3_hub': lambda: (llama(rope_parameters=LLAMA3), torch.float32, '1GB'),
    'mistral': lambda: (decoder('mistral', sliding_window=5), torch.float32, '1GB'),
    'mistral_hub': lambda: (decoder('mistral', sliding_window=None, head_dim=24,
                                    rope_parameters=dict(rope_type='default', rope_theta=1e6)),
                            torch.float32, '1GB'),
    'qwen2': lambda: (decoder('qwen2'), torch.float32, '1GB'),
    'qwen2_windows_hub': lambda: (decoder('qwen2', use_sliding_window=True, sliding_window=5,
                                          max_window_layers=1, tie_word_embeddings=True),
                                  torch.float32, '1GB'),
    'qwen2_yarn_bf16_hub': lambda: (decoder('qwen2', rope_parameters=YARN), torch.bfloat16, '1GB'),
    'qwen3': lambda: (decoder('qwen3', head_dim=24), torch.float32, '1GB'),
    'qwen3_tied_fp16_sharded_hub': lambda: (decoder('qwen3', head_dim=16, attention_bias=True,
                                                    tie_word_embeddings=True),
                                            torch.float16, '100KB'),
    'gemma': lambda: (decoder('gemma', head_dim=24), torch.float32, '1GB'),
    'gemma_bf16_hub': lambda: (decoder('gemma', head_dim=16, num_key_value_heads=1,
                                       attention_bias=True), torch.bfloat16, '1GB'),
    'gemma2': lambda: (decoder('gemma2', **GEMMA2), torch.float32, '1GB'),
    'gemma2_hub': lambda: (decoder('gemma2', **GEMMA2, tie_word_embeddings=False),
                           torch.float32, '1GB'),
    'gemma2_uncapped': lambda: (decoder('gemma2', **{**GEMMA2, 'attn_logit_softcapping': None,
                                                     'final_logit_softcapping': None}),
                                torch.float32, '1GB'),
    'gemma3': lambda: (decoder('gemma3_text', head_dim=16, sliding_window=5,
                               query_pre_attn_scalar=8, layer_types=KINDS), torch.float32, '1GB'),
    'gemma3_bf16_sharded_hub': lambda: (decoder(
        'gemma3_text', head_dim=24, sliding_window=7, sliding_window_pattern=2,
        final_logit_softcapping=3.0, rope_parameters=dict(
            full_attention=dict(rope_type='linear', factor=8.0, rope_theta=1e4),
            sliding_attention=dict(rope_type='default', rope_theta=100.0))),
                                        torch.bfloat16, '100KB'),
    'cohere': lambda: (decoder('cohere'), torch.float32, '1GB'),
    'cohere_normed_heads_hub': lambda: (decoder('cohere', use_qk_norm=True, attention_bias=True,
                                                logit_scale=0.7, layer_norm_eps=1e-3,
                                                tie_word_embeddings=False),
                                        torch.float32, '1GB'),
    'gpt_neox': lambda: (decoder('gpt_neox', num_key_value_heads=4), torch.float32, '1GB'),
    'gpt_neox_in_turn_bf16_sharded': lambda: (decoder('gpt_neox', num_key_value_heads=4,
                                                      use_parallel_residual=False, attention_bias=False,
                                                      tie_word_embeddings=True, rope_parameters=dict(
                                                          rope_type='linear', factor=4.0, rope_theta=500.0,
                                                          partial_rotary_factor=0.5)),
                                              torch.bfloat16, '100KB'),
    'phi3': lambda: (decoder('phi3', pad_token_id=1), torch.float32, '1GB'),
    'phi3_in_part_fp16_sharded': lambda: (decoder('phi3', pad_token_id=1, sliding_window=5, tie_word_embeddings=True,
                                                  rope_parameters=LONGROPE), torch.float16, '100KB'),
    'phi3_long': lambda: (decoder('phi3', pad_token_id=1, original_max_position_embeddings=8,
                                  rope_parameters=LONGROPE), torch.float32, '1GB'),
    'mixtral': lambda: (decoder('mixtral', num_local_experts=5, num_experts_per_tok=2),
                        torch.float32, '1GB'),
    'mixtral_bf16_sharded_hub': lambda: (decoder('mixtral', num_local_experts=4, sliding_window=5),
                                         torch.bfloat16, '100KB'),
    # Of 34 tokens 60 experts leave some without any.
    'qwen2_moe': lambda: (decoder('qwen2_moe', num_experts=60, num_experts_per_tok=1,
                                  moe_intermediate_size=24, shared_expert_intermediate_size=40,
                                  mlp_only_layers=[1]), torch.float32, '1GB'),
    'qwen2_moe_windows': lambda: (decoder('qwen2_moe', num_experts=6, num_experts_per_tok=3,
                                          moe_intermediate_size=24, norm_topk_prob=True,
                                          shared_expert_intermediate_size=40, qkv_bias=False,
                                          use_sliding_window=True, sliding_window=5,
                                          max_window_layers=2), torch.float32, '1GB'),
    'qwen3_moe': lambda: (decoder('qwen3_moe', num_experts=6, num_experts_per_tok=2, head_dim=24,
                                  moe_intermediate_size=24, decoder_sparse_step=2),
                          torch.float32, '1GB'),
    'qwen3_moe_hub': lambda: (decoder('qwen3_moe', num_experts=6, num_experts_per_tok=2,
                                      moe_intermediate_size=24, norm_topk_prob=True,
                                      use_sliding_window=True, sliding_window=5,
                                      tie_word_embeddings=True), torch.float32, '1GB'),
    'opt_post_square': lambda: (opt(do_layer_norm_before=False), torch.float32, '1GB'),
    **{f'release_{name}': lambda name=name: release(name) for name in HUB_CONFIGS},
}


def in_the_files(model_type, name, tensor):
    """Names and parts of a tensor of transformers' memory as the files have them, which know one matrix
    an expert."""
    if model_type == 'gpt_neox':
        name = name.replace('lm_head.', 'embed_out.')
    if model_type == 'mixtral':
        name = name.replace('.mlp.', '.block_sparse_moe.')
        gate, up, down = 'w1', 'w3', 'w2'
    else:
        gate, up, down = 'gate_proj', 'up_proj', 'down_proj'
    if name.endswith('.experts.gate_up_proj'):
        for i, both in enumerate(tensor):
            for part, half in zip((gate, up), both.chunk(2)):
                yield name.replace('gate_up_proj', f'{i}.{part}.weight'), half
    elif name.endswith('.experts.down_proj'):
        for i, matrix in enumerate(tensor):
            yield name.replace('down_proj', f'{i}.{down}.weight'), matrix
    else:
        yield name, tensor


def make(out, name):
    torch.manual_seed(sum(name.encode()))
    model, dtype, shard = CASES[name]()
    with torch.no_grad():
        # Every parameter matters: transformers starts biases at 0 and norms at 1.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    directory = out / name
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    shards = len(list(directory.glob('*.safetensors')))
    assert (shards > 1) == ('sharded' in name), f'{name}: {shards} files'
    if name.endswith('_hub'):
        path = directory / 'config.json'
        config = json.loads(path.read_text())
        as_the_hub_spells_it(config)
        path.write_text(json.dumps(config))
    if name.startswith('release_'):
        (directory / 'config.json').write_text(HUB_CONFIGS[name.removeprefix('release_')])

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.eval()
    tokens = torch.randint(0, VOCAB, (2, 17))
    tokens[0, 3] = 1  # The padding token of OPT: no gradient from the look-up.
    result = model(input_ids=tokens, labels=tokens)
    result.loss.backward()
    tensors = {'tokens': tokens, 'logits': result.logits.detach(),
               'loss': result.loss.detach().reshape(1)}
    for parameter_name, parameter in model.named_parameters():
        for file_name, grad in in_the_files(model.config.model_type, parameter_name, parameter.grad):
            tensors['gradient.' + file_name] = grad
    save_file({key: value.contiguous() for key, value in tensors.items()},
              out / f'{name}.reference.safetensors')


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
