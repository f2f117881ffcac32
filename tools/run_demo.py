#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The part of tools/demo behind set-up and build: data, gemini-train in a quarter of the model's
size. Called by tools/demo, which finds the programs."""
import argparse
import hashlib
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_demo_model
import prepare_data

MIB = 2**20
BATCH = 2
SEQUENCE = 128
# A fresh model learns at a rate that would destroy a trained one.
DEMO_LEARNING_RATE = 1e-3
OWN_LEARNING_RATE = 5e-5


class DemoError(Exception):
    """What the user can mend; its text is the whole message."""


def say(text):
    print(f"== {text}", flush=True)


def find_model(name):
    """Returns the folder of a model: a folder as it is, or a name on the Hugging Face Hub."""
    if pathlib.Path(name).is_dir():
        return pathlib.Path(name).resolve()
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise DemoError(f"--model {name}: no such folder")
    say(f"Model: fetching {name} from the Hugging Face Hub")
    import huggingface_hub
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(
            name, allow_patterns=["*.json", "*.safetensors", "merges.txt", "vocab.txt", "*.model"]))
    except Exception as error:  # Of the network, the hub, its client: all mean the same here.
        raise DemoError(f"--model {name} is no folder here, and the Hugging Face Hub did not give "
                        f"it ({type(error).__name__}: {str(error).splitlines()[0]}): check the name "
                        "and the network, or give the folder of a checkpoint") from error


def tensor_sizes(model):
    """Returns the elements of every tensor in the folder's safetensors files, by name."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise DemoError(f"{model} has no .safetensors file: save the model with "
                        "save_pretrained of transformers, which writes one")
    sizes = {}
    for path in files:
        with open(path, "rb") as file:
            try:
                length, = struct.unpack("<Q", file.read(8))
                if length > 100 * MIB:
                    raise ValueError("its header would be longer than 100 MiB")
                header = json.loads(file.read(length))
            except (struct.error, ValueError) as error:
                raise DemoError(f"{path} is no safetensors file: {error}") from error
        for name, tensor in header.items():
            if name != "__metadata__":
                elements = 1
                for extent in tensor["shape"]:
                    elements *= extent
                sizes[name] = elements
    return sizes


def read_config(model):
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DemoError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise DemoError(f"{path} is no JSON: {error}") from error
    if config.get("model_type") not in ("gpt2", "opt"):
        raise DemoError(f"{path}: model_type is {config.get('model_type')!r}; gpt2 and opt can be "
                        "trained")
    return config


def activation_bytes(config, largest_tensor_bytes, batch, sequence):
    """Estimates what operators allocate at their peak, fp32, with recomputation: each block's input,
    and the most of the logits with their gradient, two copies and that of the largest tensor; the
    inside of one block; the largest gradient in two parts, as of a tied weight. For the model of
    this demonstration that is 50 MiB; 48 were measured."""
    tokens = batch * sequence
    width = config.get("n_embd") or config["hidden_size"]
    layers = config.get("n_layer") or config["num_hidden_layers"]
    heads = config.get("n_head") or config["num_attention_heads"]
    logits = tokens * config["vocab_size"] * 4
    inputs = (layers + 2) * tokens * width * 4
    inside = 48 * tokens * width * 4 + 2 * batch * heads * sequence * sequence * 4
    peak = max(3 * logits + largest_tensor_bytes, inside, 2 * largest_tensor_bytes) + inputs
    return peak + peak // 8  # Cross-entropy and hidden states are not counted one by one.


def tokens_for(model, text, work):
    """Returns the .npy of `text`, made once for each state of the text and tokenizer."""
    identity = hashlib.sha256()
    for path in [text, *sorted(model.glob("*.json"))]:
        status = path.stat()
        identity.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    output = work / f"tokens-{identity.hexdigest()[:12]}.npy"
    if output.exists():
        say(f"Tokens: {output} is there")
        return output
    say(f"Tokens: encoding {text}")
    try:
        num_tokens, dtype = prepare_data.write_tokens(prepare_data.load_tokenizer(str(model)), [text],
                                                      output)
    except prepare_data.DataError as error:
        raise DemoError(str(error)) from error
    print(f"{output}: {num_tokens} tokens of {dtype.__name__}")
    return output


def read_metrics(path):
    """Returns the objects of the steps in a metrics file; evaluations and a cut last line are left."""
    steps = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "loss" in entry:
            steps.append(entry)
    return steps


def mean_loss(steps):
    losses = [step["loss"] for step in steps if step["loss"] is not None]
    return sum(losses) / len(losses) if losses else float("nan")


def comparison(steps, parameter_bytes):
    """Returns what the summary of gemini-train does not say: the size that did not have to fit."""
    peak = max(step["device_peak_bytes"] for step in steps)
    return (f"The model did not fit: its parameters are {parameter_bytes / MIB:.1f} MiB, "
            f"{4 * parameter_bytes / MIB:.1f} MiB with gradients and moments, besides the activations. "
            f"At most {peak / MIB:.1f} MiB of DEVICE were used.")


def train(command):
    """Runs gemini-train in the foreground: it draws its progress, and Ctrl-C is for it alone."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.run(
            command, check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)).returncode
    except OSError as error:
        raise DemoError(f"{command[0]}: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, handler)


def launcher(num_ranks):
    """Returns what starts that many ranks on this machine, which may have fewer processors."""
    if num_ranks == 1:
        return []
    command = ["mpirun", "-n", str(num_ranks), "--oversubscribe", "--bind-to", "none",
               "--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return command


def run(options):
    options.work.mkdir(parents=True, exist_ok=True)
    own = options.model is not None or options.text is not None
    if options.model is None or options.text is None:
        say("Demo data: text, tokenizer and checkpoint")
        make_demo_model.main(["--packages", str(options.packages), "--output", str(options.work)])
    model = options.work / "model" if options.model is None else find_model(options.model)
    text = options.work / "corpus.txt" if options.text is None else options.text
    if not text.is_file():
        raise DemoError(f"--text {text}: no such file")
    config = read_config(model)
    sizes = tensor_sizes(model)
    tokens = tokens_for(model, text, options.work)

    parameter_bytes = 4 * sum(sizes.values())
    positions = config.get("n_positions") or config.get("max_position_embeddings") or SEQUENCE
    sequence = min(SEQUENCE, positions)
    activations = activation_bytes(config, 4 * max(sizes.values()), BATCH, sequence)
    device_bytes = parameter_bytes // 4 + activations
    if options.device_memory is None:
        say(f"DEVICE budget: {device_bytes / MIB:.1f} MiB = a quarter of {parameter_bytes / MIB:.1f} "
            f"MiB of parameters, and {activations / MIB:.1f} MiB of activations")
    device_memory = options.device_memory or f"{device_bytes // 1024}KiB"
    output = options.output or options.work / f"tuned-{model.name}"
    command = [*launcher(options.ranks), str(options.gemini_train), "--model", str(model), "--data", str(tokens),
               "--output", str(output), "--steps", str(options.steps), "--batch", str(BATCH),
               "--sequence", str(sequence), "--recompute", "--device-memory", device_memory,
               "--lr", str(OWN_LEARNING_RATE if options.model else DEMO_LEARNING_RATE),
               "--schedule", "cosine", "--warmup-steps", str(max(1, options.steps // 20))]
    if options.output is None:
        command.append("--overwrite")  # Its own folder; one that you name is never emptied.
    say("Train: " + " ".join(command))
    code = train(command)
    if code not in (0, 130):
        raise DemoError(f"gemini-train ended with {code}; its message is above. The same again, "
                        f"without set-up: {' '.join(command)}")
    steps = read_metrics(output / "metrics.jsonl")
    if not steps:
        raise DemoError(f"{output}/metrics.jsonl has no step")
    print(comparison(steps, parameter_bytes))
    if code == 130:
        print(f"stopped by Ctrl-C; it goes on with: {' '.join(command)} --resume"
              .replace(" --overwrite", ""))
        return 130
    if not own and len(steps) >= 100 and not mean_loss(steps[-10:]) < 0.8 * steps[0]["loss"]:
        raise DemoError("the loss did not fall by a fifth: something is wrong with this build; "
                        "run tools/check")
    return 0


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/demo", description=(
        "Installs what is missing, builds gemini-train, and fine-tunes a model in a DEVICE budget of "
        "a quarter of its parameters: one that it makes (about 30 M parameters), or yours."))
    parser.add_argument("--model", metavar="NAME_OR_DIR",
                        help="GPT-2 or OPT: a Hugging Face checkpoint folder, or a name on the Hub")
    parser.add_argument("--text", type=pathlib.Path, metavar="FILE", help="UTF-8 text to train on")
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps (default: 120)")
    parser.add_argument("--device-memory", metavar="SIZE", help="DEVICE budget, such as 64MiB")
    parser.add_argument("--ranks", type=int, default=1, metavar="N",
                        help="processes among which the model is divided (ZeRO stage 3), by mpirun; the DEVICE "
                             "budget is that of each (default: 1)")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR",
                        help="where the result goes (default: build/demo/tuned-MODEL, emptied first)")
    parser.add_argument("--work", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--packages", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--gemini-train", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.steps < 1 or options.ranks < 1:
        parser.error("--steps and --ranks must be at least 1")
    try:
        return run(options)
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
