#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memstat_plan_test.py MEMSTAT [TRACE]: runs `memstat plan` on models that nobody has here.

Only config.json files are written: the program has nothing else to go by. Its time is that of its
processor, with gemini-trace's, so that other tests beside this one do not matter. TRACE is the
program gemini-trace; a build without Torch has none.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MEMSTAT = str(pathlib.Path(sys.argv[1]).resolve())
TRACE = str(pathlib.Path(sys.argv[2]).resolve()) if any(sys.argv[2:]) else ""
KEPT_TRACE = pathlib.Path(__file__).parent / "gpt2_step.trace"
MOST_SECONDS = 1.0
ATTEMPTS = 3

GPT2 = {"model_type": "gpt2"}  # Small, as its makers have it.
GPT2_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}


def opt(hidden, layers, heads):
    return {"model_type": "opt", "hidden_size": hidden, "word_embed_proj_dim": hidden,
            "num_hidden_layers": layers, "num_attention_heads": heads, "ffn_dim": 4 * hidden}


BERT = {"model_type": "bert", "vocab_size": 30522}  # Base, as its makers have it.
LLAMA_70B = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
             "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
             "max_position_embeddings": 8192}
MIXTRAL = {"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
           "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "num_local_experts": 8, "num_experts_per_tok": 2}
# 18,432 matrices of experts.
QWEN3_MOE = {"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
             "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
             "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}


def run(folder, config, *flags, memstat=MEMSTAT):
    """Returns exit status, output, errors and processor seconds."""
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(
            config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    before = os.times()
    # No daemon's directory to be found in: it must not look for one.
    # The socket is an option of memstat itself.
    socket = flags[flags.index("--socket"):] if "--socket" in flags else ()
    flags = flags[:len(flags) - len(socket)]
    model = () if "--trace" in flags else ("--model", str(folder))
    done = subprocess.run([memstat, *socket, "plan", *model, *flags], text=True,
                          capture_output=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/nonexistent"})
    after = os.times()
    seconds = (after.children_user - before.children_user +
               after.children_system - before.children_system)
    return done.returncode, done.stdout, done.stderr, seconds


def check(condition, *shown):
    if not condition:
        print(*shown, sep="\n")
        raise AssertionError


def check_large_model(root, name, config, parameters, flags, expected, most_seconds=MOST_SECONDS):
    # The least of a few: on a machine that others use, processor time has noise, too.
    for _ in range(ATTEMPTS):
        status, text, errors, seconds = run(root / name, config, *flags)
        print(text, f"{name}: {seconds:.2f} s\n", sep="")
        if seconds < most_seconds:
            break
    check(status == 0 and errors == "", status, errors)
    check(seconds < most_seconds, f"{name} took {seconds} s of processor time")
    for line in [f"{parameters:,} parameters", "fits           yes", "DEVICE floor", "tokens/s",
                 "busy           compute", "bottleneck", "stalls", "helps most", *expected]:
        check(line in text, f"{name}: '{line}' is missing")

    status, text, _, _ = run(root / name, None, *flags, "--json")
    found = json.loads(text)
    check(status == 0 and found["fits"] is True, found)
    check(found["parameters"] == parameters, found["parameters"])
    prediction = found["prediction"]
    check(prediction["step_ns"] >= prediction["compute_ns"] > 0, prediction)
    # What lies in HOST and on NVME is every state, at its bytes a parameter and the chunks' padding.
    width = {"bf16": 14, "fp16": 16, "fp32": 16}[found["precision"]]
    states = sum(found["host"].values()) + sum(found["nvme"].values())
    check(1.0 <= states / (width * parameters) < 1.1, states / parameters)
    check(found["device_floor_bytes"] <= found["given_bytes"]["DEVICE"], found)
    check(prediction["device_peak_bytes"] <= found["given_bytes"]["DEVICE"], found)
    return found


def check_kept_trace(root, memstat=MEMSTAT):
    """A step that was foretold elsewhere: of GPT-2's smallest in bf16, 2 x 4 x 256 tokens, recomputed."""
    kept = ["--trace", str(KEPT_TRACE), "--gpu", "rtx3090", "--device", "1GiB", "--host", "64GiB"]
    status, text, errors, _ = run(root / "unused", None, *kept, memstat=memstat)
    check(status == 0, errors)
    for line in ["124,439,808 parameters in bf16", "a step of 2 x 4 x 256 tokens, activations recomputed",
                 "DEVICE floor", "lm_head", "tokens/s"]:
        check(line in text, f"'{line}' is missing", text)
    for damaged, message in [(b"", "no line of JSON"), (b"{}\n", "gemini_trace"),
                             (KEPT_TRACE.read_bytes()[:-100], "bytes behind the first line")]:
        (root / "damaged.trace").write_bytes(damaged)
        status, _, errors, _ = run(root / "unused", None, "--trace", str(root / "damaged.trace"),
                                   *kept[2:], memstat=memstat)
        check(status == 1 and message in errors, status, errors)
    status, _, errors, _ = run(root / "unused", None, "--trace", "/nonexistent", *kept[2:], memstat=memstat)
    check(status == 1 and "/nonexistent" in errors, errors)


def check_without_trace_program(root):
    """Beside a memstat alone nothing foretells a step."""
    (root / "alone").mkdir()
    alone = shutil.copy(MEMSTAT, root / "alone" / "memstat")
    status, text, errors, _ = run(root / "mixtral-alone", MIXTRAL, "--gpu", "rtx3090", "--host", "64GiB",
                                  memstat=alone)
    check(status == 1 and text == "", status, text)
    check("46702792704 parameters" in errors and f"{root}/alone/gemini-trace" in errors and
          "--trace FILE" in errors, errors)
    status, _, errors, _ = run(root / "bert-alone", {**BERT, "architectures": ["BertForMaskedLM"]}, "--gpu", "rtx3090",
                               "--host", "64GiB", "--task", "sequence-classification", memstat=alone)
    check(status == 1 and "(bert, sequence-classification) has 109483778 parameters" in errors, errors)
    check_kept_trace(root, memstat=alone)


def check_train_keys(root):
    """Keys of gemini-train behind -- say what flags before it do."""
    machine = ["--gpu", "rtx3090", "--host", "64GiB", "--json"]
    _, by_flags, errors, _ = run(root / "gpt2-xl", None, *machine, "--batch", "2", "--sequence", "512",
                                 "--accumulate", "2", "--recompute", "--precision", "bf16", "--moments", "8bit",
                                 "--device", "2GiB")
    check(by_flags != "", errors)
    _, by_keys, errors, _ = run(root / "gpt2-xl", None, *machine, "--", "--batch", "2", "--sequence", "512",
                                "--accumulate", "2", "--recompute", "--precision", "bf16",
                                "--moments", "8bit", "--device-memory", "2GiB")
    check(by_keys == by_flags, by_keys, errors)
    for keys, message in [(["--bathc", "2"], "--batch"), (["--policy", "online"], "--policy auto alone"),
                          (["--micro-batch-schedule", "vertical"], "horizontal"),
                          # Those of several ranks are not left out silently.
                          (["--pipeline", "4"], "--ranks N says how many"),
                          (["--tensor", "1d", "--tensor-size", "4"], "--ranks N says how many")]:
        status, _, errors, _ = run(root / "gpt2-xl", None, *machine, "--", *keys)
        check(status == 2 and message in errors, errors)
    # What a key says a flag may not say, too.
    status, _, errors, _ = run(root / "gpt2-xl", None, *machine, "--batch", "2", "--", "--accumulate", "2")
    check(status == 2 and "--batch" in errors, errors)


def check_output(root):
    """Any name is shown, and what cannot be written is told."""
    odd = root / os.fsdecode(b"\xff\xfe")
    machine = ["--gpu", "rtx2060", "--device", "300MiB", "--host", "64GiB", "--batch", "1", "--sequence", "64"]
    status, text, errors, _ = run(odd, GPT2, *machine, "--json")
    check(status == 0 and "\ufffd" in json.loads(text)["model"], status, errors)
    # Sizes that were tried are those that are named.
    advice = [one["change"] for one in json.loads(text)["advice"]]
    check(any("--device 600MiB" in change for change in advice), advice)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([MEMSTAT, "plan", "--model", odd, *machine], stdout=full, stderr=subprocess.PIPE, text=True)
    check(done.returncode == 1 and "could not be written" in done.stderr, done.returncode, done.stderr)


def check_request(root):
    """What memstat asks gemini-trace, by hand: the same forecast."""
    given = ["--device", "2GiB", "--host", "64GiB"]
    rates = ["--memory-bandwidth", "500GiB/s", "--pcie", "12GiB/s"]
    for machine, speed in [(["--gpu", "rtx3090"], []), (["--gpu", "cpu", *rates], ["--tflops", "20"]),
                           (rates, ["--tflops", "20"])]:
        asked = [*machine, *given, *speed, "--batch", "2", "--sequence", "512", "--recompute", "--precision", "bf16"]
        status, request, errors, _ = run(root / "gpt2-xl", None, *asked, "--print-request")
        check(status == 0, errors)
        made = subprocess.run([TRACE, "--model", str(root / "gpt2-xl")], capture_output=True, check=True,
                              input=request.encode())
        (root / "asked.trace").write_bytes(made.stdout)
        _, by_file, errors, _ = run(root, None, *machine, *given, "--trace", str(root / "asked.trace"), "--json")
        _, by_model, _, _ = run(root / "gpt2-xl", None, *asked, "--json")
        check(by_file != "", errors)
        by_file, by_model = json.loads(by_file), json.loads(by_model)
        check(by_file["advice"] == [], by_file["advice"])
        del by_file["advice"], by_model["advice"]
        check(by_file == by_model, by_file, by_model)
    # Nothing else was tried.
    _, text, errors, _ = run(root, None, *machine, *given, "--trace", str(root / "asked.trace"))
    check(text != "" and "helps" not in text, text, errors)
    # The file has its round.
    status, _, errors, _ = run(root, None, "--gpu", "rtx3090", *given, "--trace", str(root / "asked.trace"),
                               "--batch", "4")
    check(status == 2 and "--batch" in errors, errors)


def save_row(path, tensors, metadata):
    """A file of one row of eight tokens, and of other tensors of ones: (name, type, shape, bytes of an element)."""
    entries, data = {}, b""
    for name, kind, shape, size in [("tokens", "I32", [1, 8], 4), ("documents", "I32", [1, 8], 4), *tensors]:
        values = (1).to_bytes(size, "little") * shape[1]
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    metadata = {"gemini.format": "1", "rows": "1", "sequence": "8", "layout": "pad", **metadata}
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return str(path)


def save_labels(path, num_labels):
    """The row has a number for each label."""
    return save_row(path, [("labels", "F32", [1, num_labels], 4)], {
        "task": "sequence-classification", "problem_type": "regression", "num_labels": str(num_labels), "names": ""})


def check_rows(root):
    """Data that a run is given say how long its sequences are, and whether rows have several documents."""
    answers = [("answers", "U8", [1, 8], 1)]
    files = {layout: save_row(root / f"{layout}.safetensors", answers, {"task": "causal", "layout": layout})
             for layout in ("pad", "pack")}
    for layout, path in files.items():
        for flags in [], ["--ranks", "2"]:
            asked = ["--json"] if flags else ["--print-request"]
            status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "rtx3090", "--host", "64GiB", *flags, *asked,
                                          "--", "--data", path, "--precision", "bf16")
            check(status == 0, errors)
            if not flags:
                check((json.loads(text)["sequence"], json.loads(text)["has_documents"]) == (8, layout == "pack"), text)
        status, _, errors, _ = run(root / "gpt2-xl", None, "--gpu", "rtx3090", "--host", "64GiB", "--", "--data", path,
                                   "--sequence", "64")
        check(status == 1 and "rows of 8 tokens, and the run has sequences of 64" in errors, status, errors)


def check_tasks(root):
    """A model that learns another task than its config.json says has another head."""
    gpu = ["--gpu", "rtx3090", "--host", "64GiB", "--json"]
    base, of_label = 109_482_240, 769  # BERT base with its pooler; a row of the classifier and its bias.
    classification, labels = ["--task", "sequence-classification"], save_labels(root / "labels.safetensors", 5)
    found = {}
    for name, config, flags, parameters in [
            ("masked", BERT, [], 109_514_298),
            ("asked", BERT, ["--task", "masked"], 109_514_298),
            ("auto", BERT, ["--task", "auto"], 109_514_298),
            ("two", BERT, classification, base + 2 * of_label),
            ("seven", {**BERT, "num_labels": 7}, classification, base + 7 * of_label),
            ("named", {**BERT, "id2label": {"0": "a", "1": "b", "2": "c"}}, classification, base + 3 * of_label),
            ("key", BERT, ["--", *classification], base + 2 * of_label),
            ("data", BERT, ["--", *classification, "--data", labels], base + 5 * of_label),
            # The data of a job on another machine.
            ("elsewhere", BERT, ["--", *classification, "--data", "/nonexistent/a.safetensors"], base + 2 * of_label)]:
        config = {**config, "architectures": ["BertForMaskedLM"]}
        status, text, errors, _ = run(root / "bert", config, *gpu, *flags)
        check(status == 0, name, errors)
        found[name] = json.loads(text)
        check(found[name]["parameters"] == parameters, name, found[name]["parameters"])
    check("sequence-classification)" in found["two"]["model"] and "(bert, masked)" in found["masked"]["model"],
          found["two"]["model"])
    check(found["masked"] == found["asked"] == found["auto"], found["asked"])
    # The logits of a masked task are those of a vocabulary, and need more than a block does.
    floors = [(found[name]["device_floor_bytes"], found[name]["device_floor_operator"]) for name in ("masked", "two")]
    check(floors[0][0] > floors[1][0] and floors[0][1] == "forward of cls.predictions", floors)
    check("cls." not in floors[1][1] and "bert.encoder." in floors[1][1], floors)
    check(found["masked"]["prediction"]["step_ns"] > 1.2 * found["two"]["prediction"]["step_ns"], found["two"])

    # What gemini-trace is asked by a line, by its flag, and by memstat.
    status, request, errors, _ = run(root / "bert", None, *gpu[:-1], "--print-request", "--", *classification,
                                     "--data", labels, "--precision", "bf16")
    check(status == 0 and json.loads(request)["num_labels"] == 5, request, errors)
    without = json.loads(request)
    del without["task"]
    traces = [subprocess.run([TRACE, "--model", str(root / "bert"), *flags], capture_output=True, check=True,
                             input=line.encode()).stdout
              for flags, line in (((), request), (classification, json.dumps(without) + "\n"))]
    check(traces[0] == traces[1] and b"forward of classifier" in traces[0], traces[0][:500])
    (root / "task.trace").write_bytes(traces[0])
    _, by_file, errors, _ = run(root, None, *gpu, "--trace", str(root / "task.trace"))
    check(json.loads(by_file)["parameters"] == base + 5 * of_label, by_file, errors)

    for flags, status, message in [
            (["--task", "causal"], 1, "which has masked, sequence-classification"),
            (["--", "--task", "image-classification"], 1, "which has masked, sequence-classification"),
            (["--task", "maskd"], 2, "wants one of auto, causal, masked, "),
            (["--task", "masked", "--", "--batch", "2"], 2, "--task"),
            (["--", "--data", str(root / "bert" / "config.json") + ".safetensors"], 0, ""),
            (["--", "--data", save_labels(root / "broken.safetensors", 0)], 1, "broken.safetensors")]:
        got, text, errors, _ = run(root / "bert", None, *gpu, *flags)
        check(got == status and message in errors and (text == "") == (got > 0), flags, got, errors)
    made = subprocess.run([TRACE, "--model", str(root / "bert")], capture_output=True, check=True,
                          input=b'{"batch": 1, "sequence": 64, "task": "distogram"}\n')
    check(b"which has masked, sequence-classification" in made.stdout, made.stdout[:500])


def main(root):
    check_without_trace_program(root)
    if not TRACE:
        return
    made = subprocess.run([TRACE, "--model", str(root / "mixtral-alone")], capture_output=True, check=True,
                          input=b'{"batch": 1, "sequence": 64}\n{"no_such": 1}\n{"batch": 0}\n')
    lines = [line for line in made.stdout.split(b"\n") if line.startswith(b'{"')]
    check(b"no_such" in made.stdout and b"must be at least 1" in made.stdout, lines[1:])
    small = check_large_model(
        root, "gpt2-xl", GPT2_XL, 1_557_611_200,
        ["--gpu", "rtx2060", "--device", "6GiB", "--host", "32GiB", "--batch", "4",
         "--sequence", "1024", "--recompute"], ["in fp16 on rtx2060"])
    check(sum(small["nvme"].values()) == 0, small["nvme"])

    # 12 L h^2 + 13 L h + (50272 + 2050 + 2) h, as every OPT.
    middle = check_large_model(
        root, "opt-18b", opt(6144, 40, 48), 18_444_066_816,
        ["--gpu", "rtx3090", "--device", "24GiB", "--host", "64GiB", "--nvme", "1TiB", "--batch", "8",
         "--sequence", "1024", "--recompute"], ["NVMe read", "GiB written", "--host"])
    check(middle["needed_bytes"] > 14 * 18_444_066_816, middle["needed_bytes"])
    check(sum(middle["nvme"].values()) > 100 << 30, middle["nvme"])

    large = check_large_model(
        root, "opt-70b", opt(8192, 86, 64), 69_694_144_512,
        ["--gpu", "rtx3090", "--device", "24GiB", "--host", "64GiB", "--nvme", "1TiB", "--batch", "4",
         "--sequence", "1024", "--recompute"], ["bottleneck     NVMe"])
    check(large["prediction"]["step_ns"] > middle["prediction"]["step_ns"], "70B is slower than 18B")

    on_rtx3090 = ["--gpu", "rtx3090", "--device", "24GiB", "--host", "64GiB", "--nvme", "2TiB",
                  "--batch", "4", "--sequence", "1024", "--recompute"]
    # Parameters as their makers state them.
    check_large_model(root, "llama-70b", LLAMA_70B, 70_553_706_496, on_rtx3090, ["bottleneck     NVMe"])
    check_large_model(root, "mixtral-8x7b", MIXTRAL, 46_702_792_704, on_rtx3090, ["bottleneck     NVMe"])
    check_large_model(root, "qwen3-30b-a3b", QWEN3_MOE, 30_532_122_624, on_rtx3090, ["NVMe read"],
                      most_seconds=3.0)

    check_train_keys(root)
    check_output(root)
    check_rows(root)
    check_request(root)
    check_tasks(root)

    # A job that does not fit: where, by how much, and what would do.
    status, text, _, _ = run(root / "gpt2-xl", None, "--gpu", "rtx2060", "--host", "32GiB",
                             "--batch", "8")
    check(status == 1, status)
    for line in ["fits           NO: DEVICE is", "too small: ", "lm_head", "fits with", "--batch"]:
        check(line in text, text)
    status, text, _, _ = run(root / "opt-18b", None, "--gpu", "rtx3090", "--host", "64GiB",
                             "--nvme", "100GiB", "--batch", "1", "--recompute")
    check(status == 1 and "HOST and NVME are" in text and "--nvme" in text, text)

    # Everything by hand, and a step of many micro-batches.
    status, text, errors, _ = run(
        root / "gpt2-xl", None, "--device", "24GiB", "--host", "64GiB", "--tflops", "40",
        "--memory-bandwidth", "700GiB/s", "--pcie", "12GiB/s", "--accumulate", "16", "--batch", "2",
        "--precision", "fp32", "--chunk-size", "4MiB", "--update-rate", "5e8")
    check(status == 0, errors)
    check("in fp32 on a GPU of the rates given" in text and "chunks         4 MiB" in text, text)
    check("simulated with 4 micro-batches" in text, text)

    # Moments in 8 bits: 8 bytes a parameter and their scales.
    status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "rtx3090", "--host", "64GiB",
                                  "--precision", "bf16", "--moments", "8bit", "--recompute", "--json")
    check(status == 0, errors)
    found = json.loads(text)
    states = (sum(found["host"].values()) + sum(found["nvme"].values())) / found["parameters"]
    check(8.0 <= states < 8.8, states)

    # Masters and moments on NVMe, though HOST has room: 10 bytes a parameter, both ways in each step.
    status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "rtx3090", "--host", "64GiB",
                                  "--nvme", "64GiB", "--precision", "bf16", "--optimizer-tier",
                                  "nvme", "--recompute", "--json")
    check(status == 0, errors)
    found = json.loads(text)
    check(10 <= sum(found["nvme"].values()) / found["parameters"] < 10.8, found["nvme"])
    check(found["nvme"]["parameters_bytes"] + found["nvme"]["gradients_bytes"] == 0, found["nvme"])
    check(found["prediction"]["nvme_read_bytes"] == sum(found["nvme"].values()), found["prediction"])

    # A machine without a GPU, by the rates that a geminid keeps; a plan for whoever reads plans.
    costs = root / "costs.host"
    costs.write_text("host_to_device 5e9\ndevice_to_host 5e9\nnvme_read 1e9\nnvme_write 1e9\n"
                     "update_elements_per_second 2e8\ncopy_latency_ns 40000\n", encoding="utf-8")
    plan = root / "made.plan"
    status, text, errors, _ = run(root / "gpt2-xl", None, "--gpu", "cpu", "--device", "24GiB", "--host",
                                  "64GiB", "--tflops", "1", "--memory-bandwidth", "20GiB/s", "--costs",
                                  str(costs), "--batch", "1", "--plan-file", str(plan))
    check(status == 0 and "in fp32 on cpu" in text and "1,557,611,200" in text, status, text, errors)
    check(plan.stat().st_size > 10_000, plan.stat().st_size)

    # Wrong flags, with what to do.
    gpu = ["--gpu", "rtx3090", "--host", "64GiB"]
    for flags, message in [
            (["--gpu", "rtx309", "--host", "1GiB"], "did you mean 'rtx3090'"),
            (["--gpu", "rtx3090"], "--host is missing"),
            (["--host", "1GiB"], "give --gpu NAME"),
            ([*gpu, "--moments", "8bits"], "--moments 8bits: it is fp32 or 8bit"),
            ([*gpu, "--precision", "bf61"], "did you mean 'bf16'"),
            (["--gpu", "rtx2060", "--host", "1GiB", "--precision", "bf16"], "use --precision fp16"),
            (["--gpu", "rtx3090", "--host", "64GB"], "--host 64GB"),
            ([*gpu, "--pcie", "12GiB"], "write it as 12GiB/s"),
            ([*gpu, "--sequence", "4096"], "1024 positions"),
            ([*gpu, "--chunk-size", "5000"], "multiple of 4KiB"),
            ([*gpu, "--batch", "0"], "must be at least 1"),
            ([*gpu, "--costs", "/nonexistent"], "it is no cost model"),
            ([*gpu, "--kernel-time", "-1"], "--kernel-time must be above 0"),
            (["--gpu", "cpu", "--host", "1GiB"], "give --gpu NAME"),
            ([*gpu, "--no-such-flag"], "--no-such-flag")]:
        status, text, errors, _ = run(root / "gpt2-xl", None, *flags)
        check(status == 2 and message in errors and text == "", flags, status, errors)
    status, _, errors, _ = run(root / "gpt2-xl", None, "--space", "job", "--socket", "/nonexistent")
    check(status == 1 and "memstat plan: " in errors and "/nonexistent" in errors, errors)
    status, _, errors, _ = run(root / "mamba", {"model_type": "mamba"}, *gpu)
    check(status == 1 and "supported are bert, cohere, gemma" in errors, errors)
    status, _, errors, _ = run(root / "broken", "{", *gpu)
    check(status == 1 and "not a JSON object" in errors, errors)
    status, _, errors, _ = run(root / "empty", None, *gpu)
    check(status == 1 and "config.json" in errors, errors)

    done = subprocess.run([MEMSTAT, "plan", "--gpu", "list"], text=True, capture_output=True,
                          check=True)
    check("rtx3090" in done.stdout and "GB/s" in done.stdout, done.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder_name:
        main(pathlib.Path(folder_name))
    print("memstat plan: all as expected")
