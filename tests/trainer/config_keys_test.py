#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each attribute of transformers' configuration classes, changed and left out: the model here must compute
what transformers computes, before a step and behind it, or be refused with a message that names the key.

GEMINI_CONFIG_PROBE, the program of config_probe.cc, loads the same directories. Weights are those of
transformers with every tensor moved, and padding tokens are among the data.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import numpy
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

VOCABULARY = 101
LEARNING_RATE = 0.1  # As in config_probe.cc.
LOGITS_TOLERANCE = 2e-5  # Of the largest.
LOSS_TOLERANCE = 1e-5  # Relative.

DECODER = dict(vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=64, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, intermediate_size=40)
ROUTER_LOSS = dict(output_router_logits=True, router_aux_loss_coef=0.3)
EXPERTS = dict(DECODER, **ROUTER_LOSS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
BASES = {
    "gpt2": dict(vocab_size=VOCABULARY, n_positions=32, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
                 embd_pdrop=0.0, attn_pdrop=0.0),
    "opt": dict(vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=48, num_hidden_layers=2,
                num_attention_heads=4, ffn_dim=40, dropout=0.0, word_embed_proj_dim=48),
    "llama": DECODER,
    "mistral": dict(DECODER, sliding_window=5),
    "mixtral": dict(DECODER, **ROUTER_LOSS, num_local_experts=4),
    "qwen2": dict(DECODER, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen2_moe": dict(EXPERTS, shared_expert_intermediate_size=24, use_sliding_window=True, sliding_window=5),
    "qwen3": dict(DECODER, head_dim=16, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3_moe": dict(EXPERTS, use_sliding_window=True, sliding_window=5),
    "gemma": dict(DECODER, head_dim=16),
    "gemma2": dict(DECODER, head_dim=16, sliding_window=5),
    "gemma3_text": dict(DECODER, head_dim=16, sliding_window=5, sliding_window_pattern=2),
    "cohere": DECODER,
    "gpt_neox": {key: value for key, value in DECODER.items() if key != "num_key_value_heads"},
    "phi3": dict(DECODER, sliding_window=5, pad_token_id=7),
    "bert": dict({key: value for key, value in DECODER.items() if key != "num_key_value_heads"},
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "vit": dict(image_size=[8, 12], patch_size=[4, 2], hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=40),
}
MASKED = {"bert"}  # They predict a token from all tokens, and not from those before it.
# What a class has by default is too large to be built here; hf_config_test has these defaults.
TOO_LARGE = {"hidden_size", "n_embd"}
# Behind a step of twelve layers, transformers in fp32 is 3e-5 from transformers in fp64. vit_test has the default.
TOO_DEEP = ("vit", "num_hidden_layers")
# What a file is, and what calls return.
NOT_TRIED = {"model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "output_attentions",
             "output_hidden_states", "return_dict"}
# Of the 13 tokens more than were there originally. GPT-NeoX rotates two pairs of a head's eight.
LONGROPE = {"rope_type": "longrope", "rope_theta": 77.0, "original_max_position_embeddings": 8,
            "short_factor": [1.1, 1.2, 1.4, 1.7, 2.1, 2.6, 3.2, 3.9],
            "long_factor": [1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 17.0, 23.0]}
# Sizes and names that mean something; others are changed by their type.
CHANGES = {
    "vocab_size": [120], "n_positions": [40], "max_position_embeddings": [40], "hidden_size": [96], "n_embd": [96],
    "n_layer": [1], "num_hidden_layers": [1], "n_head": [2], "num_attention_heads": [2, 8],
    "num_key_value_heads": [1, 4, None], "head_dim": [8, 12, None], "n_inner": [24], "intermediate_size": [24],
    "ffn_dim": [24], "moe_intermediate_size": [40], "shared_expert_intermediate_size": [40],
    "word_embed_proj_dim": [16], "hidden_act": ["gelu", "relu", "mish"],
    "hidden_activation": ["silu", "gelu"], "activation_function": ["relu", "gelu", "tanh"],
    "sliding_window": [3, None], "max_window_layers": [0, 2], "query_pre_attn_scalar": [9],
    "pad_token_id": [7, None], "num_local_experts": [3], "num_experts": [3], "num_experts_per_tok": [1],
    "decoder_sparse_step": [2], "mlp_only_layers": [[0]], "attn_logit_softcapping": [1.5, None],
    "final_logit_softcapping": [1.5, None], "logit_scale": [0.3], "router_jitter_noise": [0.1],
    "layer_types": [["full_attention", "sliding_attention"], ["full_attention", "full_attention"]],
    "sliding_window_pattern": [1],
    "use_bidirectional_attention": [True], "classifier_dropout": [0.3], "bos_token_id": [3], "eos_token_id": [4],
    "id2label": [{"0": "no", "1": "yes", "2": "perhaps"}], "label2id": [{"no": 0, "yes": 1}],
    "problem_type": ["regression"], "summary_activation": ["tanh"],
    "image_size": [[16, 4], 8, [8, 12, 4]], "patch_size": [[2, 4], 4, 3], "num_channels": [1], "pooler_act": ["relu"],
    "pooler_output_size": [32],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 77.0},
        {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0},
        {"rope_type": "llama3", "rope_theta": 77.0, "factor": 3.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 40},
        {"rope_type": "yarn", "rope_theta": 77.0, "factor": 3.0, "original_max_position_embeddings": 16},
        LONGROPE, LONGROPE | {"original_max_position_embeddings": 24, "factor": 3.0},
        {"rope_type": "dynamic", "rope_theta": 77.0, "factor": 3.0},
        {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": 0.5}],
    # As files before transformers 5 have them.
    "rope_theta": [77.0], "rope_local_base_freq": [77.0], "rotary_pct": [0.5], "rotary_emb_base": [77.0],
    "rope_scaling": [{"rope_type": "linear", "factor": 3.0}, {"type": "linear", "factor": 3.0},
                     {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 16}],
}
OF_TWO_KINDS = [  # For Gemma 3, in place of those above.
    {"full_attention": {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0},
     "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}},
    {"full_attention": {"rope_type": "default", "rope_theta": 77.0}}]
ABSENT = object()

# What is refused, and what transformers itself cannot run.
ANGLES = {"rope_parameters = dynamic", "rope_parameters = default in part"}
REFUSED = {
    "gpt2": {"activation_function = tanh", "add_cross_attention = True"},
    "opt": {"activation_function = tanh", "layerdrop = 0.3"},
    "llama": ANGLES | {"hidden_act = mish"},
    "mistral": ANGLES | {"hidden_act = mish"},
    "mixtral": {"hidden_act = mish", "rope_parameters = default in part", "router_jitter_noise = 0.1"},
    "qwen2": ANGLES | {"hidden_act = mish"},
    "qwen2_moe": ANGLES | {"hidden_act = mish"},
    "qwen3": ANGLES | {"hidden_act = mish"},
    "qwen3_moe": ANGLES | {"hidden_act = mish"},
    "gemma": ANGLES | {"hidden_act = mish", "use_bidirectional_attention = True"},
    "gemma2": ANGLES | {"use_bidirectional_attention = True"},
    "gemma3_text": {"attn_logit_softcapping = 1.5", "use_bidirectional_attention = True"},
    "cohere": ANGLES | {"hidden_act = mish"},
    "gpt_neox": {"hidden_act = mish", "rope_parameters = dynamic"},
    "phi3": {"hidden_act = mish", "embd_pdrop = 0.3"},
    "bert": {"hidden_act = mish", "is_decoder = True", "tie_word_embeddings = False"},
    "vit": {"hidden_act = mish", "num_attention_heads left out", "patch_size = 3"},
}
NOT_RUN = {
    "gpt2": set(),
    "opt": set(),
    "llama": set(),
    "mistral": {"num_key_value_heads = None", "num_key_value_heads left out"},
    "mixtral": {"num_key_value_heads = None", "num_key_value_heads left out", "rope_parameters = yarn",
                "rope_parameters = dynamic", "rope_parameters = longrope", "rope_scaling = yarn"},
    "qwen2": {"num_key_value_heads left out", "sliding_window = None"},
    "qwen2_moe": {"num_key_value_heads = None", "num_key_value_heads left out", "sliding_window = None"},
    "qwen3": {"head_dim = None", "num_key_value_heads left out", "sliding_window = None"},
    "qwen3_moe": {"num_experts_per_tok left out", "num_key_value_heads = None"},
    "gemma": {"head_dim = None", "num_key_value_heads = None", "num_key_value_heads left out"},
    "gemma2": {"head_dim = None", "num_key_value_heads = None", "sliding_window = None"},
    "gemma3_text": {"head_dim = None", "num_key_value_heads = None", "sliding_window = None"},
    "cohere": {"num_attention_heads left out"},
    "gpt_neox": set(),
    "phi3": {"pad_token_id left out", "rope_parameters = linear", "rope_parameters = llama3", "rope_parameters = yarn",
             "rope_parameters = dynamic", "rope_scaling = linear", "rope_scaling = yarn"},
    "bert": {"add_cross_attention = True", "chunk_size_feed_forward = 3", "num_attention_heads left out"},
    "vit": {"image_size = [8, 12, 4]", "patch_size left out", "problem_type = regression"},
}


# Keys of such names are not taken as harmless: changing one changes the loss in training, or is refused.
REGULARISES = re.compile("drop|jitter|loss|noise")
# But these: the first is of the head that GPT2DoubleHeadsModel has beside the language model's, and which is left out.
# The second scales the routers' loss, for which nothing is drawn. The third is of heads that classify.
WITHOUT_EFFECT = {"summary_first_dropout", "router_aux_loss_coef", "classifier_dropout"}
# Keys by which other models are regularised: a family that has no key of that name must say so.
FOREIGN_KEYS = ("activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
                "classifier_dropout", "dropout", "embd_pdrop", "ffn_dropout", "hidden_dropout", "hidden_dropout_prob",
                "input_jitter_noise", "jitter_noise", "label_smoothing_loss", "layerdrop", "loss_type",
                "resid_pdrop", "router_jitter_noise", "router_z_loss_coef", "tf_legacy_loss")


def label(key, value):
    if value is ABSENT:
        return f"{key} left out"
    if isinstance(value, dict):
        in_part = " in part" if "partial_rotary_factor" in value else ""
        value = f"{value.get('rope_type', value.get('type'))}{in_part}"
    return f"{key} = {value}"


def changes_of(model_type, key, value):
    if key == "rope_parameters" and model_type == "gemma3_text":
        return OF_TWO_KINDS
    if key == "rope_scaling" and model_type == "gemma3_text":
        return CHANGES[key][:1]  # transformers does nothing with an old "type" there.
    if key == "rope_parameters" and model_type == "gpt_neox":
        return [{name: part[:2] if isinstance(part, list) else part for name, part in change.items()}
                for change in CHANGES[key]]
    if key in CHANGES:
        return CHANGES[key]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 3]
    if isinstance(value, float):
        return [value * 1.7 if value else 0.3]
    if isinstance(value, str):
        return [value + "x"]
    return []


def variants(model_type):
    """(key, value) pairs, of which each changes the base in one place; ABSENT leaves the key out."""
    base = transformers.AutoConfig.for_model(model_type, **BASES[model_type]).to_dict()
    keys = set(base) | set(type(transformers.AutoConfig.for_model(model_type)).__annotations__)
    if "rope_parameters" in keys:
        keys |= {"rope_theta", "rope_scaling"}
    if model_type == "gemma3_text":
        keys |= {"rope_local_base_freq", "sliding_window_pattern"}
    if model_type == "gpt_neox":
        keys |= {"rotary_pct", "rotary_emb_base"}
    yield None, None
    for key in sorted(keys - NOT_TRIED):
        changes = changes_of(model_type, key, base.get(key))
        assert changes, f"{key} = {base.get(key)}: CHANGES does not say what else it may be"
        for value in changes:
            yield key, value
        if key in base and key not in TOO_LARGE and (model_type, key) != TOO_DEEP:
            yield key, ABSENT


def write(directory, model_type, key, value):
    """Writes a checkpoint whose config.json differs from the base by one key. Returns the model."""
    config = transformers.AutoConfig.for_model(model_type, **BASES[model_type]).to_dict()
    if key in ("rope_theta", "rope_scaling", "rope_local_base_freq", "rotary_pct", "rotary_emb_base"):
        config.pop("rope_parameters")
    if key in ("sliding_window_pattern", "max_window_layers", "use_sliding_window", "num_hidden_layers"):
        config.pop("layer_types", None)  # Computed from them.
    if value is ABSENT:
        config.pop(key)
    elif key is not None:
        config[key] = value
    directory.mkdir()
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    torch.manual_seed(1)
    model_class = (transformers.AutoModelForImageClassification if model_type == "vit" else
                   transformers.AutoModelForMaskedLM if model_type in MASKED else transformers.AutoModelForCausalLM)
    model = model_class.from_config(transformers.AutoConfig.from_pretrained(directory), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    path.write_text(json.dumps(config))  # As it was, and not as transformers writes it.
    return model


class Draws(TorchDispatchMode):
    """Counts the elements that dropout draws for, by its rate."""

    def __init__(self):
        super().__init__()
        self.elements = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.bernoulli_.float:
            self.elements[round(1 - args[1], 9)] += args[0].numel()
        return function(*args, **(kwargs or {}))


def batch_of(config, tokens):
    """What the model is called with, as config_probe.cc makes it of tokens."""
    if config.model_type != "vit":
        return {"input_ids": tokens, "labels": tokens}
    sizes = (len(tokens), config.num_channels, *((config.image_size,) * 2 if isinstance(config.image_size, int)
                                                 else config.image_size))
    pixels = numpy.resize(tokens.numpy(), sizes) % 17 / 8 - 1
    return {"pixel_values": torch.from_numpy(pixels).float(), "labels": torch.arange(len(tokens))}


def losses(model, tokens):
    """Logits and loss; what dropout draws; whether two losses in training mode differ; and that mode's loss after
    a step."""
    batch = batch_of(model.config, tokens)
    model.eval()
    with torch.no_grad():
        result = model(**batch)
    model.train()
    with Draws() as draws:
        loss_in_training = model(**batch).loss
    loss_in_training.backward()
    with torch.no_grad():
        dropped = loss_in_training.item() != model(**batch).loss.item()
        for parameter in model.parameters():
            if parameter.grad is not None:  # None of what the model does not use.
                parameter -= LEARNING_RATE * parameter.grad
        return (result.logits, result.loss.item(), draws.elements, dropped,
                model(**batch).loss.item())


class ConfigKeysTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        torch.manual_seed(2)
        self.tokens = torch.randint(0, VOCABULARY, (2, 13))
        self.tokens[0, 3] = self.tokens[1, 5] = 0  # What pads, by one config or another.
        self.tokens[0, 4] = self.tokens[1, 1] = 1
        self.tokens[1, 6] = self.tokens[0, 9] = 7
        self.tokens.numpy().tofile(self.directory / "tokens.bin")

    def probe(self, directories):
        done = subprocess.run([os.environ["GEMINI_CONFIG_PROBE"], self.directory / "tokens.bin", *directories],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def compare_draws(self, ours, expected):
        """Each dropout must draw for as many elements as in transformers, and drop the part that its rate says."""
        elements, zeros = collections.Counter(), collections.Counter()
        for rate, size, dropped in ours:
            elements[round(rate, 9)] += size
            zeros[round(rate, 9)] += dropped
        self.assertEqual(elements, expected)
        for rate, size in elements.items():
            deviation = (rate * (1 - rate) / size) ** 0.5
            self.assertLess(abs(zeros[rate] / size - rate), 5 * deviation)

    def test_keys_that_regularise_other_families(self):
        for model_type in BASES:
            write(self.directory / model_type, model_type, None, None)
            base = json.loads((self.directory / model_type / "config.json").read_text())
            directories = {}
            for key in FOREIGN_KEYS:
                if key in base:
                    continue  # One of its own.
                directories[key] = self.directory / f"{model_type}_{key}"
                directories[key].mkdir()
                (directories[key] / "config.json").write_text(json.dumps(dict(base, **{key: 0.3})))
                os.link(self.directory / model_type / "model.safetensors", directories[key] / "model.safetensors")
            for key, ours in zip(directories, self.probe(directories.values()), strict=True):
                with self.subTest(model_type, key=key):
                    if "refused" in ours:
                        self.assertIn(key, ours["refused"])
                    else:
                        self.assertEqual(ours["unknown"], [key], "it is taken as harmless")

    def compare(self, model_type):
        tried, not_run = [], {}
        for key, value in variants(model_type):
            directory = self.directory / str(len(tried) + len(not_run))
            try:
                computed = losses(write(directory, model_type, key, value), self.tokens)
            except Exception as error:  # transformers has many for what it cannot run.
                not_run[label(key, value)] = error
                continue
            tried.append((key, label(key, value), directory, computed))
        self.assertEqual(set(not_run), NOT_RUN[model_type], not_run)
        refused = set()
        for (key, text, directory, computed), ours in zip(tried, self.probe([one[2] for one in tried]), strict=True):
            with self.subTest(model_type, variant=text):
                self.assertEqual(ours.get("unknown", []), [])
                if "refused" in ours:
                    self.assertIn(str(key), ours["refused"])
                    refused.add(text)
                    continue
                logits, loss, draws, dropped, next_loss = computed
                found = torch.from_numpy(numpy.fromfile(directory / "logits.bin", dtype=numpy.float32))
                difference = (found.view(logits.shape) - logits).abs().max() / logits.abs().max()
                self.assertLessEqual(difference.item(), LOGITS_TOLERANCE)
                self.assertLessEqual(abs(ours["loss"] - loss), LOSS_TOLERANCE * loss)
                self.assertEqual(ours["dropped"], dropped)
                self.compare_draws(ours["draws"], draws)
                if REGULARISES.search(text) and key not in WITHOUT_EFFECT and not text.endswith(" left out"):
                    self.assertTrue(dropped, "it is taken as harmless")
                if not dropped:  # Its draws are not Python's.
                    self.assertLessEqual(abs(ours["next_loss"] - next_loss), LOSS_TOLERANCE * next_loss)
        self.assertEqual(refused, REFUSED[model_type])
        print(f"{model_type}: {len(tried)} variants, {len(refused)} refused", flush=True)


def make(model_type):
    return lambda self: self.compare(model_type)


for name in BASES:
    setattr(ConfigKeysTest, f"test_{name}", make(name))

if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    unittest.main(verbosity=2)
