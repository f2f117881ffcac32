// SPDX-License-Identifier: Apache-2.0
// Holds the losses of batches as numbers, and adds them up over the batches of a step or of an
// evaluation.
// Pure: no I/O, no clock.
#pragma once
#include <cstdint>
#include <optional>

namespace gemini::trainer {

// How many labels were predicted right.
struct Hits {
  int64_t first = 0;       // The model's first choice is the label.
  int64_t among_five = 0;  // The label is among its first five.
  bool has_five = false;   // There are more than five to choose from.
};

// The numbers of a batch's loss.
struct LossValues {
  double total = 0;      // What is learned from.
  double of_labels = 0;  // The mean over the labels: a cross entropy, or a squared error.
  std::optional<double> router = {};  // The routers' loss, where the total includes it.
  int64_t labels = 0;
  std::optional<Hits> hits = {};  // Of evaluations whose labels are classes.
};

// Adds up the losses of batches, whose numbers of labels may differ, to that of all of them. The
// mean of their means would be another one. Its bytes may be sent to another rank.
class LossSum {
 public:
  // Adds a batch of `rows` rows.
  void Add(const LossValues& batch, int64_t rows);
  void Add(const LossSum& other);

  // Returns the mean loss of all labels, and the routers' losses as the mean of all rows. NaN
  // without a label.
  LossValues Mean() const;

 private:
  double of_labels_ = 0;  // The sum over all labels.
  int64_t labels_ = 0;
  std::optional<Hits> hits_ = {};
  // These are sums over all rows.
  double beside_ = 0;  // What the totals have beside the losses of labels.
  std::optional<double> routers_ = {};
  int64_t rows_ = 0;
};

}  // namespace gemini::trainer
