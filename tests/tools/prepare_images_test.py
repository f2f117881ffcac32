#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/prepare_data.py --images, with images and models' folders that are made here."""
import json
import struct
import unittest
import zlib

import numpy
from PIL import Image

from rows_fixture import PrepareRowsTest
import prepare_data
from data.image_rows import size_of_folder
from data.safetensors_writer import HEAD_BYTES
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil


class PrepareImagesTest(PrepareRowsTest):
    def setUp(self):
        super().setUp()
        self.random = numpy.random.default_rng(seed=1)
        self.images = self.folder / "images"
        self.model_folder = self.folder / "model"
        self.model_folder.mkdir()
        self.preprocessor(size={"height": 8, "width": 8})

    def preprocessor(self, kind="ViTImageProcessor", **keys):
        kind = {} if kind is None else {"image_processor_type": kind}
        (self.model_folder / "preprocessor_config.json").write_text(json.dumps(kind | keys))

    def config(self, **keys):
        (self.model_folder / "config.json").write_text(json.dumps(keys))

    def image(self, name, width=10, height=12, mode="RGB", **options):
        """Writes an image of noise under the name below the folder of images."""
        path = self.images / name
        path.parent.mkdir(parents=True, exist_ok=True)
        channels = len(Image.new(mode, (1, 1)).getbands())
        noise = self.random.integers(0, 256, (height, width, channels), dtype=numpy.uint8)
        image = Image.new(mode, (width, height))
        image.frombytes(noise.tobytes())
        if mode == "P":
            image.putpalette(self.random.integers(0, 256, 768, dtype=numpy.uint8).tobytes())
        image.save(path, **options)
        return path

    def two_classes(self, **options):
        return [self.image(f"{name}.png", **options) for name in ("cat/1", "cat/2", "dog/1")]

    def call_images(self, *more, output=None, images=None):
        return self.call_main("--model", self.model_folder, "--images", images or self.images,
                              "--output", output or self.output, *more)

    def prepare_images(self):
        self.assertIsNone(self.call_images())
        return self.written()


class PixelsTest(PrepareImagesTest):
    def assert_pixels_are_those_of_transformers(self, tensors, metadata, processor, paths):
        """Compares what a run makes of the pixels with what the processor does with images."""
        for pixels, path in zip(tensors["pixels"], paths, strict=True):
            with Image.open(path) as image:
                expected = processor(image)["pixel_values"][0]
            mean, std, rescale = (numpy.array(json.loads(metadata[name]))
                                  for name in ("mean", "std", "rescale"))
            found = (pixels * rescale - mean[:, None, None]) / std[:, None, None]
            self.assertEqual(found.shape, expected.shape)
            # transformers calculates in float32. One step of a byte is 0.004 divided by std.
            self.assertLess(numpy.abs(found - expected).max(), 2e-4)

    def test_pixels_are_those_of_transformers(self):
        sizes = (10, 12), (31, 8), (7, 7), (40, 41), (9, 64)
        paths = [self.image(f"{'cat' if i < 3 else 'dog'}/{i}.png", *size)
                 for i, size in enumerate(sizes)]
        crop = {"do_center_crop": True, "crop_size": {"height": 9, "width": 12}}
        for kind, processor_of, keys in (
                ("ViTImageProcessor", ViTImageProcessorPil, {"size": {"height": 9, "width": 16}}),
                ("ViTImageProcessor", ViTImageProcessorPil, {"size": 8}),
                ("ViTFeatureExtractor", ViTImageProcessorPil, {}),
                (None, ViTImageProcessorPil, {}),
                ("DeiTFeatureExtractor", DeiTImageProcessorPil, {}),
                ("DeiTImageProcessor", DeiTImageProcessorPil, {"size": 20, "crop_size": 15}),
                *(("ViTImageProcessorFast", ViTImageProcessorPil,
                   {"size": {"shortest_edge": 9}, "resample": resample, **crop})
                  for resample in range(6)),
                ("ViTImageProcessor", ViTImageProcessorPil,
                 {"size": {"height": 4, "width": 7}, **crop}),
                ("ViTImageProcessor", ViTImageProcessorPil, {"do_resize": False, **crop}),
                ("ViTImageProcessor", ViTImageProcessorPil,
                 {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6],
                  "rescale_factor": 0.5, "resample": None}),
                ("ViTImageProcessor", ViTImageProcessorPil, {"do_normalize": False}),
                ("ViTImageProcessor", ViTImageProcessorPil,
                 {"do_rescale": False, "image_mean": 100.0, "image_std": 50.0})):
            with self.subTest(kind=kind, **keys):
                self.preprocessor(kind, **keys)
                tensors, metadata = self.prepare_images()
                keys = {key: value for key, value in keys.items() if value is not None}
                self.assert_pixels_are_those_of_transformers(tensors, metadata,
                                                             processor_of(**keys), paths)

    MODES = (("L", "png"), ("RGBA", "png"), ("P", "png"), ("CMYK", "jpg"), ("LA", "png"),
             ("1", "png"))

    def test_images_become_rgb_where_the_processor_says_so(self):
        paths = [self.image(f"{'cat' if i < 3 else 'dog'}/{i}.{suffix}", mode=mode)
                 for i, (mode, suffix) in enumerate(self.MODES)]
        paths.append(self.image("dog/7.png", mode="P", transparency=5))
        paths.append(self.image("dog/8.webp"))
        self.preprocessor(size=8, do_convert_rgb=True)
        tensors, metadata = self.prepare_images()
        self.assert_pixels_are_those_of_transformers(
            tensors, metadata, ViTImageProcessorPil(size=8, do_convert_rgb=True), paths)

    def test_images_that_are_not_rgb_are_refused_where_the_processor_does_not_say_so(self):
        self.two_classes()
        for mode, suffix in self.MODES:
            with self.subTest(mode=mode):
                path = self.image(f"dog/2.{suffix}", mode=mode)
                said = (f"the pixels are {len(mode)} channels of 8 x 8" if mode in ("L", "RGBA")
                        else f"an image of the mode {mode}")
                self.assert_refused(self.call_images(), f"prepare_data: {path}: {said}")
                path.unlink()

    def test_grey_images_have_one_channel(self):
        paths = self.two_classes(mode="L")
        self.config(num_channels=1, image_size=8)
        self.preprocessor(size=8, image_mean=[0.2], image_std=[0.3])
        tensors, metadata = self.prepare_images()
        self.assertEqual(tensors["pixels"].shape, (3, 1, 8, 8))
        self.assert_pixels_are_those_of_transformers(
            tensors, metadata, ViTImageProcessorPil(size=8, image_mean=[0.2], image_std=[0.3]),
            paths)

    def test_an_image_is_turned_as_its_camera_was(self):
        self.preprocessor(do_resize=False)
        upright = self.image("cat/1.png", 6, 4)
        with Image.open(upright) as image:
            turned = Image.Exif()
            turned[0x0112] = 6  # A quarter to the right.
            (self.images / "dog").mkdir()
            image.rotate(90, expand=True).save(self.images / "dog/1.png", exif=turned)
        tensors, _ = self.prepare_images()
        self.assertTrue((tensors["pixels"][0] == tensors["pixels"][1]).all())


class FoldersTest(PrepareImagesTest):
    def test_images_are_in_the_order_of_their_names_and_folders_are_labels(self):
        self.preprocessor(do_resize=False)
        paths = {name: self.image(f"{name}.png") for name in ("b/2", "a c/10", "b/1", "a c/9")}
        (self.images / ".hidden").mkdir()
        (self.images / "b/.DS_Store").write_bytes(b"?")
        tensors, metadata = self.prepare_images()
        self.assertEqual(tensors["labels"].tolist(), [0, 0, 1, 1])
        self.assertEqual(json.loads(metadata["names"]), ["a c", "b"])
        for pixels, name in zip(tensors["pixels"], ("a c/10", "a c/9", "b/1", "b/2")):
            with Image.open(paths[name]) as image:
                self.assertTrue((numpy.moveaxis(numpy.asarray(image), -1, 0) == pixels).all())

    def test_names_are_those_of_the_model(self):
        self.two_classes()
        self.config(id2label={"0": "dog", "1": "cow", "2": "cat"})
        tensors, metadata = self.prepare_images()
        self.assertEqual(tensors["labels"].tolist(), [2, 2, 0])
        self.assertEqual((json.loads(metadata["names"]), metadata["num_labels"]),
                         (["dog", "cow", "cat"], "3"))
        self.output.unlink()
        self.config(id2label={"0": "dog", "1": "cow"})
        self.assert_refused(self.call_images(), f"{self.images / 'cat'}: label: 'cat' is none of",
                            "config.json")
        self.config(num_labels=3)
        self.assert_refused(self.call_images(), "2 labels, ['cat', 'dog']", "is 3")

    def test_the_file_is_the_one_described(self):
        self.two_classes()
        tensors, metadata = self.prepare_images()
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()},
                         {"labels": (numpy.int32, (3,)), "pixels": (numpy.uint8, (3, 3, 8, 8))})
        self.assertEqual(metadata, {
            "gemini.format": "1", "task": "image-classification",
            "problem_type": "single_label_classification", "num_labels": "2",
            "names": '["cat", "dog"]', "channels": "3", "height": "8", "width": "8",
            "rescale": "0.00392156862745098", "mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.5]",
            "rows": "3"})
        self.assertEqual(int.from_bytes(self.output.read_bytes()[:8], "little"), HEAD_BYTES - 8)
        self.assertIn("3 images of 3 channels, 8 x 8, from "
                      f"{size_of_folder(self.images)} bytes, 2 labels", self.said)

    def test_many_long_names_have_room_in_the_head(self):
        names = [f"{i:04}" * 20 for i in range(100)]
        for name in names:
            self.image(f"{name}/1.png")
        _, metadata = self.prepare_images()
        self.assertEqual(json.loads(metadata["names"]), names)

    def test_many_images_are_written_in_order(self):
        self.preprocessor(do_resize=False)
        for number in range(300):
            path = self.images / f"{number % 3}/{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (3, 2), (number % 256, number // 256, 0)).save(path)
        tensors, _ = self.prepare_images()
        numbers = tensors["pixels"][:, 0, 0, 0] + 256 * tensors["pixels"][:, 1, 0, 0].astype(int)
        self.assertEqual(numbers.tolist(), sorted(range(300), key=lambda i: (i % 3, i)))
        self.assertEqual(tensors["labels"].tolist(), [0] * 100 + [1] * 100 + [2] * 100)


def png_of_16_bits(colour_type, channels):
    """Returns a PNG of 2 x 1 pixels, which Pillow cannot write."""
    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data +
                struct.pack(">I", zlib.crc32(name + data)))
    head = struct.pack(">IIBBBBB", 2, 1, 16, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"\0" + bytes(range(4 * channels)))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) +
            chunk(b"IEND", b""))


def bmp_of_5_6_and_5_bits():
    head = struct.pack("<IiiHHIIiiIIIII", 40, 1, 1, 1, 16, 3, 4, 0, 0, 0, 0, 0xf800, 0x7e0, 0x1f)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + 4, 0, 0, 14 + len(head)) + head + bytes(4)


class ErrorsTest(PrepareImagesTest):
    def test_a_file_that_is_no_whole_image_is_refused(self):
        paths = self.two_classes(width=60, height=60)
        for data, message in ((b"text", "is no image that Pillow reads"), (b"", "is no image"),
                              (paths[1].read_bytes()[:500], "is no image that Pillow reads")):
            paths[1].write_bytes(data)
            self.assert_refused(self.call_images(), f"{paths[1]} {message}")

    def test_an_image_of_another_shape_is_refused(self):
        paths = self.two_classes()
        self.image("dog/1.png", width=11)
        self.preprocessor(do_resize=False)
        self.assert_refused(self.call_images(), f"{paths[2]}: the pixels are 3 channels of 12 x 11",
                            f"those of {paths[0]} are 3 channels of 12 x 10")

    def test_more_than_8_bits_are_refused(self):
        paths = self.two_classes()
        Image.new("I;16", (9, 9)).save(paths[0])
        self.preprocessor(do_convert_rgb=True)
        self.assert_refused(self.call_images(), f"{paths[0]}: an image of the mode I;16")
        for mode, colour_type in ("RGB", 2), ("LA", 4), ("RGBA", 6):
            paths[0].write_bytes(png_of_16_bits(colour_type, len(mode)))
            self.assert_refused(self.call_images(),
                                f"{paths[0]}: an image of the mode {mode};16B", "8 bits a channel")
        # A pixel of 16 bits has fewer a channel.
        paths[0].write_bytes(bmp_of_5_6_and_5_bits())
        with Image.open(paths[0]) as image:
            self.assertIn(";16", str(image.tile))
        self.prepare_images()

    def test_pixels_that_the_model_does_not_take_are_refused(self):
        self.two_classes()
        for keys, *parts in (
                ({"image_size": 9}, "images become 8 x 8", "image_size in", "is 9 x 9"),
                ({"image_size": [8, 7]}, "images become 8 x 8", "is 8 x 7"),
                ({"num_channels": 1}, "images have 3 channels", "num_channels in", "is 1"),
                ({"image_size": "8"}, "image_size: '8' is neither a number nor")):
            self.config(**keys)
            self.assert_refused(self.call_images(), "model/config.json", *parts)
        self.config(image_size=[8, 8], num_channels=3)
        self.prepare_images()

    def test_folders_that_do_not_serve_are_refused(self):
        self.assert_refused(self.call_images(), f"{self.images}: No such file")
        self.images.mkdir()
        self.assert_refused(self.call_images(), f"{self.images} has no folder in it")
        self.image("cat/1.png")
        self.assert_refused(self.call_images(), f"{self.images}: there is 1 label")
        (self.images / "dog").mkdir()
        self.assert_refused(self.call_images(), f"{self.images / 'dog'} has no image in it")
        (self.images / "dog/1.png").mkdir()
        self.assert_refused(self.call_images(), "dog/1.png is no file")
        (self.images / "dog/1.png").rmdir()
        (self.images / "dog/1.png").symlink_to("nothing")
        self.assert_refused(self.call_images(), "dog/1.png: No such file or directory")
        (self.images / "a").symlink_to("a" * 300)
        self.assert_refused(self.call_images(), "images/a: File name too long")
        (self.images / "a").unlink()
        (self.images / "readme.txt").touch()
        self.assert_refused(self.call_images(), "readme.txt is no folder")

    def test_a_preprocessor_that_cannot_be_followed_is_refused(self):
        self.two_classes()
        for keys, *parts in (
                ({"kind": "CLIPImageProcessor"}, "'CLIPImageProcessor' is none of ViTImageProc"),
                ({"kind": ["ViTImageProcessor"]}, "['ViTImageProcessor'] is none of ViTImageProc"),
                ({"crop_pct": 0.9}, "crop_pct: 0.9 would change the pixels"),
                ({"do_pad": True}, "do_pad: True would change the pixels"),
                ({"do_resize": 1}, "do_resize: 1 is neither true nor false"),
                ({"size": {"longest_edge": 8}}, "size: {'longest_edge': 8} is no height and width"),
                ({"size": {"height": 8, "width": 0}}, "size: {'height': 8, 'width': 0} is no"),
                ({"size": [8, 8]}, "size: [8, 8] is no"),
                ({"do_center_crop": True}, "crop_size: None is no height and width"),
                ({"do_center_crop": True, "crop_size": {"shortest_edge": 8}}, "crop_size: "),
                ({"resample": 9}, "resample: 9 is no filter"),
                ({"image_mean": [0.5]}, "image_mean: [0.5] is not one number for each of 3"),
                ({"image_std": [0.5, 0, 1]}, "image_std: [0.5, 0, 1] has a 0"),
                ({"image_mean": "1"}, "image_mean: '1' is no number"),
                ({"rescale_factor": float("nan")}, "rescale_factor: nan is no number")):
            with self.subTest(keys=keys):
                self.preprocessor(**keys)
                self.assert_refused(self.call_images(), "model/preprocessor_config.json: ", *parts)
        self.preprocessor(do_pad=False, pad_size=8, crop_pct=None, data_format="channels_first")
        self.prepare_images()
        self.output.unlink()
        (self.model_folder / "preprocessor_config.json").unlink()
        self.assert_refused(self.call_images(), "preprocessor_config.json: No such file")
        self.model_folder.rename(self.folder / "other")
        self.assert_refused(self.call_images(), "there is no folder")

    def test_options_that_do_not_go_with_images_are_refused(self):
        self.two_classes()
        for more, message in ((["--tokenizer", "a"], "--tokenizer goes with --text or --messages"),
                              (["--sequence", "8"], "--sequence goes with --messages"),
                              (["--text", "a"], "not allowed with")):
            self.assert_refused(self.call_images(*more), message)
        self.assert_refused(self.call_images(output=self.folder / "rows.npy"),
                            "must end with .safetensors")
        for arguments, message in ((["--images", "a"], "--images needs --model"),
                                   (["--text", "a"], "--text needs --tokenizer"),
                                   (["--text", "a", "--model", "b", "--tokenizer", "c"],
                                    "--model goes with --images")):
            with self.assertRaises(SystemExit) as refused:
                prepare_data.main([*arguments, "--output", str(self.output)])
            self.assertIn(message, refused.exception.code)


if __name__ == "__main__":
    unittest.main()
