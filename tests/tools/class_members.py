#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the members of every class, as clang understands the code, and refuses large ones.

class_members.py ROOT [--all] [--generated DIR] [--torch DIR]
    checks the classes of all headers, and the State or Impl that a source gives one of them
    --all prints every class with more than half of what is allowed
    --torch: LibTorch's folder; without it headers that include Torch are left out

A member is a field, a static one too, or a declared function; those of a nested State or Impl are its owner's. Nested
types count for themselves.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_MEMBERS = 40
SOURCE_ROOTS = ["gemini", "policies", "server", "client", "trainer", "tools"]
INCLUDE = re.compile(r'#include "([^"]+)"')
TORCH_INCLUDE = re.compile(r'#include [<"](torch|ATen|c10)/')
OWN_STATE = re.compile(r"^(?:class|struct) (\w+)::(State|Impl)\b", re.MULTILINE)
# A namespace of what flatc makes.
GENERATED = "wire"
COUNTED = {"FieldDecl", "VarDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXDestructorDecl", "CXXConversionDecl",
           "FunctionTemplateDecl"}


def includes_torch(root, path, known):
    if path not in known:
        known[path] = False
        text = (root / path).read_text(encoding="utf-8")
        known[path] = bool(TORCH_INCLUDE.search(text)) or any(
            includes_torch(root, include, known) for include in INCLUDE.findall(text) if (root / include).exists())
    return known[path]


def dump(root, text, flags, name_filter):
    """The declarations of that text whose names hold the filter, as clang's JSON."""
    with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="utf-8") as source:
        source.write(text)
        source.flush()
        command = ["clang++", "-std=c++20", "-fsyntax-only", "-w", f"-I{root}", *flags, "-Xclang", "-ast-dump=json",
                   "-Xclang", f"-ast-dump-filter={name_filter}", source.name]
        shown = subprocess.run(command, capture_output=True, text=True, cwd=root)
    if shown.returncode != 0:
        sys.exit(f"clang cannot parse the headers:\n{shown.stderr[-3000:]}")
    decoder, at = json.JSONDecoder(), 0
    while (at := shown.stdout.find("{", at)) >= 0:
        tree, at = decoder.raw_decode(shown.stdout, at)
        yield tree


def count(node, scope, sizes):
    """Counts the record or namespace `node` of that scope, and all in it, into `sizes`: by name, then by part."""
    kind, name = node.get("kind"), node.get("name", "")
    inside = [inner for inner in node.get("inner", []) if not inner.get("isImplicit")]
    if kind == "ClassTemplateDecl":
        for record in [inner for inner in inside if inner.get("kind") == "CXXRecordDecl"][:1]:
            count(record, scope, sizes)
    elif kind == "NamespaceDecl" and name != GENERATED:
        for inner in inside:
            count(inner, f"{scope}::{name}" if name else scope, sizes)
    elif kind == "CXXRecordDecl" and node.get("completeDefinition"):
        part = name if name in ("State", "Impl") else ""
        owner = scope if part else f"{scope}::{name}"
        sizes.setdefault(owner, {})[part] = sum(inner.get("kind") in COUNTED for inner in inside)
        for inner in inside:
            count(inner, owner, sizes)


def sizes_of(root, generated, torch):
    headers = sorted(path.relative_to(root).as_posix() for folder in SOURCE_ROOTS
                     for path in (root / folder).rglob("*.h")
                     if not re.search(r"cuda|lanes_avx|/bench/", path.as_posix()))
    known = {}
    flags = [f"-I{generated}"] if generated else []
    torch_flags = flags + ([f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include"]
                           if torch else [])
    sizes = {}
    for with_torch in (False, True) if torch else (False,):
        chosen = [header for header in headers if includes_torch(root, header, known) == with_torch]
        text = "".join(f'#include "{header}"\n' for header in chosen)
        for tree in dump(root, text, torch_flags if with_torch else flags, "gemini::"):
            count(tree, "gemini", sizes)
    for folder in SOURCE_ROOTS:
        for path in sorted((root / folder).rglob("*.cc")):
            states = OWN_STATE.findall(path.read_text(encoding="utf-8"))
            source = path.relative_to(root).as_posix()
            if not states or "cuda" in source or (includes_torch(root, source, known) and not torch):
                continue
            text = f'#include "{source}"\n'
            for owner, state in set(states):
                for tree in dump(root, text, torch_flags, f"{owner}::{state}"):
                    count(tree, next(name for name in sizes if name.endswith(f"::{owner}")), sizes)
    return {name: sum(parts.values()) for name, parts in sizes.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--generated")
    parser.add_argument("--torch")
    arguments = parser.parse_args()
    sizes = sizes_of(arguments.root.resolve(), arguments.generated, arguments.torch)
    if arguments.all:
        for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
            if size > MOST_MEMBERS // 2:
                print(f"{size:4} {name}")
    wrong = [f"{name} has {size} members, at most {MOST_MEMBERS}: look for the second concept"
             for name, size in sorted(sizes.items()) if size > MOST_MEMBERS]
    print("\n".join(wrong) or f"none of {len(sizes)} classes has more than {MOST_MEMBERS} members")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
