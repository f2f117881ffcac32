// SPDX-License-Identifier: Apache-2.0
// Handles all keys of a program's configuration together: as flags, in a TOML file, in --help, and
// between two runs.
// Order:  a flag wins over the file, and the file over the default.
// Errors: INVALID_ARGUMENT for everything a user can write wrongly. The message names the key,
//         where it was written (file and line, or the flag), the value, and what is allowed.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/config/config_key.h"

namespace gemini {

// A command line, taken apart.
struct Flags {
  std::map<std::string, std::vector<std::string>, std::less<>> values;  // By key, as written.
  std::string config_path;  // Of --config; empty: not given.
  std::string config_text;  // What is in that file.
  bool help = false;
  bool version = false;
};

class KeyTable {
 public:
  // `keys` are in the order of --help and of the file. `table_keys` are read from tables of a file
  // alone, and never written; their names have dots: "oven.fan.speed" is `speed` in [oven.fan].
  explicit KeyTable(std::vector<ConfigKey> keys, std::vector<ConfigKey> table_keys = {})
      : keys_(std::move(keys)), table_keys_(std::move(table_keys)) {}

  // Sets one key from the text of a flag or of a file. `where` begins the message: "--steps".
  absl::Status Set(absl::string_view name, absl::string_view text, absl::string_view where) const;
  // Sets every key that the TOML text holds, and leaves the others. `where` names the file. A
  // variable that the text sets in two spellings is refused.
  absl::Status ApplyToml(absl::string_view text, absl::string_view where) const;
  // Writes all keys but those that are not stored; ApplyToml gives the same values back.
  std::string ToToml() const;

  // `arguments` are those behind the program's name: --KEY VALUE, --KEY=VALUE, --config FILE,
  // --help (-h) and --version. Reads the file, and sets no key. NOT_FOUND: there is no such file.
  absl::StatusOr<Flags> ParseFlags(absl::Span<const std::string> arguments) const;
  // Sets the keys of the file, then those of the flags.
  absl::Status Apply(const Flags& flags) const;

  // Returns `refused`, which was found behind Apply. If its message names a key as a flag which
  // the file has and no flag overrides, it begins with the line of the first one.
  absl::Status AtItsLine(const absl::Status& refused, const Flags& flags) const;

  // A line or more a key, with the value that its variable has now as the default.
  std::string Help() const;

  // Returns what differs from `before`, which has the same keys, one line each: "steps: 5 is now
  // 10". INVALID_ARGUMENT: a change that the key's ResumeRule does not allow; names all of them.
  absl::StatusOr<std::vector<std::string>> CompareForResume(const KeyTable& before) const;

 private:
  // `prefix` is what users write before a name: "--" of a flag, which no table key has.
  // INVALID_ARGUMENT: suggests the nearest.
  absl::StatusOr<const ConfigKey*> Find(absl::string_view name, absl::string_view where,
                                        absl::string_view prefix) const;

  const std::vector<ConfigKey> keys_;
  const std::vector<ConfigKey> table_keys_;
};

// Reads a whole TOML file; a token file given by mistake is not read to its end. NOT_FOUND: there
// is none. INVALID_ARGUMENT: more than 1 MiB.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

}  // namespace gemini
