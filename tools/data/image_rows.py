# SPDX-License-Identifier: Apache-2.0
"""Folders of images as a file of rows: each folder is a class, and its name is the label.

Several threads decode images ahead of the one that is being written, so memory holds some more of
them than there are cores. It also holds the names of the classes, and of the images of one class.
"""
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib

import numpy

from .complete_file import complete_file
from .data_error import DataError, naming_file
from .labels import LabelSurvey
from .safetensors_writer import FORMAT, Column, SafetensorsWriter, head_bytes_for


@dataclasses.dataclass
class ImageCounts:
    """What became of the images."""
    rows: int
    num_labels: int
    shape: tuple  # Channels, height and width of each.


def write_images(processor, config, folder, output, progress=lambda n: None):
    """Writes the images below a folder, in order, into `output`. Returns ImageCounts.

    `processor` is an ImageProcessor, and `config` the ModelConfig of the same model.
    """
    folder = pathlib.Path(folder)
    classes = class_folders(folder)
    labels = _labels_of(folder, classes, config)
    images = _images_of(processor, classes, labels)
    first = next(images)
    shape = first.pixels.shape
    _refuse_another_shape(shape, processor, config)
    rescale, mean, std = processor.normalisation(shape[0])
    counts = ImageCounts(0, labels.num_labels, shape)
    with (complete_file(output) as file,
          SafetensorsWriter(file, pathlib.Path(output).parent,
                            [Column("labels", "I32", []), Column("pixels", "U8", list(shape))],
                            head_bytes_for(labels.metadata()["names"])) as writer):
        for image in itertools.chain([first], images):
            if image.pixels.shape != shape:
                raise DataError(f"{image.path}: the pixels are {_said(image.pixels.shape)}, and "
                                f"those of {first.path} are {_said(shape)}: do_convert_rgb and "
                                f"do_resize in {processor.path} make them alike")
            writer.append(image.label, image.pixels)
            counts.rows += 1
            progress(image.num_bytes)
        writer.finish({
            "gemini.format": FORMAT, "task": "image-classification", **labels.metadata(),
            "channels": str(shape[0]), "height": str(shape[1]), "width": str(shape[2]),
            "rescale": json.dumps(rescale), "mean": json.dumps(mean), "std": json.dumps(std),
            "rows": str(counts.rows)})
    return counts


def class_folders(folder):
    """Returns the folders of the classes in the order of their names."""
    classes = _visible(folder)
    if not classes:
        raise DataError(f"{folder} has no folder in it: each class has one")
    for path in classes:
        with naming_file(path):
            is_folder = path.is_dir()
        if not is_folder:
            raise DataError(f"{path} is no folder: images are in folders that are named by their "
                            "classes")
    return classes


def size_of_folder(folder):
    """Returns the bytes of all images of all classes."""
    return sum(_size_of(path) for path_of_class in class_folders(folder)
               for path in _visible(path_of_class))


def _size_of(path):
    with naming_file(path):  # It may be a link to nothing.
        return path.stat().st_size


@dataclasses.dataclass
class _Image:
    path: pathlib.Path
    label: numpy.ndarray  # int32 []
    pixels: numpy.ndarray  # uint8 [channels, height, width]
    num_bytes: int  # The length of its file.


def _labels_of(folder, classes, config):
    survey = LabelSurvey("single-label", config, folder)
    for path in classes:
        survey.add(path, path.name)
    return survey.result()


def _images_of(processor, classes, labels):
    """Yields the _Image of each file in order, some of which are decoded ahead."""
    def image_of(path, label):
        return _Image(path, label, processor.pixels_of(path), _size_of(path))

    num_threads = len(os.sched_getaffinity(0))
    ahead = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        for path, label in _files_of(classes, labels):
            ahead.append(threads.submit(image_of, path, label))
            if len(ahead) > num_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _files_of(classes, labels):
    for path_of_class in classes:
        label, _ = labels.row_of(path_of_class, path_of_class.name)
        paths = _visible(path_of_class)
        if not paths:
            raise DataError(f"{path_of_class} has no image in it")
        for path in paths:
            with naming_file(path):
                is_file = path.is_file()
            if not is_file:
                raise DataError(f"{path} is no file: the folder of a class has images only")
            yield path, label


def _visible(folder):
    """Returns what is in a folder, sorted, but for hidden files, which systems leave there."""
    with naming_file(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _refuse_another_shape(shape, processor, config):
    """Refuses pixels that the model does not take."""
    if config.num_channels not in (None, shape[0]):
        raise DataError(f"images have {shape[0]} channels by {processor.path}, and num_channels in "
                        f"{config.path} is {config.num_channels}")
    if config.image_size not in (None, shape[1:]):
        height, width = config.image_size
        raise DataError(f"images become {shape[1]} x {shape[2]} by {processor.path}, and "
                        f"image_size in {config.path} is {height} x {width}")


def _said(shape):
    return f"{shape[0]} channels of {shape[1]} x {shape[2]}"
