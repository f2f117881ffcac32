#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the small Hugging Face checkpoints and tokens that the tests of gemini-train share.

make_models.py DIRECTORY: writes a folder for each name in configs() by transformers, the same with three
layers in DIRECTORY/three_layers, and tokens.
"""
import pathlib
import sys

import numpy
import torch
import transformers

VOCABULARY = 512
ODD_VOCABULARY = 301
POSITIONS = 64


def configs():
    """Shapes whose largest tensor is far below a quarter of the model, in four blocks."""
    yield "gpt2", transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=128, n_layer=4, n_head=4,
        bos_token_id=0, eos_token_id=0)
    opt = dict(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=128, ffn_dim=512,
               num_hidden_layers=4, num_attention_heads=4, pad_token_id=1, bos_token_id=2,
               eos_token_id=2, dropout=0.1)
    yield "opt", transformers.OPTConfig(**opt, word_embed_proj_dim=128, do_layer_norm_before=True)
    yield "opt_post_norm", transformers.OPTConfig(**opt, word_embed_proj_dim=64,
                                                  do_layer_norm_before=False)
    yield "llama", transformers.LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=128, intermediate_size=352,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1)
    decoder = dict(vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=128,
                   intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
                   num_key_value_heads=2, head_dim=32, attention_dropout=0.1)
    yield "mistral", transformers.MistralConfig(**decoder, sliding_window=12)
    yield "qwen2", transformers.Qwen2Config(**decoder, use_sliding_window=True, sliding_window=12,
                                            max_window_layers=2)
    yield "qwen3", transformers.Qwen3Config(**decoder)
    yield "gemma", transformers.GemmaConfig(**decoder)
    yield "gemma2", transformers.Gemma2Config(**decoder, sliding_window=12, query_pre_attn_scalar=32,
                                              attn_logit_softcapping=5.0)
    yield "gemma3", transformers.Gemma3TextConfig(**decoder, sliding_window=12, query_pre_attn_scalar=32,
                                                  sliding_window_pattern=2)
    yield "mixtral", transformers.MixtralConfig(**decoder, num_local_experts=4, output_router_logits=True,
                                                router_aux_loss_coef=0.1)
    # Of 64 tokens some of 32 experts are left without any. A block is below a quarter of the model.
    yield "qwen2_moe", transformers.Qwen2MoeConfig(
        **dict(decoder, num_hidden_layers=6), num_experts=32, num_experts_per_tok=1,
        moe_intermediate_size=24, shared_expert_intermediate_size=64)
    yield "qwen3_moe", transformers.Qwen3MoeConfig(
        **dict(decoder, num_hidden_layers=6), num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        moe_intermediate_size=64)
    yield "cohere", transformers.CohereConfig(**decoder, use_qk_norm=True)
    yield "gpt_neox", transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=128, intermediate_size=352,
        num_hidden_layers=4, num_attention_heads=4, attention_dropout=0.1, hidden_dropout=0.1)
    yield "phi3", transformers.Phi3Config(
        vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=128, intermediate_size=352,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1, resid_pdrop=0.1,
        pad_token_id=1)


def wide_config():
    """A model of some hundred chunks of 1 MiB, for what depends on a chunk's size."""
    return transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=512, n_layer=6, n_head=8,
                                   bos_token_id=0, eos_token_id=0)


def odd_configs():
    """Models whose tables have rows that divide by no number of ranks."""
    yield "odd_rows", transformers.LlamaConfig(
        vocab_size=ODD_VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=64, intermediate_size=256,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1)
    yield "odd_rows_tied", transformers.GPT2Config(
        vocab_size=ODD_VOCABULARY, n_positions=POSITIONS, n_embd=64, n_layer=4, n_head=4, bos_token_id=0,
        eos_token_id=0)
    yield "odd_rows_opt", transformers.OPTConfig(
        vocab_size=ODD_VOCABULARY, max_position_embeddings=POSITIONS, hidden_size=64, ffn_dim=256,
        num_hidden_layers=4, num_attention_heads=4, word_embed_proj_dim=64, pad_token_id=1,
        activation_function="gelu")  # Of a ReLU, a rounding decides on which side of 0 an input is.


def with_layers(config, count):
    """The configuration with the first `count` of its layers."""
    keys = config.to_dict()
    keys["n_layer" if "n_layer" in keys else "num_hidden_layers"] = count
    if keys.get("layer_types"):
        keys["layer_types"] = keys["layer_types"][:count]
    return type(config).from_dict(keys)


def save(config, directory):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # No bias zero, no scale one.
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(directory)


def tokens(count, seed, vocabulary=VOCABULARY):
    """A noisy walk over the vocabulary, so that there is something to learn."""
    random = numpy.random.default_rng(seed)
    steps = random.integers(1, 4, count)
    jumps = random.random(count) < 0.05
    steps[jumps] = random.integers(0, vocabulary, int(jumps.sum()))
    return (numpy.cumsum(steps) % (vocabulary - 8) + 8).astype(numpy.uint16)  # Never a special token.


def make_crowded(root):
    """A router over eight experts and, of as many sequences as two steps of eight ranks take, random ones. In
    crowded.npy one of them is a single token over and over, so that one expert has all of it."""
    length = 1024
    save(transformers.MixtralConfig(
        vocab_size=VOCABULARY, max_position_embeddings=length, hidden_size=64, intermediate_size=256,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_local_experts=8,
        num_experts_per_tok=1), root / "router")
    data = numpy.random.default_rng(4).integers(8, VOCABULARY, (16, length)).astype(numpy.uint16)
    numpy.save(root / "dealt.npy", data.ravel())
    data[10] = 77
    numpy.save(root / "crowded.npy", data.ravel())


def main(directory):
    root = pathlib.Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    for name, config in configs():
        save(config, root / name)
        save(with_layers(config, 3), root / "three_layers" / name)
    for name, config in odd_configs():
        save(config, root / name)
    save(wide_config(), root / "gpt2_wide")
    make_crowded(root)
    numpy.save(root / "tokens.npy", tokens(20_000, seed=2))
    numpy.save(root / "eval.npy", tokens(1_000, seed=3).astype(numpy.uint32))
    numpy.save(root / "eval_short.npy", tokens(300, seed=3))
    numpy.save(root / "odd_tokens.npy", tokens(20_000, seed=2, vocabulary=ODD_VOCABULARY))
    numpy.save(root / "odd_eval.npy", tokens(300, seed=3, vocabulary=ODD_VOCABULARY))


if __name__ == "__main__":
    main(sys.argv[1])
