#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PlacementInvariance of the whole program: gemini-train under a budget that does not hold the model
leaves the same bytes as --reference in plain memory, after 20 AdamW steps.

The DEVICE budget is max(floor, 25% of the parameter bytes + non-model peak); floor and peak are measured
in a run with room for all, and printed. GEMINI_PARITY_MODELS names the shapes, all by default.

Placements are also drawn at random. GEMINI_PARITY_SEED repeats those of the run that printed it.
"""
import os
import random
import unittest

import train_program
from train_program import KIB, MIB, Daemon

# Smallest chunks that there are: the floor is then close to the largest tensor of an operator.
CHUNK = 64 * KIB


# Of these families nothing but the model differs, so that these tests tell all.
FAMILIES = ("llama", "mistral", "qwen3", "gemma2", "gemma3", "cohere", "gpt_neox", "phi3", "mixtral",
            "qwen2_moe")
WITH_EXPERTS = ("mixtral", "qwen2_moe")
FAMILY_TESTS = ("test_one_batch_a_step_in_every_placement", "test_bf16_in_every_placement",
                "test_recomputation", "test_micro_batches_block_by_block",
                "test_at_the_floor_and_in_random_placements")
# What these compute the ones above compute, too, put together otherwise.
RELATIVES = ("qwen2", "gemma", "qwen3_moe")
RELATIVE_TESTS = ("test_bf16_in_every_placement", "test_at_the_floor_and_in_random_placements")


class ParityTest(train_program.TrainTest):
    model = None

    def measured_budget(self, **keys):
        """The budget of the issue, from two steps with room for everything. Without a plan, whose fetches
        pin more than operators do."""
        keys.update(steps=2, policy="online")
        output = self.train("measured", **keys, device_memory="1GiB", chunk_size=CHUNK, overwrite=True)
        lines = train_program.steps(output)
        floor = max(line["pinned_peak_bytes"] for line in lines)
        peak = max(line["non_model_peak_bytes"] for line in lines)
        quarter = self.parameter_bytes(keys) // 4
        budget = max(floor, quarter + peak)
        print(f"{self.model}: floor {floor}, non-model peak {peak}, 25% of the parameters {quarter}, "
              f"budget {budget} bytes", flush=True)
        self.assertLess(floor, quarter, "the shape is badly chosen")
        return budget

    def parameter_bytes(self, keys):
        fp32_bytes = train_program.parameter_bytes(self.model)
        return fp32_bytes // 2 if keys.get("precision", "fp32") != "fp32" else fp32_bytes

    @staticmethod
    def is_foretold(keys):
        """Whether the first step is, and so begins with a plan. Where optimizer states are kept on such a
        DEVICE no plan fits."""
        return (keys.get("policy") != "online" and keys.get("precision") != "fp16"
                and keys.get("micro_batch_schedule") != "vertical" and "optimizer_fraction" not in keys)

    def check(self, reference, name, budget, **keys):
        output = self.train(name, **keys, device_memory=budget, chunk_size=CHUNK)
        for line in train_program.steps(output):
            self.assertEqual(line["device_budget_bytes"], budget)
            self.assertLessEqual(line["device_peak_bytes"], budget)
        lines = train_program.steps(output)
        if self.is_foretold(keys):
            # It is followed, or left where a thread that moves chunks gets no processor: first_step_test.
            self.assertEqual(lines[0]["planned_rounds"] + sum(lines[0]["divergences"].values()), 1)
        self.assertGreater(sum(line["fetch_bytes"] for line in lines),
                           len(lines) * self.parameter_bytes(keys),
                           "the model was not moved in and out")
        self.check_same(reference, output)
        return output

    def check_same(self, reference, output):
        for file in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(reference / "latest" / file, output / "latest" / file)
        losses = [[line[key] for line in train_program.metrics(directory)
                   for key in ("loss", "eval_loss") if key in line]
                  for directory in (reference, output)]
        self.assertEqual(losses[0], losses[1])

    def test_one_batch_a_step_in_every_placement(self):
        keys = self.keys(self.model)
        reference = self.train("reference", **keys, reference=True)
        budget = self.measured_budget(**keys)
        self.check(reference, "embedded", budget, **keys)

        # HOST holds a third of parameters, moments and gradients: the rest is on the disk.
        host = train_program.parameter_bytes(self.model) * 4 // 3
        store = self.directory / "store"
        store.mkdir()
        output = self.check(reference, "nvme", budget, **keys, host_memory=host,
                            nvme=[f"{store}:64MiB"])
        self.assertGreater(train_program.steps(output)[-1]["nvme_bytes"], 0)

        with Daemon(self.directory, "256MiB", "256MiB", "256MiB") as daemon:
            self.check(reference, "daemon", budget, **keys, daemon=daemon.socket)

    def test_accumulation_with_clipping(self):
        keys = self.keys(self.model, accumulate=3, clip=0.5, batch=1)
        reference = self.train("reference", **keys, reference=True)
        self.assertLess(train_program.steps(reference)[0]["clip_coefficient"], 1)
        self.check(reference, "embedded", self.measured_budget(**keys), **keys)

    def test_bf16_in_every_placement(self):
        keys = self.keys(self.model, precision="bf16", accumulate=2, clip=0.5, batch=1,
                         eval_data=train_program.MODELS / "eval.npy", eval_every=7)
        reference = self.train("reference", **keys, reference=True)
        # Chunks of half as many elements would be smaller than there are: the floor is that of fp32.
        budget = self.measured_budget(**keys)
        self.check(reference, "embedded", budget, **keys)
        self.check(reference, "online", budget, **keys, policy="online")
        store = self.directory / "store"
        store.mkdir()
        host = self.parameter_bytes(keys) * 3
        output = self.check(reference, "nvme", budget, **keys, host_memory=host,
                            nvme=[f"{store}:64MiB"])
        self.assertGreater(train_program.steps(output)[-1]["nvme_bytes"], 0)
        self.check(reference, "states_on_nvme", budget, **keys, optimizer_tier="nvme",
                   nvme=[f"{store}:64MiB"])
        vertical = dict(keys, micro_batch_schedule="vertical", recompute=True)
        # A tied table's gradients are added in another order.
        if train_program.is_tied(self.model):
            reference = self.train("block_by_block", **vertical, reference=True)
        self.check(reference, "vertical", budget, **vertical)

    def test_every_optimizer_and_fp16(self):
        runs = ({"optimizer": "adam"}, {"optimizer": "sgd", "lr": 0.05},
                {"optimizer": "lamb", "lr": 0.01}, {"optimizer": "lars", "lr": 1.0},
                {"optimizer": "lamb", "lr": 0.01, "precision": "bf16"},
                {"optimizer": "sgd", "lr": 0.05, "precision": "fp16"},
                {"optimizer": "adamw", "precision": "fp16", "accumulate": 2, "clip": 0.5, "batch": 1},
                {"weight_decay": 2.0, "lr": 0.01}, {"weight_decay": 2.0, "lr": 0.01, "no_decay": "*.0.*,*.1.*"})
        seen = []
        for i, run in enumerate(runs):
            with self.subTest(run):
                keys = self.keys(self.model, **dict({"steps": 6}, **run))
                reference = self.train(f"reference{i}", **keys, reference=True)
                self.check(reference, f"managed{i}", self.measured_budget(**keys), **keys)
                losses = [line["loss"] for line in train_program.steps(reference)]
                self.assertNotIn(losses, seen, "two optimizers did the same")
                seen.append(losses)

    def test_moments_of_8_bits_in_every_placement(self):
        keys = self.keys(self.model, precision="bf16", moments="8bit", accumulate=2, clip=0.5, batch=1)
        fp32_moments = self.train("fp32_moments", **dict(keys, moments="fp32"), reference=True)
        reference = self.train("reference", **keys, reference=True)
        self.assertNotEqual(*((directory / "latest" / "model.safetensors").read_bytes()
                              for directory in (fp32_moments, reference)))
        budget = self.measured_budget(**keys)
        self.check(reference, "embedded", budget, **keys)
        self.check(reference, "online", budget, **keys, policy="online")
        store = self.directory / "store"
        store.mkdir()
        output = self.check(reference, "nvme", budget, **keys,
                            host_memory=self.parameter_bytes(keys) * 5 // 2, nvme=[f"{store}:64MiB"])
        self.assertGreater(train_program.steps(output)[-1]["nvme_bytes"], 0)
        for i, run in enumerate(({"precision": "fp32"}, {"precision": "fp16"},
                                 {"precision": "fp32", "optimizer": "lamb", "lr": 0.01},
                                 {"precision": "bf16", "optimizer": "sgd", "lr": 0.05})):
            with self.subTest(run):
                keys = self.keys(self.model, **dict({"steps": 6, "moments": "8bit"}, **run))
                reference = self.train(f"reference{i}", **keys, reference=True)
                self.check(reference, f"managed{i}", self.measured_budget(**keys), **keys)

    def test_stochastic_rounding_of_moments_depends_on_the_seed_and_on_no_placement(self):
        keys = self.keys(self.model, precision="bf16", moments="8bit", moment_rounding="stochastic")
        large = self.train("large", **keys, device_memory="1GiB", chunk_size="1MiB")
        budget = self.measured_budget(**keys)
        self.check(large, "small", budget, **keys)
        # The data's order has a seed of its own, so there is no other run with all but this equal.
        other = self.train("nearest", **dict(keys, moment_rounding="nearest"), reference=True)
        self.assertNotEqual(*((directory / "latest" / "model.safetensors").read_bytes()
                              for directory in (large, other)))

    def test_recomputation(self):
        keys = self.keys(self.model)
        reference = self.train("reference", **keys, reference=True)
        recomputed = dict(keys, recompute=True)
        self.check(reference, "recomputed", self.measured_budget(**recomputed), **recomputed)

    def test_every_policy_with_evaluation_every_third_step(self):
        keys = self.keys(self.model, steps=9, eval_data=train_program.MODELS / "eval.npy", eval_every=3)
        reference = self.train("reference", **keys, reference=True)
        budget = self.measured_budget(**keys)
        for policy in ({"policy": "auto"}, {"policy": "online"}, {"policy": "cpu"},
                       {"policy": "static", "param_fraction": 0.1},
                       {"policy": "static", "optimizer_fraction": 0.1}):
            with self.subTest(policy):
                name = "_".join(f"{key}_{value}" for key, value in policy.items())
                self.check(reference, name, budget, **keys, **policy)
        store = self.directory / "store"
        store.mkdir()
        with self.subTest("states on NVMe"):
            self.check(reference, "states_on_nvme", budget, **keys, optimizer_tier="nvme",
                       nvme=[f"{store}:64MiB"])
        with self.subTest("cuda"):  # Keeps everything, and updates it there.
            self.check_same(reference, self.train("cuda", **keys, policy="cuda",
                                                  device_memory="64MiB", chunk_size=CHUNK))
        with self.subTest("half"):  # Streams parameters, and updates half of them on DEVICE.
            self.check_same(reference, self.train("half", **keys, policy="static",
                                                  optimizer_fraction=0.5, device_memory="64MiB",
                                                  chunk_size=CHUNK))

    def test_evaluation_of_chosen_experts(self):
        # Of 32 tokens most experts of qwen2_moe have none.
        keys = self.keys(self.model, steps=6, batch=1, eval_data=train_program.MODELS / "eval.npy", eval_every=2)
        reference = self.train("reference", **keys, experts="planned", reference=True)
        budget = self.measured_budget(**keys)
        for name, experts in (("plain_routed", dict(experts="routed", reference=True)),
                              ("planned", dict(experts="planned")), ("routed", dict(experts="routed")),
                              ("small", dict(experts="routed", expert_cache="1B")),
                              ("online", dict(experts="routed", policy="online"))):
            with self.subTest(name):
                more = {} if "reference" in experts else dict(device_memory=budget, chunk_size=CHUNK)
                output = self.train(name, **keys, **experts, **more)
                self.check_same(reference, output)
                evaluations = [line for line in train_program.metrics(output) if "eval_loss" in line]
                self.assertEqual([line.get("expert_fetch_bytes", 0) > 0 for line in evaluations],
                                 [name not in ("plain_routed", "planned")] * 3)

    def test_micro_batches_block_by_block(self):
        keys = self.keys(self.model, steps=6, batch=1, accumulate=4, recompute=True)
        # Bytes are compared on-line: a plan may move more of them to be faster, as times have it.
        horizontal = self.train("horizontal", **keys, device_memory=self.measured_budget(**keys),
                                chunk_size=CHUNK, policy="online")
        keys["micro_batch_schedule"] = "vertical"
        reference = self.train("reference", **keys, reference=True)
        budget = self.measured_budget(**keys)
        self.check(reference, "planned", budget, **keys)
        vertical = self.check(reference, "vertical", budget, **keys, policy="online")
        moved = [sum(line["fetch_bytes"] for line in train_program.steps(output))
                 for output in (horizontal, vertical)]
        print(f"{self.model}: {moved[0]} bytes fetched one micro-batch after the other, {moved[1]} block "
              "by block", flush=True)
        self.assertLess(moved[1], 0.75 * moved[0])

    def floor(self, **keys):
        """The least DEVICE that these keys run in, as the program foretells it."""
        return self.named_bytes(train_program.run(output=self.directory / "refused", **keys, device_memory=CHUNK))

    def random_placement(self, name, draw, keys):
        """Where things lie and how they move, in any way that holds the model."""
        placement = self.random_tiers(name, draw, range(64 * KIB, 260 * KIB, 4 * KIB),
                                      self.parameter_bytes(keys))
        floor = self.floor(**keys, **placement)
        # Near the floor more often than where everything stays on DEVICE.
        room = int(self.parameter_bytes(keys) * 4 * draw.random() ** 2) + (floor // 2 if self.has_experts() else 0)
        return dict(placement, device_memory=floor + room)

    def has_experts(self):
        """The floor is foretold for routers that deal tokens evenly. Others need more, and are told so in the step."""
        return "num_experts_per_tok" in (train_program.MODELS / self.model / "config.json").read_text()

    def train_at_the_floor(self, keys):
        """Trains in the least DEVICE that the program names."""
        placement = {"chunk_size": CHUNK, "recompute": True}
        budget = self.floor(**keys, **placement)
        output = self.directory / "at_the_floor"
        for _ in range(5 if self.has_experts() else 1):
            result = train_program.run(output=output, overwrite=True, **keys, **placement, device_memory=budget)
            if result.returncode == 0:
                break
            budget = self.named_bytes(result)
        print(f"{self.model}, {keys['precision']}: runs in {budget} bytes of DEVICE", flush=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return output

    def test_at_the_floor_and_in_random_placements(self):
        seed = int(os.environ.get("GEMINI_PARITY_SEED", random.randrange(1 << 32)))
        draw = random.Random(seed)
        keys = self.keys(self.model, steps=5, accumulate=2, clip=0.5, batch=1,
                         precision=draw.choice(("fp32", "bf16")))
        reference = self.train("reference", **keys, reference=True)
        self.check_same(reference, self.train_at_the_floor(keys))
        for i in range(3):
            placement = self.random_placement(f"store{i}", draw, keys)
            print(f"{self.model}, GEMINI_PARITY_SEED={seed}, {keys['precision']}: {placement}", flush=True)
            with self.subTest(**placement):
                output = self.train(f"placed{i}", **keys, **placement)
                for line in train_program.steps(output):
                    self.assertLessEqual(line["device_peak_bytes"], placement["device_memory"])
                self.check_same(reference, output)

    def test_activations_between_blocks_that_do_not_fit(self):
        keys = self.keys(self.model, steps=3, batch=1, accumulate=24, micro_batch_schedule="vertical")
        reference = self.train("reference", **keys, reference=True)
        # In the measured run they stay on DEVICE. Here not all of them would fit beside nothing else.
        self.measured_budget(**keys)
        peak = max(line["non_model_peak_bytes"]
                   for line in train_program.steps(self.directory / "measured"))
        self.check(reference, "vertical", peak - 2 * CHUNK, **keys)


def make(model):
    return type(f"Parity_{model}", (ParityTest,), {"model": model})


def load_tests(loader, _tests, _pattern):
    suite = unittest.TestSuite()
    for model in os.environ.get("GEMINI_PARITY_MODELS", "gpt2 opt opt_post_norm llama").split():
        if model in FAMILIES:
            suite.addTests(make(model)(name) for name in FAMILY_TESTS)
            if model in WITH_EXPERTS:
                suite.addTest(make(model)("test_evaluation_of_chosen_experts"))
        elif model in RELATIVES:
            suite.addTests(make(model)(name) for name in RELATIVE_TESTS)
        else:
            suite.addTests(one for one in loader.loadTestsFromTestCase(make(model))
                           if one.id().split(".")[-1] != "test_evaluation_of_chosen_experts")
    return suite


if __name__ == "__main__":
    unittest.main(verbosity=2)
