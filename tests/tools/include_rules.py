#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and the outer form of every source file (docs/style.md, 2 and 8).

include_rules.py ROOT        checks the tree, prints one line a violation, exits with 1 if any
include_rules.py --self-test plants every kind of violation and checks that it is found
"""
import pathlib
import re
import sys
import tempfile

# What the files of a folder may include of ours; the longest folder that fits counts.
MAY_INCLUDE = {
    "gemini": ["gemini"],
    "policies": ["gemini", "policies"],
    "server": ["gemini", "policies", "server"],
    "client": ["gemini", "policies", "client"],
    "client/torch": ["gemini", "policies", "client", "client/torch"],
    "trainer": ["gemini", "policies", "client", "client/torch", "trainer"],
    "tools": ["gemini", "policies", "server", "client", "client/torch", "trainer", "tools"],
    "docs/examples": ["gemini", "client", "client/torch"],
    "tests": ["gemini", "policies", "server", "client", "client/torch", "trainer", "tools", "tests"],
}
# Besides the folder's own rule: the headers by which programs embed the server, and give it a GPU.
EMBEDDED_SERVER = {"server/embedded_server.h", "server/gpu_device.h"}
MAY_EMBED = re.compile(r"(trainer/gemini_train\.cc|docs/examples/.*|tools/.*|tests/.*)$")
MAY_USE_TORCH = re.compile(r"(client/torch|trainer|tools|tests|docs/examples)/")
# A build without a CUDA toolkit leaves these out.
MAY_USE_CUDA = re.compile(r"tests/gpu/|.*cuda[^/]*$")
CUDA_INCLUDE = re.compile(r"(cuda|nccl|nvml|cupti)[^/]*\.h$|.*/[^/]*cuda[^/]*\.h$")
TORCH_INCLUDE = re.compile(r"(torch|ATen|c10)/")
TORCH_NAME = re.compile(r"(?<!namespace )\b(at|c10|torch)::")
TORCH_DECLARATION = re.compile(r"\bnamespace (at|c10|torch)\b")
TEST_ONLY = re.compile(r"(^tests/|_(faulty|conformance|test|fuzz|bench)\.h$)")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
# Where it is a date that is asked for. Time-outs and durations are of gemini/monotonic_clock.h: the wall clock jumps.
WALL_CLOCK = re.compile(r"\babsl::Now\(|\bsystem_clock::now\(|\bCLOCK_REALTIME\b")
MAY_USE_WALL_CLOCK = re.compile(r"server/server_requests\.cc$|trainer/training_loop\.cc$|tests/")
TAKES_TIME = re.compile(r"absl::Now\(\)\s*[-+<>]|[-+<>]=?\s*absl::Now\(")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SOURCE_ROOTS = ["gemini", "policies", "server", "client", "trainer", "tools", "tests", "docs/examples"]
MOST_LINES = {".h": 300, ".cc": 600, ".cu": 600}


def folder_rule(path):
    fitting = [folder for folder in MAY_INCLUDE if path.startswith(folder + "/")]
    return max(fitting, key=len)


def home_of(include):
    """The folder of ours that an include names, or None for somebody else's header."""
    fitting = [folder for folder in MAY_INCLUDE if include.startswith(folder + "/")]
    return max(fitting, key=len) if fitting else None


def reaches_torch(root, path, seen):
    """Whether `path` includes a header of Torch, itself or through headers of ours."""
    if path in seen or not (root / path).exists():
        return False
    seen.add(path)
    code = COMMENT.sub("", (root / path).read_text(encoding="utf-8"))
    return any(TORCH_INCLUDE.match(include) or
               (home_of(include) and reaches_torch(root, include, seen))
               for _, include in INCLUDE.findall(code))


def violations_of(root, path):
    text = (root / path).read_text(encoding="utf-8")
    if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
        yield "does not begin with the SPDX line"
    num_lines = text.count("\n")
    most_lines = MOST_LINES[pathlib.PurePosixPath(path).suffix]
    if num_lines > most_lines:
        yield f"has {num_lines} lines, at most {most_lines}: look for the second concept"
    if path.endswith(".h") and "#pragma once" not in text:
        yield "has no #pragma once"
    code = COMMENT.sub("", text)
    includes = INCLUDE.findall(code)
    rule = folder_rule(path)
    in_tests = path.startswith("tests/")
    for quote, include in includes:
        home = home_of(include)
        if home == "gemini" and include.endswith("_generated.h"):
            continue
        if home is not None:
            if quote != '"':
                yield f"includes <{include}>: ours are in quotes"
            if not (root / include).exists():
                yield f"includes {include}, which does not exist"
            allowed = home in MAY_INCLUDE[rule] or (
                include in EMBEDDED_SERVER and MAY_EMBED.match(path))
            if not allowed:
                yield f"includes {include}: {rule} may include {', '.join(MAY_INCLUDE[rule])} only"
            if TEST_ONLY.search(include) and not in_tests and not path.endswith("_bench.cc"):
                yield f"includes {include}, which is for tests only"
        elif quote == '"' and "/" not in include:
            yield f'includes "{include}": includes start at the root of the repository'
        if TORCH_INCLUDE.match(include) and not MAY_USE_TORCH.match(path):
            yield f"includes {include}: only client/torch and trainer see Torch"
        if CUDA_INCLUDE.match(include) and not MAY_USE_CUDA.match(path):
            yield f"includes {include}: only tests/gpu and files named after CUDA do"
    if TAKES_TIME.search(code) and not in_tests:
        yield "takes a time-out or a duration by the wall clock: MonotonicNow of gemini/monotonic_clock.h"
    elif WALL_CLOCK.search(code) and not MAY_USE_WALL_CLOCK.match(path):
        yield "asks the wall clock: for a date it is added to MAY_USE_WALL_CLOCK, else MonotonicNow serves"
    # The target verify_torch_headers compiles behind precompiled Torch headers and cannot see this.
    undeclared = set(TORCH_NAME.findall(code)) - set(TORCH_DECLARATION.findall(code))
    if path.endswith(".h") and undeclared and not reaches_torch(root, path, set()):
        yield "names Torch's types and includes no header of Torch: it does not compile alone"
    own_header = path[:-3] + ".h" if path.endswith((".cc", ".cu")) else ""
    if own_header and (root / own_header).exists() and includes:
        if includes[0] != ('"', own_header):
            yield f"must include {own_header} first: that shows that it compiles alone"


def check(root):
    found = []
    for source_root in SOURCE_ROOTS:
        for file in sorted((root / source_root).rglob("*")):
            if file.suffix in MOST_LINES and file.is_file():
                path = file.relative_to(root).as_posix()
                found += [f"{path}: {violation}" for violation in violations_of(root, path)]
    return found


def self_test():
    spdx = "// SPDX-License-Identifier: Apache-2.0\n"
    header = spdx + "#pragma once\n"
    good = {
        "gemini/a.h": header,
        "server/embedded_server.h": header + '#include "gemini/a.h"\n',
        "client/a.cc": spdx + '#include "client/a.h"\n\n#include <vector>\n#include "gemini/a.h"\n',
        "client/a.h": header + '// #include "server/embedded_server.h" in a comment is none.\n',
        "client/torch/h.h": header + '#include "ATen/Tensor.h"\nvoid F(at::Tensor);\n',
        "client/torch/j.h": header + '#include "client/torch/h.h"\nvoid G(at::Tensor);\n',
        "client/torch/k.h": header + "namespace torch::nn {\nclass Module;\n}\n"
                                     "void H(const torch::nn::Module&);\n",
        "server/gpu_device.h": header + '#include "gemini/a.h"\n',
        "trainer/gemini_train.cc": spdx + '#include "server/embedded_server.h"\n'
                                          '#include "server/gpu_device.h"\n',
        "server/server_requests.cc": spdx + "wear.Add(absl::Now());  // absl::Now() + 1 s\n",
        "gemini/cuda_a.h": header + "#include <cuda.h>\n",
        "gemini/cuda_a.cu": spdx + '#include "gemini/cuda_a.h"\n',
        "server/a_cuda.cc": spdx + '#include "gemini/cuda_a.h"\n',
        "tests/client/a_test.cc": spdx + '#include "server/embedded_server.h"\n',
    }
    bad = {
        "gemini/b.h": (header + '#include "server/embedded_server.h"\n', "gemini may include"),
        "server/b.cc": (spdx + '#include "client/a.h"\n', "server may include"),
        "client/b.cc": (spdx + '#include "server/embedded_server.h"\n', "client may include"),
        "client/c.cc": (spdx + '#include "client/torch/h.h"\n', "client may include"),
        "client/d.cc": (spdx + "#include <torch/torch.h>\n", "see Torch"),
        "client/l.cc": (spdx + "#include <cuda_runtime_api.h>\n", "named after CUDA"),
        "server/c.cc": (spdx + '#include "gemini/cuda_a.h"\n', "named after CUDA"),
        "trainer/b.cc": (spdx + '#include "server/embedded_server.h"\n', "trainer may include"),
        "trainer/d.cc": (spdx + '#include "server/gpu_device.h"\n', "trainer may include"),
        "client/torch/i.h": (header + "void F(at::Tensor);\n", "does not compile alone"),
        "client/e.cc": (spdx + '#include "tests/status_matchers.h"\n', "tests"),
        "client/f.cc": (spdx + "#include <gemini/a.h>\n", "in quotes"),
        "client/g.cc": (spdx + '#include "a.h"\n', "start at the root"),
        "client/h.cc": (spdx + '#include "gemini/none.h"\n', "does not exist"),
        "client/i.h": (spdx, "pragma once"),
        "client/j.cc": ("#include <vector>\n", "SPDX"),
        "client/k.cc": (spdx + "\n" * 600, "601 lines"),
        "client/m_cuda.cu": (spdx + "\n" * 600, "601 lines"),
        "gemini/a.cc": (spdx + '#include <vector>\n#include "gemini/a.h"\n', "first"),
        "client/n.cc": (spdx + "absl::Time t = absl::Now();\n", "wall clock"),
        "trainer/training_loop.cc": (spdx + "auto end = absl::Now() + wait;\n", "time-out"),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(path, text):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")

        for path, text in good.items():
            write(path, text)
        assert check(root) == [], check(root)
        for path, (text, message) in bad.items():
            write(path, text)
            found = check(root)
            assert len(found) >= 1 and all(f.startswith(path + ":") for f in found), (path, found)
            assert any(message in f for f in found), (path, message, found)
            (root / path).unlink()
    print(f"found each of {len(bad)} planted violations, none in {len(good)} good files")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 1:
        sys.exit(__doc__)
    found = check(pathlib.Path(arguments[0]))
    print("\n".join(found) or "every include and file is in order")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
