// SPDX-License-Identifier: Apache-2.0
#include "gemini/config/key_table.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

struct Oven {
  std::string dish = "bread";
  std::string colour = "blue";
  int64_t loaves = 0;
  double degrees = 180;
  bool fan = false;
  int64_t room = kAutoBytes;
  int64_t rate = 0;
  std::vector<NvmeDirectory> shelves;
};

KeyTable Keys(Oven& oven) {
  return KeyTable({
      TextKey({"dish", "NAME", "What is baked"}, oven.dish),
      ChoiceKey({"colour", "NAME", "Of the door", ResumeRule::kFree}, oven.colour, {"blue", "red"}),
      CountKey({"loaves", "N", "How many", ResumeRule::kGrow}, oven.loaves, 1, 9),
      NumberKey({"degrees", "X", "How hot"}, oven.degrees, 0, 300),
      SwitchKey({"fan", "", "With moving air", ResumeRule::kNotStored}, oven.fan),
      SizeKey({"room", "SIZE", "How large", ResumeRule::kFree}, oven.room, 4096, 4096),
      RateKey({"rate", "RATE", "How fast", ResumeRule::kFree}, oven.rate),
      NvmeKey({"a-shelf-with-a-very-long-name", "DIR:SIZE", "Where", ResumeRule::kFree},
              oven.shelves),
  });
}

TEST(KeyTableTest, WhatIsWrittenReadsBackAndWhatIsNotStoredIsLeftOut) {
  Oven oven{"\"rye\"\n",
            "red",
            3,
            0.1 + 0.2,
            true,
            4096 * 257,
            (int64_t{1} << 30) + 1,
            {{"/a:b", 4097}, {"/c", int64_t{3} << 29}}};
  const std::string text = Keys(oven).ToToml();
  EXPECT_THAT(
      text, AllOf(HasSubstr("room = \"1052672\""), HasSubstr("/c:1.5 GiB"), Not(HasSubstr("fan"))));
  Oven back;
  ASSERT_OK(Keys(back).ApplyToml(text, "oven.toml"));
  EXPECT_EQ(Keys(back).ToToml(), text);
  EXPECT_EQ(back.degrees, oven.degrees);
  EXPECT_EQ(back.shelves, oven.shelves);
  EXPECT_FALSE(back.fan);
}

TEST(KeyTableTest, ARefusedValueSaysWhereAndWhatIsAllowedAndChangesNothing) {
  Oven oven;
  const std::string before = Keys(oven).ToToml();
  const struct {
    const char* name;
    const char* text;
    const char* message;
  } cases[] = {
      {"loaves", "10", "--x: wants a whole number from 1 to 9, not '10'"},
      {"loaves", "two", "--x: wants a whole number from 1 to 9, not 'two'"},
      {"degrees", "300", "--x: wants a number of at least 0.0 and below 300.0, not '300'"},
      {"colour", "green", "--x: wants one of blue, red, not 'green'"},
      {"fan", "1", "--x: wants true or false, not '1'"},
      {"room", "4097", "--x: 4097 bytes is not a multiple of 4 KiB"},
      {"rate", "12", "--x: wants a rate such as 12GiB/s, or 0 for no limit, not '12'"},
      {"a-shelf-with-a-very-long-name", "/a", "--x: wants DIR:SIZE"},
      {"dihs", "", "--x: unknown key 'dihs'; did you mean 'dish'?"},
  };
  for (const auto& [name, text, message] : cases) {
    EXPECT_THAT(Keys(oven).Set(name, text, "--x"), StatusIs(kInvalid, StartsWith(message)));
  }
  EXPECT_EQ(Keys(oven).ToToml(), before);
}

// The keys of an oven, two of which tables of a file spell otherwise.
KeyTable KeysWithTables(Oven& oven) {
  std::vector<ConfigKey> tables = {
      CountKey({"bake.loaves", "", ""}, oven.loaves, 1, 9),
      ChoiceKey({"bake.door.colour", "", ""}, oven.colour, {"blue", "red"})};
  tables[0].same_as = "loaves";
  tables[1].same_as = "colour";
  return KeyTable({CountKey({"loaves", "N", "How many"}, oven.loaves, 1, 9),
                   ChoiceKey({"colour", "NAME", "Of the door"}, oven.colour, {"blue", "red"})},
                  std::move(tables));
}

TEST(KeyTableTest, ATableOfAFileSpellsKeysOtherwise) {
  for (const char* const text :
       {"bake = { loaves = 3, door = { colour = \"red\" } }", "bake.loaves = 3\ncolour = \"red\"",
        "[bake]\nloaves = 3\n[bake.door]\ncolour = \"red\""}) {
    Oven oven;
    ASSERT_OK(KeysWithTables(oven).ApplyToml(text, "oven.toml")) << text;
    EXPECT_EQ(oven.loaves, 3) << text;
    EXPECT_EQ(oven.colour, "red") << text;
    EXPECT_EQ(KeysWithTables(oven).ToToml(), "loaves = 3\ncolour = \"red\"\n");
  }
}

TEST(KeyTableTest, AWrongKeyOfATableNamesItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n[bake]\nloafs = 3", "oven.toml:3: unknown key 'bake.loafs'; did you mean 'bake.loaves'?"},
      {"\n[bake]\nloaves = 10", "oven.toml:3: bake.loaves: wants a whole number from 1 to 9"},
      {"[bake]\nloaves = { n = 1 }", "oven.toml:2: bake.loaves: wants a whole number from 1 to 9"},
      {"\nbake = 3", "oven.toml:2: bake: wants a table"},
      {"[bake]\ndoor = \"red\"", "oven.toml:2: bake.door: wants a table"},
      {"[bakery]\nloaves = 3", "oven.toml:1: unknown key 'bakery'"},
      {"loaves = 3\n[bake]\nloaves = 3",
       "oven.toml:1: loaves: is the same as bake.loaves at oven.toml:3: leave one of them out"}};
  for (const auto& [text, message] : cases) {
    Oven oven;
    EXPECT_THAT(KeysWithTables(oven).ApplyToml(text, "oven.toml"),
                StatusIs(kInvalid, StartsWith(message)));
  }
  Oven oven;
  const KeyTable keys = KeysWithTables(oven);
  EXPECT_THAT(keys.ParseFlags({"--bake.loaves=3"}).status(),
              StatusIs(kInvalid, HasSubstr("unknown key 'bake.loaves'")));
  EXPECT_THAT(keys.Help(), Not(HasSubstr("bake")));
}

TEST(KeyTableTest, AFlagWinsOverTheFileAndAListIsReplacedAsAWhole) {
  std::string folder = ::testing::TempDir() + "/key_table_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/oven.toml";
  std::ofstream(file) << "loaves = 2\ndegrees = 200\n"
                         "a-shelf-with-a-very-long-name = [\"/a:1MiB\", \"/b:1MiB\"]\n";
  Oven oven;
  const KeyTable keys = Keys(oven);
  ASSERT_OK_AND_ASSIGN(const Flags flags,
                       keys.ParseFlags({"--config", file, "--loaves=4", "--fan",
                                        "--a-shelf-with-a-very-long-name", "/c:2MiB"}));
  EXPECT_EQ(oven.loaves, 0);  // Nothing is set yet.
  ASSERT_OK(keys.Apply(flags));
  EXPECT_EQ(oven.loaves, 4);
  EXPECT_EQ(oven.degrees, 200);
  EXPECT_TRUE(oven.fan);
  EXPECT_THAT(oven.shelves, ElementsAre(NvmeDirectory{"/c", 2 << 20}));
  std::filesystem::remove_all(folder);
}

TEST(KeyTableTest, WhatIsRefusedLaterNamesTheLineOfItsKey) {
  Oven oven;
  const KeyTable keys = KeysWithTables(oven);
  Flags flags;
  flags.config_path = "oven.toml";
  flags.config_text = "colour = \"red\"\n[bake]\nloaves = 3\n";
  const auto at_line = [&](const char* message) {
    return std::string(keys.AtItsLine(absl::InvalidArgumentError(message), flags).message());
  };
  EXPECT_EQ(at_line("--loaves 3 are too many"), "oven.toml:3: --loaves 3 are too many");
  EXPECT_EQ(at_line("--fan, --colour: no"), "oven.toml:1: --fan, --colour: no");
  EXPECT_EQ(at_line("the door is open"), "the door is open");
  flags.values["loaves"] = {"4"};
  EXPECT_EQ(at_line("--loaves 4 are too many"), "--loaves 4 are too many");
  EXPECT_OK(keys.AtItsLine(absl::OkStatus(), flags));
}

TEST(KeyTableTest, HelpIsShownThoughTheFileIsMissing) {
  Oven oven;
  ASSERT_OK_AND_ASSIGN(const Flags flags,
                       Keys(oven).ParseFlags({"--config", "/none.toml", "--help"}));
  EXPECT_TRUE(flags.help);
}

TEST(KeyTableTest, HelpShowsEachDefaultAndKeepsItsColumns) {
  Oven oven;
  const std::string help = Keys(oven).Help();
  EXPECT_THAT(help, HasSubstr("\n  --colour NAME             Of the door: blue, red [blue]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --loaves N                How many\n"));  // Must be given.
  EXPECT_THAT(help, HasSubstr("\n  --a-shelf-with-a-very-long-name DIR:SIZE\n"
                              "                            Where\n"));
}

TEST(KeyTableTest, WhatARunThatGoesOnMayChange) {
  Oven before;
  before.loaves = 2;
  Oven now = before;
  now.loaves = 3;
  now.colour = "red";
  now.fan = true;
  EXPECT_THAT(Keys(now).CompareForResume(Keys(before)),
              IsOkAndHolds(ElementsAre("colour: blue is now red", "loaves: 2 is now 3")));
  now.loaves = 1;
  now.dish = "";
  EXPECT_THAT(Keys(now).CompareForResume(Keys(before)),
              StatusIs(kInvalid, AllOf(HasSubstr("dish: bread is now (none)"),
                                       HasSubstr("loaves: 2 is now 1 (may only grow)"),
                                       Not(HasSubstr("colour")))));
}

}  // namespace
}  // namespace gemini
