// SPDX-License-Identifier: Apache-2.0
#include "trainer/tasks/loss_values.h"

namespace gemini::trainer {

void LossSum::Add(const LossValues& batch, int64_t rows) {
  LossSum sum;
  sum.labels_ = batch.labels;
  sum.rows_ = rows;
  const auto num_rows = static_cast<double>(rows);
  if (batch.labels > 0) sum.of_labels_ = batch.of_labels * static_cast<double>(batch.labels);
  sum.beside_ = (batch.total - batch.of_labels) * num_rows;
  if (batch.router.has_value()) sum.routers_ = *batch.router * num_rows;
  sum.hits_ = batch.hits;
  Add(sum);
}

void LossSum::Add(const LossSum& other) {
  of_labels_ += other.of_labels_;
  labels_ += other.labels_;
  beside_ += other.beside_;
  if (other.routers_.has_value()) routers_ = routers_.value_or(0) + *other.routers_;
  rows_ += other.rows_;
  if (!other.hits_.has_value()) return;
  const Hits before = hits_.value_or(Hits());
  hits_ = {before.first + other.hits_->first, before.among_five + other.hits_->among_five,
           other.hits_->has_five};
}

LossValues LossSum::Mean() const {
  const auto num_rows = static_cast<double>(rows_);
  LossValues mean = {.labels = labels_};
  mean.of_labels = of_labels_ / static_cast<double>(labels_);
  mean.total = mean.of_labels + beside_ / num_rows;
  if (routers_.has_value()) mean.router = *routers_ / num_rows;
  mean.hits = hits_;
  return mean;
}

}  // namespace gemini::trainer
