# SPDX-License-Identifier: Apache-2.0
"""What tests of tools/prepare_data.py --messages share: templates of families, a tokenizer of
bytes, and a test case that finds answers in rows."""
import itertools

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from rows_fixture import PrepareRowsTest

# As the models' own templates are, less what they do with tools.
LLAMA_3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}")
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
# Qwen 3 keeps the thinking of the last answer alone.
QWEN_3 = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# It ends a text that asks for nothing.
PHI_3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + "
    "'<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")

# What transformers adds to Jinja, and what it does to messages and their keys.
ALL_OF_JINJA = (
    "{% set seen = namespace(count=0) %}{% for message in messages %}"
    "{% if loop.index > 3 %}{% break %}{% endif %}{% set seen.count = seen.count + 1 %}\n"
    "  {% if message['content'] is defined %}{{ message.content | tojson }}{% endif %}"
    "{{ message['reasoning_content'] }}{{ message.get('thinking') }}"
    "{{ (message.keys() | list) if seen.count else dict(a=1) }}{% endfor %}"
    "{{ tools is none }}{{ documents is none }}{{ bos_token }}{{ strftime_now('%Y') }}"
    "{% generation %}{{ seen.count }}{% endgeneration %}{{ add_generation_prompt }}")

SPECIAL_TOKENS = ["<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]", "<|begin_of_text|>",
                  "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>",
                  "<|im_end|>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
TEXT = ("Hello there, how are you?\n\n\n\nassistant user system model: fine, thanks! 123\n\n"
        "The answer to that question is another question.   Grüße 🙂\n") * 4


class Family:
    """A template, its tokens, and what it writes around the content of an answer."""

    def __init__(self, template, bos, eos, before="", behind="", trims=False, has_system=True):
        self.template = template
        self.bos = bos
        self.eos = eos
        self.before = before
        self.behind = behind
        self.trims = trims
        self.has_system = has_system

    def learnt(self, content):
        return self.before + (content.strip() if self.trims else content) + self.behind


FAMILIES = {
    "Llama 3": Family(LLAMA_3, "<|begin_of_text|>", "<|eot_id|>", behind="<|eot_id|>", trims=True),
    "ChatML": Family(CHATML, None, "<|im_end|>", behind="<|im_end|>"),
    "Mistral": Family(MISTRAL, "<s>", "</s>", before=" ", behind="</s>", has_system=False),
    "Gemma": Family(GEMMA, "<bos>", "<|endoftext|>", behind="<end_of_turn>", trims=True,
                    has_system=False),
}


def byte_tokenizer(special_tokens=SPECIAL_TOKENS):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=600, special_tokens=special_tokens, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def system(content):
    return {"role": "system", "content": content}


class PrepareChatsTest(PrepareRowsTest):
    def family(self, name):
        family = FAMILIES[name]
        tokens = {"eos_token": family.eos}
        if family.bos:
            tokens["bos_token"] = family.bos
        self.model(byte_tokenizer(), family.template, **tokens)
        return family

    def answers(self, tensors):
        """Returns the text of each answer: one list a document, in the order of the rows."""
        result = []
        for tokens, answers, documents in zip(
                tensors["tokens"], tensors["answers"], tensors["documents"]):
            for number in range(1, documents.max() + 1):
                mine = documents == number
                runs = itertools.groupby(zip(tokens[mine], answers[mine]), key=lambda pair: pair[1])
                result.append([self.tokenizer.decode([token for token, _ in run],
                                                     skip_special_tokens=False)
                               for answer, run in runs if answer])
        return result
