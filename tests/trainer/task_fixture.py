# SPDX-License-Identifier: Apache-2.0
"""What tests of gemini-train --task share: models of transformers and rows to learn from, the draw of masks, and what
transformers computes of them."""
import json

import numpy
import safetensors.numpy
import torch
import transformers
from torch.nn import functional

from train_program import MODELS

VOCABULARY, POSITIONS, SEQUENCE = 512, 64, 32
LEARNING_RATE = 1e-3
ADAM_EPSILON = 1e-6  # With less, rounding alone moves what has almost no gradient.
MASK = 4  # Texts have tokens from 8 on, and 0 is padding.
SINGLE, SEVERAL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "attention_dropout": 0.0,
              "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
# A model takes (x * RESCALE - mean) / deviation in place of a byte x of a channel.
RESCALE, MEANS, DEVIATIONS = 1 / 255, [0.2, 0.5, 0.6], [0.3, 0.5, 0.4]


def config_of(family, **more):
    """A model of three layers, with dropout unless more is said."""
    wide = dict(vocab_size=VOCABULARY, pad_token_id=0, **more)
    if family == "gpt2":
        return transformers.GPT2Config(n_positions=POSITIONS, n_embd=128, n_layer=3, n_head=4, bos_token_id=0,
                                       eos_token_id=0, **wide)
    layers = dict(hidden_size=128, intermediate_size=352, num_hidden_layers=3, num_attention_heads=4,
                  max_position_embeddings=POSITIONS)
    if family == "bert":
        return transformers.BertConfig(**layers, **wide)
    layers.update(num_key_value_heads=2)
    if family == "llama":
        return transformers.LlamaConfig(**layers, **{"attention_dropout": 0.1, **wide})
    return transformers.Qwen3Config(**layers, head_dim=32, **{"attention_dropout": 0.1, **wide})


def save_model(model_class, config, directory):
    """A checkpoint whose values are all moved: no bias is zero, and no scale one."""
    torch.manual_seed(1)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return directory


def save_classifier(family, directory, dropout=False, **keys):
    config = config_of(family, **({} if dropout else NO_DROPOUT), **keys)
    return save_model(transformers.AutoModelForSequenceClassification.from_config, config, directory)


def vit_config(**more):
    """A model of three layers without dropout, whose images are wider than high."""
    return transformers.ViTConfig(**{
        "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3, "num_attention_heads": 4,
        "image_size": [16, 24], "patch_size": 4, **more})


def make_rows(seed, count, shortest=4, longest=SEQUENCE):
    """Texts of different lengths, of which the first fills a row."""
    draw = numpy.random.default_rng(seed)
    text = numpy.load(MODELS / "tokens.npy").astype(numpy.int32)
    lengths = [longest, *draw.integers(shortest, longest + 1, count - 1)]
    firsts = draw.integers(0, len(text) - SEQUENCE, count)
    return [text[first:first + length] for first, length in zip(firsts, lengths)]


def padded(texts):
    arrays = {name: numpy.zeros((len(texts), SEQUENCE), numpy.int32) for name in ("tokens", "documents")}
    for row, text in enumerate(texts):
        arrays["tokens"][row, :len(text)] = text
        arrays["documents"][row, :len(text)] = 1
    return arrays


def make_labels(problem, num_labels, count, seed):
    draw = numpy.random.default_rng(seed)
    if problem == SINGLE:
        return draw.integers(0, num_labels, count).astype(numpy.int32)
    if problem == SEVERAL:
        return draw.integers(0, 2, (count, num_labels)).astype(numpy.float32)
    return draw.standard_normal((count, num_labels)).astype(numpy.float32)


def labelled(problem, num_labels, seed, count, types=False, shortest=4):
    """Texts that have labels, and with types are pairs of texts but for one."""
    arrays = padded(make_rows(seed, count, shortest))
    arrays["labels"] = make_labels(problem, num_labels, count, seed + 100)
    if types:
        lengths = (arrays["documents"] > 0).sum(1)
        places = numpy.arange(SEQUENCE)
        arrays["types"] = ((places >= lengths[:, None] // 2) & (places < lengths[:, None])).astype(numpy.uint8)
        arrays["types"][1] = 0
    return arrays


def save_labelled(path, arrays, problem, num_labels, names=""):
    return save(path, arrays, task="sequence-classification", problem_type=problem, num_labels=str(num_labels),
                names=names, layout="pad")


def images(config, problem, num_labels, seed, count):
    """Noise of the size that the model takes, and labels."""
    pixels = numpy.random.default_rng(seed).integers(
        0, 256, (count, config.num_channels, *config.image_size), dtype=numpy.uint8)
    return {"pixels": pixels, "labels": make_labels(problem, num_labels, count, seed + 100)}


def save_images(path, arrays, problem, num_labels):
    rows, channels, height, width = map(str, arrays["pixels"].shape)
    safetensors.numpy.save_file(arrays, path, {
        "gemini.format": "1", "task": "image-classification", "problem_type": problem, "num_labels": str(num_labels),
        "names": json.dumps([f"kind {i}" for i in range(num_labels)]), "rows": rows, "channels": channels,
        "height": height, "width": width, "rescale": json.dumps(RESCALE), "mean": json.dumps(MEANS[:int(channels)]),
        "std": json.dumps(DEVIATIONS[:int(channels)])})
    return path


def masked(texts, per_row):
    """Rows of that many texts each, whose first and last tokens are never hidden."""
    rows = [texts[i:i + per_row] for i in range(0, len(texts), per_row)]
    arrays = padded([numpy.concatenate(row) for row in rows])
    arrays["answers"] = numpy.zeros(arrays["tokens"].shape, numpy.uint8)
    for row, documents in enumerate(rows):
        end = 0
        for number, document in enumerate(documents):
            begin, end = end, end + len(document)
            arrays["documents"][row, begin:end] = number + 1
            arrays["answers"][row, begin + 1:end - 1] = 1
    return arrays


def save_masked(path, arrays, layout, **more):
    return save(path, arrays, task="masked", layout=layout, **{"mask_token": str(MASK), **more})


def answered(texts):
    """Texts of which some tokens are answers: from one to all but the first."""
    draw = numpy.random.default_rng(len(texts))
    arrays = padded(texts)
    arrays["answers"] = numpy.zeros(arrays["tokens"].shape, numpy.uint8)
    for row, text in enumerate(texts):
        arrays["answers"][row, draw.integers(1, len(text), draw.integers(1, 2 * len(text)))] = 1
    return arrays


def save_answers(path, arrays):
    return save(path, arrays, task="causal", layout="pad")


def save(path, arrays, **metadata):
    rows, sequence = arrays["tokens"].shape
    safetensors.numpy.save_file(arrays, path, {"gemini.format": "1", "rows": str(rows), "sequence": str(sequence),
                                               **metadata})
    return path


def philox(counter, key):
    """Philox4x32-10 of a counter of four words."""
    key = [key & 0xffffffff, key >> 32]
    for _ in range(10):
        one, other = 0xd2511f53 * counter[0], 0xcd9e8d57 * counter[2]
        counter = [(other >> 32) ^ counter[1] ^ key[0], other & 0xffffffff,
                   (one >> 32) ^ counter[3] ^ key[1], one & 0xffffffff]
        key = [(key[0] + 0x9e3779b9) & 0xffffffff, (key[1] + 0xbb67ae85) & 0xffffffff]
    return counter


def hide(tokens, answers, seed, place, is_evaluation=False):
    """A row with hidden tokens, and transformers' labels: 15% of the answers, of which 80% become the mask and 10%
    another token; the closest one where none is drawn."""
    inputs, labels = tokens.astype(numpy.int64), numpy.full(len(tokens), -100)
    words = {i: philox([place & 0xffffffff, place >> 32, i, int(is_evaluation)], seed)
             for i in answers.nonzero()[0].tolist()}
    hidden = [i for i in words if words[i][0] < int(0.15 * 2 ** 32)] or [min(words, key=lambda i: words[i][0])]
    for i in hidden:
        labels[i] = tokens[i]
        if words[i][1] < round(0.8 * 2 ** 32):
            inputs[i] = MASK
        elif words[i][1] < round(0.9 * 2 ** 32):
            inputs[i] = words[i][2] * VOCABULARY >> 32
    return inputs, labels


def losses_of_masked(model, arrays, draws):
    """The sum of the losses of (row, place) pairs, each document computed alone, and how many tokens were hidden.
    `draws`: (row, and what hide() takes)."""
    inputs, attention, labels = [], [], []
    for row, drawn in draws:
        hidden, targets = hide(arrays["tokens"][row], arrays["answers"][row], **drawn)
        numbers = arrays["documents"][row]
        for number in range(1, numbers.max() + 1):
            of_document = numbers == number
            for rows, values, other in ((inputs, hidden, 0), (labels, targets, -100),
                                        (attention, numpy.ones(SEQUENCE, int), 0)):
                rows.append(numpy.full(SEQUENCE, other))
                rows[-1][:of_document.sum()] = values[of_document]
    inputs, attention, labels = (torch.tensor(numpy.stack(rows)) for rows in (inputs, attention, labels))
    logits = model(input_ids=inputs, attention_mask=attention).logits
    total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return total, int((labels >= 0).sum())


def inputs_of(arrays, rows, labels=True):
    """What a classifier of transformers takes of these rows."""
    if "pixels" in arrays:
        pixels = arrays["pixels"][rows]
        mean, deviation = (numpy.array(values[:pixels.shape[1]])[:, None, None] for values in (MEANS, DEVIATIONS))
        inputs = {"pixel_values": torch.from_numpy(((pixels * RESCALE - mean) / deviation).astype(numpy.float32))}
    else:
        inputs = {"input_ids": torch.from_numpy(arrays["tokens"][rows].astype(numpy.int64)),
                  "attention_mask": torch.from_numpy((arrays["documents"][rows] > 0).astype(numpy.int64))}
    if "types" in arrays:
        inputs["token_type_ids"] = torch.from_numpy(arrays["types"][rows].astype(numpy.int64))
    if labels:
        values = torch.from_numpy(arrays["labels"][rows])
        inputs["labels"] = values.long() if values.dtype == torch.int32 else values
    return inputs


def logits_of(model, arrays):
    with torch.no_grad():
        return model.eval()(**inputs_of(arrays, slice(None), labels=False)).logits


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), eps=ADAM_EPSILON, weight_decay=0)


def train_classifier(model_class, path, arrays, batch, accumulate, num_steps):
    """Losses and norms of gradients of transformers' steps, and its model behind them."""
    model = model_class.from_pretrained(path, dtype=torch.float32).train()
    optimizer = optimizer_of(model)
    losses, norms, num_rows = [], [], len(arrays["labels"])
    for step in range(num_steps):
        model.zero_grad()
        total = 0.0
        for micro in range(accumulate):
            first = (step * accumulate + micro) * batch
            loss = model(**inputs_of(arrays, [(first + i) % num_rows for i in range(batch)])).loss / accumulate
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return losses, norms, model


def train_masked(path, arrays, batch, num_steps, seed):
    """The same of a model of masked tokens, with steps of so many rows."""
    model = transformers.BertForMaskedLM.from_pretrained(path, dtype=torch.float32).train()
    optimizer = optimizer_of(model)
    losses, norms, num_rows = [], [], len(arrays["tokens"])
    for step in range(num_steps):
        model.zero_grad()
        places = range(step * batch, (step + 1) * batch)
        total, count = losses_of_masked(model, arrays, [(place % num_rows, {"seed": seed, "place": place})
                                                        for place in places])
        (total / count).backward()
        losses.append(total.item() / count)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return losses, norms, model
