# SPDX-License-Identifier: Apache-2.0
"""Images as the pixels that a model takes, as transformers' ViTImageProcessor makes them by Pillow.

What the processor does last, x * rescale, less mean, divided by std, is left to the run: pixels are
bytes until then.
"""
import pathlib
import re

import numpy
from PIL import Image, ImageOps

from .data_error import DataError, first_line
from .model_config import is_count, read_json_object

# What the processors of transformers do where the preprocessor_config.json does not say it.
_VIT = {"do_convert_rgb": False, "do_resize": True, "size": {"height": 224, "width": 224},
        "resample": Image.Resampling.BILINEAR, "do_center_crop": False, "crop_size": None,
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": 0.5, "image_std": 0.5}
_DEIT = _VIT | {"size": {"height": 256, "width": 256}, "resample": Image.Resampling.BICUBIC,
                "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
# Older files name the class as that of a feature extractor.
_DEFAULTS = {name + suffix: defaults for name, defaults in (("ViT", _VIT), ("DeiT", _DEIT))
             for suffix in ("ImageProcessor", "ImageProcessorFast", "FeatureExtractor")}
# These say how a processor is called, and not which pixels it makes.
_WITHOUT_EFFECT = {"image_processor_type", "feature_extractor_type", "processor_class", "pad_size",
                   "return_tensors", "data_format", "input_data_format", "device",
                   "disable_grouping", "_valid_processor_keys"}
_FLAGS = [key for key in _VIT if key.startswith("do_")]
# Of these modes a pixel's channels are bytes with a meaning of their own.
_CHANNELS_OF_MODE = {"L": 1, "RGB": 3, "RGBA": 4}
_BYTE_MODES = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr",
               "LAB", "HSV"}
# Pillow reads some channels of 16 bits as bytes, and only a file's raw mode says so. Its letter is
# the order of bytes. BGR;16 has none: it is a whole pixel of 16 bits.
_WIDE_RAW_MODE = re.compile(r".*;16[A-Z]")


class ImageProcessor:
    """Makes an array of bytes of each image file, and knows what a run has to do with it."""

    def __init__(self, folder):
        """Reads the preprocessor_config.json of a model's folder."""
        self.path = pathlib.Path(folder) / "preprocessor_config.json"
        record = {key: value for key, value in read_json_object(self.path).items()
                  if value is not None}
        kind = record.get("image_processor_type", record.get("feature_extractor_type"))
        if kind is not None and not (isinstance(kind, str) and kind in _DEFAULTS):
            raise self._error(f"image_processor_type: {kind!r} is none of {', '.join(_DEFAULTS)}")
        self._settings = _DEFAULTS[kind or "ViTImageProcessor"] | record
        for key, value in record.items():
            if key not in _VIT and key not in _WITHOUT_EFFECT and value is not False:
                raise self._error(f"{key}: {value!r} would change the pixels, and is not known "
                                  "here")
        for key in _FLAGS:
            if not isinstance(self._settings[key], bool):
                raise self._error(f"{key}: {self._settings[key]!r} is neither true nor false")
        self._size = self._size_of("size", ({"height", "width"}, {"shortest_edge"}))
        self._crop_size = None
        if self._settings["do_center_crop"]:
            self._crop_size = self._size_of("crop_size", ({"height", "width"},))
        if self._settings["resample"] not in list(Image.Resampling):
            raise self._error(f"resample: {self._settings['resample']!r} is no filter of Pillow's")

    def pixels_of(self, path):
        """Returns an image file's pixels, uint8 [channels, height, width]."""
        try:
            with Image.open(path) as image:
                _refuse_wide_channels(image, path)
                # A camera held upright says so in the file, and does not turn the pixels.
                image = self._converted(ImageOps.exif_transpose(image), path)
                if self._settings["do_resize"]:
                    image = image.resize(self._resized(image.size), self._settings["resample"])
        except DataError:
            raise
        except Exception as error:  # Pillow raises whatever a broken file makes it raise.
            raise DataError(f"{path} is no image that Pillow reads: {first_line(error)}") from error
        pixels = numpy.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else numpy.moveaxis(pixels, -1, 0)
        if self._crop_size is not None:
            pixels = _center_crop(pixels, self._crop_size)
        return numpy.ascontiguousarray(pixels)

    def normalisation(self, channels):
        """Returns the factor, and for each channel the mean and the deviation, of what is left."""
        settings = self._settings
        rescale = self._number("rescale_factor") if settings["do_rescale"] else 1
        if not settings["do_normalize"]:
            return rescale, [0] * channels, [1] * channels
        return (rescale, self._per_channel("image_mean", channels),
                self._per_channel("image_std", channels, may_be_zero=False))

    def _converted(self, image, path):
        if self._settings["do_convert_rgb"]:
            return _rgb_of(image)
        if image.mode not in _CHANNELS_OF_MODE:
            raise DataError(f"{path}: an image of the mode {image.mode}: convert it to RGB, or say "
                            f'"do_convert_rgb": true in {self.path}')
        return image

    def _resized(self, image_size):
        """Returns the width and height that an image of (width, height) is resized to."""
        if "shortest_edge" not in self._size:
            return self._size["width"], self._size["height"]
        shortest = self._size["shortest_edge"]
        width, height = image_size
        if width <= height:
            return shortest, int(shortest * height / width)
        return int(shortest * width / height), shortest

    def _size_of(self, key, forms):
        """Returns the sizes under a key, which have the names of one of the forms."""
        value = self._settings[key]
        if is_count(value):
            return {"height": value, "width": value}
        if not isinstance(value, dict) or set(value) not in forms or not all(
                map(is_count, value.values())):
            wanted = " or ".join(" and ".join(sorted(form)) for form in forms)
            raise self._error(f"{key}: {value!r} is no {wanted}")
        return value

    def _per_channel(self, key, channels, may_be_zero=True):
        value = self._settings[key]
        if not isinstance(value, list):
            value = [self._number(key)] * channels
        if len(value) != channels or not all(map(_is_number, value)):
            raise self._error(f"{key}: {value!r} is not one number for each of {channels} channels")
        if not may_be_zero and 0 in value:
            raise self._error(f"{key}: {value!r} has a 0, by which nothing can be divided")
        return value

    def _number(self, key):
        value = self._settings[key]
        if not _is_number(value):
            raise self._error(f"{key}: {value!r} is no number")
        return value

    def _error(self, text):
        return DataError(f"{self.path}: {text}")


def _refuse_wide_channels(image, path):
    """Refuses an image file of more than 8 bits a channel, none of which was decoded yet."""
    for tile in image.tile:
        raw_mode = tile[3][0] if isinstance(tile[3], tuple) and tile[3] else tile[3]
        if isinstance(raw_mode, str) and _WIDE_RAW_MODE.fullmatch(raw_mode):
            raise _wide_channels(raw_mode, path)
    if image.mode not in _BYTE_MODES:
        raise _wide_channels(image.mode, path)


def _wide_channels(mode, path):
    return DataError(f"{path}: an image of the mode {mode}, of more than 8 bits a channel: convert "
                     "it to PNG or JPEG of 8 bits")


def _rgb_of(image):
    """Returns an image in RGB. What is transparent lets white through, as in transformers."""
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30


def _center_crop(pixels, size):
    """Cuts out the middle of an image, around which zeros stand where it is smaller."""
    height, width = size["height"], size["width"]
    # Rounded up, which is where transformers puts an image that is smaller by an odd number.
    pads = [(0, 0), *((-(-max(0, wanted - have) // 2),) * 2
                      for wanted, have in zip((height, width), pixels.shape[1:]))]
    padded = numpy.pad(pixels, pads)
    top = (pixels.shape[1] - height) // 2 + pads[1][0]
    left = (pixels.shape[2] - width) // 2 + pads[2][0]
    return padded[:, top:top + height, left:left + width]
