# SPDX-License-Identifier: Apache-2.0
"""What a model answers to chats before and after it learnt them, as tools/demo --messages shows."""
import itertools
import shutil
import textwrap

LONGEST_ANSWER = 64  # Tokens.
MOST_LINES = 4  # Of an answer.


def answers_of(model, chats):
    """Returns what transformers generates greedily, from a model's folder, where chats end."""
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    answers = []
    for messages in chats:
        # In a list, what stands before an answer may be nothing.
        asked = tokenizer.apply_chat_template([messages[:-1]], add_generation_prompt=True,
                                              return_dict=True, return_tensors="pt")
        with torch.no_grad():
            tokens = network.generate(**asked, do_sample=False, max_new_tokens=LONGEST_ANSWER)
        answers.append(tokenizer.decode(tokens[0, asked["input_ids"].shape[1]:],
                                        skip_special_tokens=True))
    return answers


def side_by_side(chats, before, after):
    """Returns the last question of each chat with two answers below it, in columns."""
    column = (shutil.get_terminal_size().columns - 4) // 2
    lines = []
    for messages, *answers in zip(chats, before, after, strict=True):
        question = (messages[-2]["content"] or "") if len(messages) > 1 else ""
        lines.append(textwrap.shorten(question, 2 * column))
        columns = [[head, *textwrap.wrap(_printable(answer), column, max_lines=MOST_LINES,
                                         placeholder=" ...")]
                   for head, answer in zip(("before", "after"), answers, strict=True)]
        for left, right in itertools.zip_longest(*columns, fillvalue=""):
            lines.append(f"  {left:{column}}  {right}".rstrip())
    return "\n".join(lines)


def _printable(text):
    """Replaces what would move a terminal's cursor, which a model that learnt nothing may write."""
    return "".join(c if c.isprintable() or c.isspace() else "?" for c in text)
