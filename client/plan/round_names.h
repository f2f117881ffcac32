// SPDX-License-Identifier: Apache-2.0
// Names the phases of rounds, by what their operators do and by the updates before them
// (client/plan/phase_tracker.h).
// Thread: none of its own; the caller locks.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gemini::client {

class RoundNames {
 public:
  void AddSpace(std::string name) { spaces_.push_back(std::move(name)); }

  // Name the rounds between the two calls; such names nest.
  void Push(std::string phase) { pushed_.push_back(std::move(phase)); }
  void Pop() {
    if (!pushed_.empty()) pushed_.pop_back();
  }
  bool has_pushed() const { return !pushed_.empty(); }

  // Returns the phase of a round that begins with a tensor of `space`.
  std::string OfRound(bool evaluates, int32_t space) const;
  // Begins an update, and returns the phase of its round if the update is the round's only
  // operator.
  std::string BeginUpdate(int32_t space);
  // Ends the update. Returns whether spaces take turns: whether another was updated before.
  bool EndUpdate();

 private:
  std::string WithSpace(const char* what, int32_t space) const;

  std::vector<std::string> spaces_;  // Their names, by space.
  std::vector<std::string> pushed_;  // The innermost last.
  int32_t updating_ = 0;             // The space of the current or the last update.
  // The space that was updated last, and how many times in a row; 0 if no other space was ever
  // updated.
  int32_t updated_ = -1;
  int updates_in_row_ = 0;
};

}  // namespace gemini::client
