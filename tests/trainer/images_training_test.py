#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gemini-train on images: a ViT has transformers' losses and learns what depends on places; placements, resuming and
ranks change no bit."""
import os
import unittest

import numpy
import torch
import transformers
from PIL import Image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from ranks_program import EPSILON
from task_fixture import (REGRESSION, SEVERAL, SINGLE, config_of, images, labelled, logits_of, save_classifier,
                          save_images, save_labelled, save_model, vit_config)
from tasks_test_case import (LIKE_TRANSFORMERS, ROWS, STEPS, USAGE, BitsTestCase, NewHeadsTestCase, ParityTestCase,
                             TasksTestCase)
from train_program import MODELS, metrics, run, tensors

TASK = "image-classification"
VIT = transformers.ViTForImageClassification
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
NUM_LABELS = 7


class ImagesTestCase(TasksTestCase):
    def vit(self, name="vit", **keys):
        """A checkpoint of a classifier, and its configuration."""
        config = vit_config(**{"num_labels": NUM_LABELS, **keys})
        return save_model(VIT, config, self.directory / name), config

    def images(self, name, config, seed=1, count=ROWS, problem=SINGLE):
        """A file of images, and its arrays."""
        arrays = images(config, problem, config.num_labels, seed, count)
        return save_images(self.directory / f"{name}.safetensors", arrays, problem, config.num_labels), arrays


class ParityTest(ImagesTestCase, ParityTestCase):
    def check_vit(self, problem=SINGLE, accumulate=1, **keys):
        model, config = self.vit(problem_type=problem, **keys)
        data, arrays = self.images("data", config, problem=problem)
        eval_data, eval_arrays = self.images("eval", config, seed=2, count=5, problem=problem)
        output = self.train("out", **self.keys(model, data, steps=STEPS, accumulate=accumulate, **LIKE_TRANSFORMERS,
                                               eval_data=eval_data))
        saved, _ = self.check_steps(output, transformers.AutoModelForImageClassification, model, arrays, accumulate,
                                    norm=1e-5)
        labels = torch.from_numpy(eval_arrays["labels"])
        self.check_evaluation(metrics(output)[-1], problem, logits_of(saved, eval_arrays), labels)
        untrained = self.train("untrained", **self.keys(model, data, steps=1, lr=0, weight_decay=0,
                                                        eval_data=eval_data))
        before, behind = (tensors(folder / "model.safetensors") for folder in (model, untrained / "latest"))
        self.assertEqual(before.keys(), behind.keys())
        self.assertEqual([name for name in before if before[name] != behind[name]], [])
        self.check_evaluation(metrics(untrained)[-1], problem, logits_of(VIT.from_pretrained(model), eval_arrays),
                              labels)

    def test_images_that_are_wider_than_high(self):
        self.check_vit(accumulate=2)

    def test_patches_that_are_no_squares_of_one_channel(self):
        self.check_vit(patch_size=[4, 6], num_channels=1, qkv_bias=False, layer_norm_eps=1e-3)

    def test_several_labels_of_an_image(self):
        self.check_vit(SEVERAL, num_labels=4, hidden_act="relu")

    def test_numbers_of_an_image(self):
        self.check_vit(REGRESSION, num_labels=3, image_size=[12, 8], patch_size=[6, 4])


class BitsTest(ImagesTestCase, BitsTestCase):
    def setUp(self):
        super().setUp()
        model, config = self.vit(**DROPOUT)
        self.run_keys = self.keys(model, self.images("data", config)[0],
                                  eval_data=self.images("eval", config, seed=2)[0])

    def test_placements_and_schedules_change_no_bit(self):
        self.check_placements("vit", {**self.run_keys, "accumulate": 2, "eval_every": 2})

    def test_steps_are_planned(self):
        self.check_plans("vit", self.run_keys)

    def test_five_steps_and_five_more_equal_ten(self):
        self.check_halves("vit", self.run_keys)

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_train_as_one_process_does(self):
        self.check_ranks("vit", self.run_keys)

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_layers_that_ranks_share_are_refused(self):
        self.all_refused(USAGE, [
            (2, f"{flag} shares no layers of the task {TASK}", {**self.run_keys, **more})
            for flag, more in (("--sequence-parallel megatron", {"tensor": "1d", "sequence_parallel": "megatron"}),
                               ("--sequence-parallel ulysses", {"sequence_parallel": "ulysses"}))])

    @unittest.skipUnless(os.environ.get("GEMINI_MPIRUN"), "built without MPI")
    def test_ranks_that_share_layers_train_as_one_process_does(self):
        keys = {**self.run_keys, "epsilon": EPSILON, "steps": 4}
        one, line = self.train("vit_alone", **keys), self.ranks(2, "vit_line", **keys, tensor="1d")
        for key in ("loss", "grad_norm", "eval_loss"):
            self.assert_close(*([row[key] for row in metrics(output) if key in row] for output in (line, one)), 1e-5,
                              key)


class NewHeadsTest(ImagesTestCase, NewHeadsTestCase):
    def check_pretrained(self, name, model_class, left_out):
        """A model without a classifier gets one, whose labels the data name."""
        model = save_model(model_class, vit_config(encoder_stride=4), self.directory / name)
        ViTImageProcessorPil(size={"height": 16, "width": 24}).save_pretrained(model)
        data, _ = self.images(f"{name}_data", vit_config(num_labels=3))
        output = self.check_new_head(model, VIT, TASK, "classifier.", left_out, data, ["kind 0", "kind 1", "kind 2"])
        file = "preprocessor_config.json"
        self.assertEqual(*((folder / file).read_bytes() for folder in (model, output / "latest")))

    def test_an_encoder_with_a_pooler(self):
        self.check_pretrained("encoder", transformers.ViTModel, ["pooler.dense"])

    def test_a_model_of_masked_images(self):
        self.check_pretrained("masked_images", transformers.ViTForMaskedImageModeling, ["decoder.0"])


class LearnsTest(TasksTestCase):
    """The label is the quarter of an image in which a bright square lies, so that a model has to know the places of
    its patches."""
    QUARTERS = ["upper left", "upper right", "lower left", "lower right"]
    SQUARE = 4

    def folder(self, name, seed, count):
        """Folders of images, and each image with its label."""
        draw = numpy.random.default_rng(seed)
        written = []
        for quarter in self.QUARTERS:
            (self.directory / name / quarter).mkdir(parents=True)
        for number in range(count):
            label = int(draw.integers(len(self.QUARTERS)))
            pixels = draw.integers(0, 100, (16, 24, 3), dtype=numpy.uint8)
            top = 8 * (label // 2) + draw.integers(0, 8 - self.SQUARE + 1)
            left = 12 * (label % 2) + draw.integers(0, 12 - self.SQUARE + 1)
            pixels[top:top + self.SQUARE, left:left + self.SQUARE] += numpy.uint8(120)
            image = Image.fromarray(pixels)
            image.save(self.directory / name / self.QUARTERS[label] / f"{number}.png")
            written.append((image, label))
        return self.directory / name, written

    def test_a_model_is_right_on_images_that_it_has_not_seen(self):
        torch.manual_seed(1)
        model = self.directory / "untrained"
        config = vit_config(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                            id2label=dict(enumerate(self.QUARTERS)))
        processor = ViTImageProcessorPil(size={"height": 16, "width": 24})
        for part in (VIT(config), processor):
            part.save_pretrained(model)
        learned, _ = self.folder("learned", 1, 1000)
        others, written = self.folder("others", 2, 200)
        data, eval_data = (self.prepare("--model", model, "--images", folder, name=f"{folder.name}_rows")
                           for folder in (learned, others))
        output = self.directory / "out"
        result = run(output=output, **self.keys(model, data, batch=16, steps=300, warmup_steps=20,
                                                eval_data=eval_data))
        self.assertEqual(result.returncode, 0, result.stderr)
        line = metrics(output)[-1]
        self.assertGreaterEqual(line["eval_accuracy"], 0.95)
        self.assertRegex(result.stdout, "Steps .* [1-9][0-9]* images a second")
        self.assertRegex(result.stdout, f"Evaluation .*, accuracy {line['eval_accuracy']:.4f}")
        with torch.no_grad():
            logits = self.loaded(output, VIT).eval()(**processor([image for image, _ in written],
                                                                 return_tensors="pt")).logits
        right = (logits.argmax(-1) == torch.tensor([label for _, label in written])).float().mean()
        self.assertAlmostEqual(line["eval_accuracy"], right.item(), delta=1e-6)


class RefusalsTest(ImagesTestCase):
    def setUp(self):
        super().setUp()
        self.model, self.model_config = self.vit(num_labels=3)
        self.data, self.arrays = self.images("data", self.model_config)

    def test_images_of_another_size(self):
        for name, size, more in (("turned", "3 x 24 x 16", {"image_size": [24, 16]}),
                                 ("grey", "1 x 16 x 24", {"num_channels": 1})):
            with self.subTest(name):
                data, _ = self.images(name, vit_config(num_labels=3, **more))
                self.refused_run(f"{name}.safetensors", size, "3 x 16 x 24", **self.keys(self.model, data))
                self.refused_run(f"{name}.safetensors", size, "3 x 16 x 24",
                                 **self.keys(self.model, self.data, eval_data=data))

    def test_a_label_that_the_model_has_not(self):
        self.arrays["labels"][4] = 3
        data = save_images(self.directory / "four.safetensors", self.arrays, SINGLE, 4)
        self.refused_run("four.safetensors", "row 4 has the label 3", "3 labels, from 0 to 2",
                         **self.keys(self.model, data))

    def test_data_of_another_task(self):
        texts = save_labelled(self.directory / "texts.safetensors", labelled(SINGLE, 3, 1, ROWS), SINGLE, 3)
        bert = save_classifier("bert", self.directory / "bert", num_labels=3)
        for model, data, kind, wanted in ((self.model, texts, "sequence-classification", TASK),
                                          (self.model, MODELS / "tokens.npy", "causal", TASK),
                                          (bert, self.data, TASK, "sequence-classification"),
                                          (MODELS / "llama", self.data, TASK, "causal")):
            with self.subTest(f"{kind} for {wanted}"):
                self.refused_run("--data", str(data), f"of the task {kind}", f"to learn the task {wanted}",
                                 **self.keys(model, data))
        self.refused_run("--eval-data", str(texts), "of the task sequence-classification",
                         **self.keys(self.model, self.data, eval_data=texts))

    def test_a_task_that_the_model_has_not(self):
        self.refused_run("--task sequence-classification", f"vit, which has {TASK}",
                         **self.keys(self.model, self.data, task="sequence-classification"))
        bert = save_model(transformers.BertForMaskedLM, config_of("bert"), self.directory / "bert")
        self.refused_run(f"--task {TASK}", "bert, which has masked, sequence-classification",
                         **self.keys(bert, self.data, task=TASK))

    def test_sequences_of_another_length_than_an_image_has_patches(self):
        for sequence in (7, 24):
            with self.subTest(sequence):
                self.refused_run(f"--sequence {sequence}: the model makes 25 tokens of each image",
                                 "leave --sequence out", **self.keys(self.model, self.data, sequence=sequence))
        self.train("same", **self.keys(self.model, self.data, sequence=25, steps=1))

    def test_a_file_that_is_cut_off(self):
        content = self.data.read_bytes()
        data_bytes = sum(array.nbytes for array in self.arrays.values())
        for name, size, said in (
                ("pixels", len(content) - 1, f"'pixels' ends at byte {data_bytes} of the data"),
                ("header", 100, "the file has 100: it was cut short")):
            with self.subTest(name):
                path = self.directory / f"{name}.safetensors"
                path.write_bytes(content[:size])
                self.refused_run(f"{name}.safetensors", said, **self.keys(self.model, path))


if __name__ == "__main__":
    unittest.main(verbosity=2)
