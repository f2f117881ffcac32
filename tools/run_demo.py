#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The part of tools/demo behind set-up and build: data, gemini-train in a quarter of the model's
size, and for chats the answers before and after. Called by tools/demo, which finds the programs."""
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
import demo_answers
import make_demo_chats
import make_demo_model
import prepare_data
import safetensors  # prepare_data has found the Python that has it.

MIB = 2**20
DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
BATCH = 2
SEQUENCE = 128
CHAT_SEQUENCE = 256  # One row in place of two: the same tokens a step, and room for longer chats.
TEXT_STEPS = 120
# Chats are learnt by heart, which takes some 15 passes; more than the most would take minutes.
CHAT_PASSES, LEAST_CHAT_STEPS, MOST_CHAT_STEPS = 20, 150, 300
NUM_QUESTIONS = 3
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


def read_config(model, families=("gpt2", "opt")):
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DemoError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise DemoError(f"{path} is no JSON: {error}") from error
    if config.get("model_type") not in families:
        raise DemoError(f"{path}: model_type is {config.get('model_type')!r}; "
                        f"{' and '.join(families)} can be trained")
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
    num_tokens, dtype = prepare_data.write_tokens(prepare_data.load_tokenizer(str(model)), [text],
                                                  output)
    print(f"{output}: {num_tokens} tokens of {dtype.__name__}")
    return output


def rows_for(model, chats, work):
    """Returns the rows that tools/prepare_data.py --messages makes, which says what they are."""
    rows = work / "rows.safetensors"
    program = pathlib.Path(__file__).resolve().with_name("prepare_data.py")
    command = [sys.executable, str(program), "--tokenizer", str(model), "--messages", str(chats),
               "--sequence", str(CHAT_SEQUENCE), "--pack", "--too-long", "drop",
               "--output", str(rows)]
    say("Rows: " + " ".join(command))
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise DemoError(f"prepare_data.py ended with {code}; its message is above")
    return rows


def chat_steps(rows):
    """Returns how many steps learn a file of rows, of which each rank takes one in a step."""
    with safetensors.safe_open(rows, "numpy") as file:
        num_rows = int(file.metadata()["rows"])
    return min(max(CHAT_PASSES * num_rows, LEAST_CHAT_STEPS), MOST_CHAT_STEPS)


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


def find_text(options):
    """Returns the folder of a model and the text that it learns: the user's, or made here."""
    if options.model is None or options.text is None:
        say("Demo data: text, tokenizer and checkpoint")
        make_demo_model.main(["--packages", str(options.packages), "--output", str(options.work)])
    model = options.work / "model" if options.model is None else find_model(options.model)
    text = options.work / "corpus.txt" if options.text is None else options.text
    if not text.is_file():
        raise DemoError(f"--text {text}: no such file")
    return model, text


def make_chat_model(options):
    """Returns the folder of a model that is made here, and the chats that it learns."""
    say("Demo data: chats, tokenizer and checkpoint")
    source = ["--messages", options.messages] if options.messages else ["--docs", str(DOCS)]
    make_demo_chats.main([*source, "--output", str(options.work)])
    return (options.work / "model",
            pathlib.Path(options.messages or options.work / make_demo_chats.CHATS))


def show_answers(model, tuned, chats_path):
    """Shows what a model answers to the first chats, before and after it learnt them."""
    say(f"Answers of transformers, greedily, of {model} and {tuned}")
    chats = make_demo_chats.read_chats(chats_path, NUM_QUESTIONS)
    before, after = (demo_answers.answers_of(folder, chats) for folder in (model, tuned))
    print(demo_answers.side_by_side(chats, before, after))
    learnt = sum(answer == messages[-1]["content"] for answer, messages in zip(after, chats))
    print(f"{learnt} of {len(chats)} answers are now those of the chats, word for word.")


def check_losses(steps, is_chat):
    """Raises a DemoError where a model that was made here did not learn."""
    first, last = steps[0]["loss"], mean_loss(steps[-10:])
    if is_chat:
        print(f"The loss of the answers went from {first:.2f} to {last:.2f}.")
        if not last < first / 2:
            raise DemoError(f"the loss of the answers went from {first:.2f} to {last:.2f} in "
                            f"{len(steps)} steps, which is not below half of the first: many "
                            f"chats need more than --steps {len(steps)}; if these are the demo's "
                            "own chats and steps, something is wrong with this build: run "
                            "tools/check")
    elif len(steps) >= 100 and not last < 0.8 * first:
        raise DemoError("the loss did not fall by a fifth: something is wrong with this build; "
                        "run tools/check")


def run(options):
    is_chat = options.messages is not None
    if is_chat:
        options.work = options.work / "chats"
    options.work.mkdir(parents=True, exist_ok=True)
    model, source = make_chat_model(options) if is_chat else find_text(options)
    config = read_config(model, ("qwen3",)) if is_chat else read_config(model)
    sizes = tensor_sizes(model)
    data = rows_for(model, source, options.work) if is_chat else (
        tokens_for(model, source, options.work))

    parameter_bytes = 4 * sum(sizes.values())
    positions = config.get("n_positions") or config.get("max_position_embeddings") or SEQUENCE
    batch, sequence = (1, CHAT_SEQUENCE) if is_chat else (BATCH, min(SEQUENCE, positions))
    activations = activation_bytes(config, 4 * max(sizes.values()), batch, sequence)
    device_bytes = parameter_bytes // 4 + activations
    if options.device_memory is None:
        say(f"DEVICE budget: {device_bytes / MIB:.1f} MiB = a quarter of {parameter_bytes / MIB:.1f} "
            f"MiB of parameters, and {activations / MIB:.1f} MiB of activations")
    device_memory = options.device_memory or f"{device_bytes // 1024}KiB"
    output = options.output or options.work / f"tuned-{model.name}"
    num_steps = options.steps or (chat_steps(data) if is_chat else TEXT_STEPS)
    command = [*launcher(options.ranks), str(options.gemini_train), "--model", str(model),
               "--data", str(data), "--output", str(output), "--steps", str(num_steps),
               "--batch", str(batch), "--sequence", str(sequence), "--recompute",
               "--device-memory", device_memory,
               "--lr", str(OWN_LEARNING_RATE if options.model else DEMO_LEARNING_RATE),
               "--schedule", "cosine", "--warmup-steps", str(max(1, num_steps // 20))]
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
    if is_chat:
        show_answers(model, output / "latest", source)
    if options.model is None and options.text is None:
        check_losses(steps, is_chat)
    return 0


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/demo", description=(
        "Installs what is missing, builds gemini-train, and fine-tunes a model in a DEVICE budget "
        "of a quarter of its parameters: one that it makes (about 30 M parameters), or yours. With "
        "--messages, one that it makes (13 M parameters) learns the answers of chats."))
    parser.add_argument("--model", metavar="NAME_OR_DIR",
                        help="GPT-2 or OPT: a Hugging Face checkpoint folder, or a name on the Hub")
    parser.add_argument("--text", type=pathlib.Path, metavar="FILE", help="UTF-8 text to train on")
    parser.add_argument("--messages", nargs="?", const="", metavar="FILE.jsonl",
                        help="chats to learn the answers of, as docs/data.md describes them "
                             "(default: questions about this project's documents)")
    parser.add_argument("--steps", type=int, metavar="N",
                        help=f"optimizer steps (default: {TEXT_STEPS}, of chats "
                             f"{LEAST_CHAT_STEPS} to {MOST_CHAT_STEPS})")
    parser.add_argument("--device-memory", metavar="SIZE", help="DEVICE budget, such as 64MiB")
    parser.add_argument("--ranks", type=int, default=1, metavar="N",
                        help="processes among which the model is divided (ZeRO stage 3), by "
                             "mpirun; the DEVICE budget is that of each (default: 1)")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR",
                        help="where the result goes (default: build/demo/tuned-MODEL, of chats "
                             "build/demo/chats/tuned-model; emptied first)")
    parser.add_argument("--work", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--packages", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--gemini-train", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ranks < 1 or options.steps is not None and options.steps < 1:
        parser.error("--steps and --ranks must be at least 1")
    if options.messages is not None and (options.model or options.text):
        parser.error("--messages makes its own model, and goes without --model and --text")
    try:
        return run(options)
    except (DemoError, prepare_data.DataError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
