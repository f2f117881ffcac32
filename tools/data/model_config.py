# SPDX-License-Identifier: Apache-2.0
"""What the config.json of a model's folder says of the labels and images that the model takes."""
import json
import pathlib
import typing

from .data_error import DataError, naming_file

# The classes of transformers whose labels are those that a classification learns end so.
CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification")


class ModelConfig(typing.NamedTuple):
    """What is known of a model. What its config.json does not say is None.

    A model of another task than classification gets a new head, so its labels count as not said
    unless they have names.
    """
    path: pathlib.Path  # The config.json, which errors name.
    num_labels: int | None = None
    names: list | None = None  # The labels' names, by their numbers. None: nobody named them.
    num_channels: int | None = None
    image_size: tuple | None = None  # Height and width.


def read_json_object(path):
    """Returns the object of a small JSON file."""
    try:
        with naming_file(path):
            record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # It is no JSON, or no UTF-8.
        raise DataError(f"{path} is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} is no JSON object")
    return record


def read_model_config(folder):
    """Returns the ModelConfig of a model's folder, which says nothing where it has none."""
    path = pathlib.Path(folder) / "config.json"
    with naming_file(path):
        is_folder, is_there = path.parent.is_dir(), path.exists()
    if not is_folder:
        raise DataError(f"there is no folder {folder}: the model's is needed here, whose "
                        "config.json says what the model takes")
    if not is_there:
        return ModelConfig(path)
    record = read_json_object(path)
    num_labels, names = _labels_of(record, path)
    return ModelConfig(path, num_labels, names, _count_of(record, "num_channels", path),
                       _image_size_of(record.get("image_size"), path))


def placeholder_of(number):
    """Returns the name that transformers gives a label which nobody has named."""
    return f"LABEL_{number}"


def is_count(value):
    """Returns whether a JSON value is an integer from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _labels_of(record, path):
    """Returns the number of labels and their names. Either is None where it is not known."""
    num_labels = _count_of(record, "num_labels", path)
    names = _names_of(record.get("id2label"), path)
    if names is not None:
        num_labels = len(names)
        if all(name == placeholder_of(number) for number, name in enumerate(names)):
            names = None
    if names is None and _is_of_another_task(record):
        num_labels = None
    return num_labels, names


def _is_of_another_task(record):
    """Returns whether the config names a class of transformers, and it is no classifier."""
    architectures = record.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return isinstance(first, str) and bool(first) and not first.endswith(CLASSIFIERS)


def _count_of(record, key, path):
    value = record.get(key)
    if value is not None and not is_count(value):
        raise DataError(f"{path}: {key}: {value!r} is no number from 1 on")
    return value


def _image_size_of(value, path):
    """Returns (height, width) of an image_size, which is one number where both are the same."""
    size = [value, value] if is_count(value) else value
    if size is None:
        return None
    if not isinstance(size, list) or len(size) != 2 or not all(map(is_count, size)):
        raise DataError(f"{path}: image_size: {value!r} is neither a number nor a height and a "
                        "width")
    return tuple(size)


def _names_of(id2label, path):
    """Returns the names of an id2label in the order of their numbers, or None where it is None."""
    if id2label is None:
        return None
    if not isinstance(id2label, dict) or not id2label:
        raise DataError(f"{path}: id2label: no object with a name for each number")
    names = [id2label.get(str(number)) for number in range(len(id2label))]
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise DataError(f"{path}: id2label: there is no name for {number}, and {len(names)} "
                            f"labels have the numbers 0 to {len(names) - 1}")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: id2label: two labels have the same name")
    return names
