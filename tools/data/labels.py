# SPDX-License-Identifier: Apache-2.0
"""The labels of an input: a survey of all of them, and then the array that a row has for its label.

A row has either one label of several, or any number of them, or the numbers that a regression is to
learn. Labels are integers or names. Names get the numbers that the model's config.json gives them,
or else those of the order of the alphabet.
"""
import json

import numpy

from .data_error import DataError
from .json_lines import refuse_half_characters
from .model_config import placeholder_of

# What --problem says, and what transformers calls it.
PROBLEM_TYPES = {"single-label": "single_label_classification",
                 "several-labels": "multi_label_classification",
                 "regression": "regression"}
_EXPECTED = {"single-label": "a text or an integer",
             "several-labels": "a list of texts or integers",
             "regression": "a number or a list of numbers"}
# More labels than this are taken for a mistake where the model does not say how many it has.
MOST_LABELS = 65_536
# So is a longer name. All of them are held in memory.
MOST_CHARACTERS = 1000
LARGEST_FLOAT32 = float(numpy.finfo(numpy.float32).max)


class Labels:
    """The labels of a whole input."""

    def __init__(self, problem, num_labels, names):
        self.problem = problem  # A key of PROBLEM_TYPES.
        self.num_labels = num_labels
        self.names = names  # By their numbers. None: labels are bare numbers.
        self._numbers = {name: number for number, name in enumerate(names or [])}

    def row_of(self, place, label):
        """Returns a label as it is written, [] or [num_labels], and as people read it.

        The survey saw the label when it looked at the line at `place`, unless the file was changed.
        """
        if not self._has(label):
            raise DataError(f"{place}: label: {_short(label)} was not there when the input was "
                            "read for its labels: the file was changed meanwhile")
        if self.problem == "single-label":
            number = self._number_of(label)
            return numpy.array(number, dtype="<i4"), self._said(number)
        if self.problem == "several-labels":
            numbers = sorted(set(map(self._number_of, label)))
            row = numpy.zeros(self.num_labels, dtype="<f4")
            row[numbers] = 1
            return row, ", ".join(map(self._said, numbers)) or "none"
        row = numpy.array(_listed(label), dtype="<f4")
        return row, ", ".join(map(str, row.tolist()))

    def metadata(self):
        """Returns what the metadata of a file say about its labels."""
        return {"problem_type": PROBLEM_TYPES[self.problem], "num_labels": str(self.num_labels),
                "names": "" if self.names is None else json.dumps(self.names, ensure_ascii=False)}

    def _has(self, label):
        if not _is_of(self.problem, label):
            return False
        if self.problem == "regression":
            values = _listed(label)
            return len(values) == self.num_labels and all(map(_fits_float32, values))
        return all(part in self._numbers if isinstance(part, str) else 0 <= part < self.num_labels
                   for part in _listed(label))

    def _number_of(self, label):
        return self._numbers[label] if isinstance(label, str) else label

    def _said(self, number):
        return str(number) if self.names is None else f"{number} {self.names[number]}"


class LabelSurvey:
    """Looks at every label of an input, refuses those that do not fit, and says which there are."""

    def __init__(self, problem, config, inputs):
        """Expects labels of a `problem` of PROBLEM_TYPES; None: the first label decides.

        `config` is the ModelConfig of the model that is to learn them. `inputs` says in an error
        which files or folder the labels are of.
        """
        self._inputs = inputs
        self._problem = problem
        self._config = config
        self._model_names = None if config.names is None else set(config.names)
        self._are_texts = None  # Whether labels are texts. None: none was seen.
        self._names = set()  # The texts that were seen, where the model has no names.
        self._most = -1  # The largest integer that was seen.
        self._num_values = config.num_labels  # How many values a label has under regression.

    def add(self, place, label):
        """Looks at the label of the line at `place`."""
        if self._problem is None:
            self._problem = _problem_of(label)
        if not _is_of(self._problem, label):
            raise DataError(f"{place}: label: expected {_EXPECTED[self._problem]} "
                            f"({self._problem}), found {_short(label)}: --problem chooses what "
                            "labels are")
        if self._problem == "regression":
            self._add_values(place, _listed(label))
            return
        parts = _listed(label)
        for part in parts:
            self._add_part(place, part)
        if len(set(parts)) < len(parts):
            twice = next(part for part in parts if parts.count(part) > 1)
            raise DataError(f"{place}: label: {_short(twice)} stands twice in a list: it names the "
                            "labels that the text has, and has no 0 or 1 for each that there is")

    def result(self):
        """Returns the Labels of all that was added."""
        config = self._config
        if self._problem == "regression":
            return Labels(self._problem, self._num_values, config.names)
        if self._names:
            names = self._numbered_names()
        else:
            names = config.names
        num_labels = len(names) if names else config.num_labels or self._most + 1
        if self._problem == "single-label" and num_labels < 2:
            raise DataError(f"{self._inputs}: there is {num_labels} label, and a single label is "
                            "one of 2 at least")
        if num_labels == 0:
            raise DataError(f"{self._inputs}: no line has a label: each has an empty list")
        return Labels(self._problem, num_labels, names)

    def _numbered_names(self):
        """Returns the texts that were seen as names by their numbers."""
        config = self._config
        names = sorted(self._names)
        if config.num_labels is None:
            return names
        placeholders = list(map(placeholder_of, range(config.num_labels)))
        others = sorted(self._names.difference(placeholders))
        if not others:
            return placeholders
        if len(others) < len(names):
            raise DataError(f"{self._inputs}: the labels are {_short(names)}, and {config.path} "
                            f"has {config.num_labels} labels that are named {placeholders[0]} and "
                            f"so on: {_short(others[0])} is none of these")
        if len(names) != config.num_labels:
            raise DataError(f"{self._inputs}: there are {len(names)} labels, {_short(names)}, "
                            f"and num_labels in {config.path} is {config.num_labels}")
        return names

    def _add_values(self, place, values):
        for value in values:
            if not _fits_float32(value):
                raise DataError(f"{place}: label: {value} is no number that a float32 holds")
        if self._num_values is None:
            self._num_values = len(values)
        if len(values) != self._num_values:
            of = (f"{self._config.path} says" if self._config.num_labels is not None
                  else "the first label has")
            raise DataError(f"{place}: label: it has {len(values)} values, and {of} "
                            f"{self._num_values}")

    def _add_part(self, place, part):
        is_text = isinstance(part, str)
        if is_text and (not part or part.isspace()):
            raise DataError(f"{place}: label: empty")
        if self._are_texts is None:
            self._are_texts = is_text
        if is_text != self._are_texts:
            found, before = (("a text", "integers") if is_text else ("an integer", "texts"))
            raise DataError(f"{place}: label: {_short(part)} is {found}, and those before are "
                            f"{before}")
        if is_text:
            self._add_name(place, part)
        else:
            self._add_number(place, part)

    def _add_name(self, place, name):
        config = self._config
        if self._model_names is not None:
            if name not in self._model_names:
                raise DataError(f"{place}: label: {_short(name)} is none of the "
                                f"{len(config.names)} names in id2label of {config.path}: "
                                f"{_short(config.names)}")
            return
        if name in self._names:
            return
        refuse_half_characters(name, f"{place}: label")
        if len(name) > MOST_CHARACTERS:
            raise DataError(f"{place}: label: {_short(name)} has {len(name)} characters: a name of "
                            f"more than {MOST_CHARACTERS} is taken for a mistake")
        self._names.add(name)
        if len(self._names) > MOST_LABELS:
            raise DataError(f"{place}: label: this is label {len(self._names)}: more than "
                            f"{MOST_LABELS} different ones are taken for a mistake")

    def _add_number(self, place, number):
        num_labels = self._config.num_labels
        if number < 0:
            raise DataError(f"{place}: label: {number} is negative: labels are numbered from 0 on")
        if num_labels is not None and number >= num_labels:
            raise DataError(f"{place}: label: {number} is out of range: {self._config.path} says "
                            f"that there are {num_labels} labels, from 0 to {num_labels - 1}")
        if num_labels is None and number >= MOST_LABELS:
            raise DataError(f"{place}: label: {number} is taken for a mistake: num_labels in "
                            f"{self._config.path} allows more than {MOST_LABELS} labels")
        self._most = max(self._most, number)


def _problem_of(label):
    """Returns the problem that a first label is of."""
    if isinstance(label, list):
        return "regression" if any(isinstance(part, float) for part in label) else "several-labels"
    return "regression" if isinstance(label, float) else "single-label"


def _is_of(problem, label):
    """Returns whether a label is of the form that the problem wants."""
    parts = _listed(label)
    if isinstance(label, list) and problem == "single-label":
        return False
    if not isinstance(label, list) and problem == "several-labels":
        return False
    wanted = (int, float) if problem == "regression" else (int, str)
    return ((len(parts) > 0 or problem == "several-labels") and
            all(isinstance(part, wanted) and not isinstance(part, bool) for part in parts))


def _fits_float32(value):
    return abs(value) <= LARGEST_FLOAT32  # A comparison with NaN is false.


def _listed(label):
    return label if isinstance(label, list) else [label]


def _short(value):
    """Returns a value as an error shows it, whatever its length."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
